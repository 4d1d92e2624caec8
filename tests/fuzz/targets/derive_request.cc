// The attachment with which a trainer asks for derived models (common/derive/FORMAT.md), for a small decoder.
#include <algorithm>

#include "common/base/text.h"
#include "common/derive/derivation.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

using model::DType;

void CheckParts(const derive::Derivation& derivation, const model::ModelLayout& source) {
  std::vector<ByteRange> targets;
  for (size_t part = 0; part < derivation.part_count(); ++part) {
    for (const ByteRange& range : derivation.TargetsOf(part)) targets.push_back(range);
    for (const ByteRange& range : derivation.SourcesOf(part)) LS_FUZZ_RULE(range.end() <= source.data_bytes());
  }
  std::sort(targets.begin(), targets.end());
  uint64_t end = 0;
  for (const ByteRange& range : targets) {
    LS_FUZZ_RULE(range.offset == end);
    end = range.end();
  }
  LS_FUZZ_RULE(end == derivation.layout()->data_bytes());
}

}  // namespace

std::vector<Bytes> Seeds() {
  return {Copy(AsBytes(std::string_view(
              R"({"q": {"num_hidden_layers": 2, "quantization_config": {"quant_method": "fp8",
                 "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                 "modules_to_not_convert": ["model.layers.0.mlp"]}}})"))),
          Copy(AsBytes(std::string_view(
              R"({"m": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MXFP8"}},
                  "n": {"text_config": {"num_hidden_layers": 1}, "quantization_config": {
                  "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": {
                  "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                  "group_size": 16}}}, "ignore": []}}})")))};
}

void TestInput(ByteView input) {
  std::vector<model::TensorMeta> tensors = {{"model.embed_tokens.weight", DType::kBF16, {4, 64}},
                                            {"model.layers.0.self_attn.q_proj.weight", DType::kBF16, {200, 64}},
                                            {"model.layers.0.self_attn.k_proj.weight", DType::kBF16, {8, 64}},
                                            {"model.layers.0.mlp.gate.weight", DType::kBF16, {4, 64}},
                                            {"model.layers.1.mlp.up_proj.weight", DType::kF32, {4, 32}}};
  LS_FUZZ_RULE(model::AssignOffsets(tensors).ok());
  const auto source = model::ModelLayout::Create(std::move(tensors), 4096,
                                                 {{std::string(derive::kRequests), std::string(AsText(input))}});
  if (!source.ok()) return CheckRefusal(source.status(), {ErrorCode::kBadData});
  const auto all = derive::Derivation::All(**source);
  if (!all.ok()) return CheckRefusal(all.status(), {ErrorCode::kBadData});
  for (const auto& derivation : *all) CheckParts(*derivation, **source);
  Accepted(input, {all->size() > 1, all->front()->format() != "fp8-block", all->front()->quantised() < 3});
}

}  // namespace lockstep::fuzz
