#include "common/derive/derivation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/derive/modules.h"

namespace lockstep::derive {
namespace {

using model::DType;
using model::ModelLayout;
using model::TensorMeta;

constexpr char kFp8[] = R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})";

std::string Compressed(std::string_view format, std::string_view weights) {
  return Cat(R"({"quant_method": "compressed-tensors", "format": ")", format,
             R"(", "config_groups": {"group_0": {"targets": ["Linear"], "weights": )", weights, "}}}");
}

std::string ConfigOf(std::string_view quantization_config) {
  return Cat(R"({"model_type": "qwen3", "num_hidden_layers": 2, "quantization_config": )", quantization_config, "}");
}

std::shared_ptr<const ModelLayout> Source(std::vector<TensorMeta> tensors, std::string_view requests) {
  REQUIRE(model::AssignOffsets(tensors).ok());
  const auto layout =
      ModelLayout::Create(std::move(tensors), 4096, {{std::string(kRequests), std::string(requests)}, {"notes", "n"}});
  REQUIRE(layout.ok());
  return *layout;
}

std::vector<TensorMeta> Decoder() {
  return {{"model.embed_tokens.weight", DType::kBF16, {100, 64}},
          {"model.layers.0.self_attn.q_proj.weight", DType::kBF16, {300, 64}},
          {"model.layers.0.self_attn.q_proj.bias", DType::kBF16, {300}},
          {"model.layers.0.self_attn.k_proj.weight", DType::kBF16, {70, 64}},
          {"model.layers.0.mlp.gate.weight", DType::kBF16, {8, 64}},
          {"model.layers.0.mlp.gate_proj.weight", DType::kF32, {130, 64}},
          {"model.layers.1.mlp.up_proj.weight", DType::kF16, {130, 32}},
          {"model.layers.2.mlp.up_proj.weight", DType::kBF16, {130, 64}},  // beyond the decoder: multi-token prediction
          {"model.layers.0.input_layernorm.weight", DType::kBF16, {64}},
          {"visual.blocks.layers.0.fc.weight", DType::kBF16, {64, 64}},
          {"lm_head.weight", DType::kBF16, {100, 64}}};
}

std::shared_ptr<const Derivation> DerivationOf(const ModelLayout& source) {
  const auto all = Derivation::All(source);
  INFO(all.status().ToString());
  REQUIRE(all.ok());
  REQUIRE(all->size() == 1);
  return all->front();
}

std::string Requests(std::string_view quantization_config) {
  return Cat(R"({"actor-q": )", ConfigOf(quantization_config), "}");
}

const TensorMeta& Find(const ModelLayout& layout, std::string_view name) {
  for (const TensorMeta& tensor : layout.tensors()) {
    if (tensor.name == name) return tensor;
  }
  FAIL("no tensor " << name);
  return layout.tensors()[0];
}

bool Has(const ModelLayout& layout, std::string_view name) {
  return std::any_of(layout.tensors().begin(), layout.tensors().end(),
                     [&](const TensorMeta& tensor) { return tensor.name == name; });
}

Bytes RandomWeights(uint64_t bytes) {
  std::mt19937_64 random(1);
  Bytes data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random() & 0xbf);  // below 2, in each type
  return data;
}

Derivation::Place In(Bytes& made) {
  return [&](const ByteRange& values, const ByteRange& scales) {
    return Derivation::Room{made.data() + values.offset, made.data() + scales.offset};
  };
}

// All parts, each into bytes that are of no use before.
Bytes MakeAll(const Derivation& derivation, const Bytes& source) {
  Bytes made(derivation.layout()->data_bytes(), std::byte{0xa5});
  for (size_t part = 0; part < derivation.part_count(); ++part) {
    const auto read = [&](const ByteRange& range, std::byte* to) {
      std::memcpy(to, source.data() + range.offset, range.bytes);
      return OkStatus();
    };
    REQUIRE(derivation.Make(part, read, In(made)).ok());
  }
  return made;
}

const std::string kNvfp4 = Compressed(
    "nvfp4-pack-quantized", R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})");
const std::string kTensor = R"({"quant_method": "fp8", "activation_scheme": "dynamic"})";
const std::string kChannel =
    Compressed("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": false})");
const std::string kUe8m0 =
    R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"})";
const std::string kMxfp8 = R"({"quant_method": "modelopt", "quant_algo": "MXFP8"})";

TEST_CASE("A derived model has the tensors of its format, in the places of the weights") {
  const auto derivation = DerivationOf(*Source(Decoder(), Requests(kFp8)));
  CHECK(derivation->model() == "actor-q");
  CHECK(derivation->format() == "fp8-block");
  const ModelLayout& layout = *derivation->layout();
  CHECK(Find(layout, "model.layers.0.self_attn.q_proj.weight").dtype == DType::kF8E4M3);
  CHECK(Find(layout, "model.layers.0.self_attn.q_proj.weight_scale_inv").shape == std::vector<uint64_t>{3, 1});
  CHECK(Find(layout, "model.layers.0.self_attn.q_proj.weight_scale_inv").dtype == DType::kF32);
  CHECK(Find(layout, "model.layers.1.mlp.up_proj.weight").dtype == DType::kF8E4M3);
  for (const char* const same :
       {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.gate.weight",
        "model.layers.2.mlp.up_proj.weight", "visual.blocks.layers.0.fc.weight", "lm_head.weight"}) {
    CHECK(Find(layout, same).dtype == DType::kBF16);
  }
  CHECK(layout.block_bytes() == 4096);
}

TEST_CASE("A derived model's config.json names all modules left out; other attachments stay, the request goes") {
  const auto derivation = DerivationOf(*Source(Decoder(), Requests(kFp8)));
  const model::Attachments& attachments = derivation->layout()->attachments();
  CHECK(attachments.size() == 2);
  CHECK(attachments.at("notes") == "n");
  const Json config = Json::parse(attachments.at("config.json"));
  CHECK(config["model_type"] == "qwen3");
  CHECK(config["quantization_config"]["modules_to_not_convert"] ==
        Json({"model.embed_tokens", "model.layers.0.mlp.gate", "model.layers.2.mlp.up_proj",
              "visual.blocks.layers.0.fc", "lm_head"}));
}

TEST_CASE("Modules are left out by their exact names, with all that is in them") {
  const auto left_out = [](std::string_view names) {
    return DerivationOf(*Source(
        Decoder(),
        Requests(Cat(
            R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "modules_to_not_convert": )",
            names, "}"))));
  };
  CHECK(Has(*left_out(R"(["mlp.up_proj", "q_proj", "model.layers.0.self_attn.q"])")->layout(),
            "model.layers.0.self_attn.q_proj.weight_scale_inv"));
  const auto without = left_out(R"(["model.layers.0.self_attn"])");
  CHECK_FALSE(Has(*without->layout(), "model.layers.0.self_attn.k_proj.weight_scale_inv"));
  CHECK(Has(*without->layout(), "model.layers.0.mlp.gate_proj.weight_scale_inv"));
}

TEST_CASE("The parts of a derivation write each byte once, and what the kernels make of whole tensors") {
  const std::string quantization_config = GENERATE(std::string(kFp8), kUe8m0, kMxfp8, kNvfp4, kTensor, kChannel);
  INFO(quantization_config);
  std::vector<TensorMeta> tensors = Decoder();
  tensors[1].shape = {3 * 128 * 100, 64};  // several bands
  const auto source = Source(std::move(tensors), Requests(quantization_config));
  const auto derivation = DerivationOf(*source);
  std::vector<ByteRange> targets;
  for (size_t part = 0; part < derivation->part_count(); ++part) {
    for (const ByteRange& range : derivation->TargetsOf(part)) targets.push_back(range);
  }
  std::sort(targets.begin(), targets.end());
  uint64_t end = 0;
  for (const ByteRange& range : targets) {
    CHECK(range.offset == end);
    end = range.end();
  }
  CHECK(end == derivation->layout()->data_bytes());

  Bytes data = RandomWeights(source->data_bytes());
  // The largest magnitude is in a band in the middle.
  constexpr uint16_t kFive = 0x40a0;
  const TensorMeta& q = Find(*source, "model.layers.0.self_attn.q_proj.weight");
  std::memcpy(data.data() + q.offset + q.shape[0] * q.shape[1], &kFive, sizeof kFive);
  const Bytes made = MakeAll(*derivation, data);
  const auto bytes_of = [&](std::string_view name) {
    return ByteView(made).subspan(Find(*derivation->layout(), name).offset);
  };
  const TensorMeta& k = Find(*source, "model.layers.0.self_attn.k_proj.weight");
  const kernels::FloatRows rows{data.data() + q.offset, kernels::FloatType::kBF16, q.shape[0], q.shape[1]};
  const kernels::FloatRows other{data.data() + k.offset, kernels::FloatType::kBF16, k.shape[0], k.shape[1]};
  const Format& format = **FindFormat(Json::parse(quantization_config));
  const float global = format.encoding->global == nullptr
                           ? 0
                           : format.encoding->global(std::max(kernels::AbsMax(rows), kernels::AbsMax(other)));
  Bytes values(rows.rows * rows.columns);
  Bytes scales(rows.rows * rows.columns / 4 + 4096);
  format.encoding->quantise(rows, global, values.data(), scales.data());
  values.resize(values.size() / format.encoding->values_in_byte);
  const std::string name = "model.layers.0.self_attn.q_proj.";
  CHECK(std::memcmp(bytes_of(Cat(name, format.values)).data(), values.data(), values.size()) == 0);
  if (!format.scales.empty()) {
    const TensorMeta& scale = Find(*derivation->layout(), Cat(name, format.scales));
    CHECK(std::memcmp(bytes_of(scale.name).data(), scales.data(), *model::TensorBytes(scale)) == 0);
  }
  if (!format.global.empty()) {
    for (const char* const part : {"q_proj.", "k_proj."}) {
      const ByteView its = bytes_of(Cat("model.layers.0.self_attn.", part, format.global));
      CHECK(std::memcmp(its.data(), &global, sizeof global) == 0);
    }
  }
  const TensorMeta& head = Find(*source, "lm_head.weight");
  CHECK(std::memcmp(bytes_of(head.name).data(), data.data() + head.offset, *model::TensorBytes(head)) == 0);
}

TEST_CASE("A part whose source cannot be read ends with that error") {
  const auto derivation = DerivationOf(*Source(Decoder(), Requests(GENERATE(std::string(kFp8), kNvfp4))));
  Bytes made(derivation->layout()->data_bytes());
  const auto read = [](const ByteRange&, std::byte*) { return Status(ErrorCode::kState, "gone"); };
  for (size_t part = 0; part < derivation->part_count(); ++part) {
    CHECK_THAT(derivation->Make(part, read, In(made)), FailsWith(ErrorCode::kState, "gone"));
  }
}

TEST_CASE("A request that cannot be met is refused by the name of the model") {
  const auto error_of = [](std::string_view requests, std::vector<TensorMeta> tensors = Decoder()) {
    return Derivation::All(*Source(std::move(tensors), requests)).status();
  };
  const auto with = [](std::string_view quantization_config) { return Requests(quantization_config); };
  CHECK_THAT(error_of("[]"), FailsWith(ErrorCode::kBadData, "give an object of 1 to 8 names of models"));
  CHECK_THAT(error_of("{}"), FailsWith(ErrorCode::kBadData, "give an object of 1 to 8 names of models"));
  CHECK_THAT(error_of(R"({"a/b": {}})"), FailsWith(ErrorCode::kBadData, "derived model a/b: "));
  CHECK_THAT(error_of(R"({"q": 1})"), FailsWith(ErrorCode::kBadData, "derived model q: its config.json is no object"));
  CHECK_THAT(error_of(R"({"q": {}})"), FailsWith(ErrorCode::kBadData, "derived model q: its config.json has no"));
  CHECK_THAT(error_of(with(R"({"quant_method": "awq"})")),
             FailsWith(ErrorCode::kBadData, "is of none of the formats fp8-block, fp8-block-ue8m0, "));
  CHECK_THAT(error_of(with(R"({"quant_method": "fp8", "weight_block_size": [64, 128]})")),
             FailsWith(ErrorCode::kBadData, "is of none of the formats"));
  for (const char* const names : {R"(["re:.*gate"])", R"(["*"])", "[1]", R"([""])"}) {
    CHECK_THAT(error_of(with(Cat(R"({"quant_method": "mxfp8", "ignored_layers": )", names, "}"))),
               FailsWith(ErrorCode::kBadData, "give exact names of modules"));
  }
  CHECK_THAT(error_of(with(R"({"quant_method": "mxfp8", "ignored_layers": "lm_head"})")),
             FailsWith(ErrorCode::kBadData, "is no array"));
  CHECK_THAT(
      error_of(with(kMxfp8), {{"model.layers.0.a.weight", DType::kBF16, {2, 33}}}),
      FailsWith(ErrorCode::kBadData, "tensor model.layers.0.a.weight has 33 columns; mxfp8 needs a multiple of 32"));
  CHECK_THAT(
      error_of(with(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                                "modules_to_not_convert": ["model.layers.0.self_attn.k_proj"]})")),
      FailsWith(ErrorCode::kBadData, "of model.layers.0.self_attn.q_proj.weight and ", "leave out both, or none"));
  CHECK_THAT(error_of(with(kFp8), {{"model.layers.0.mlp.experts.gate_up_proj", DType::kBF16, {4, 2, 32}}}),
             FailsWith(ErrorCode::kBadData, "has the experts of a layer in one"));
  CHECK_THAT(error_of(with(kFp8), {{"model.layers.0.mlp.up_proj.weight", DType::kF8E4M3, {2, 32}}}),
             FailsWith(ErrorCode::kBadData, "tensor model.layers.0.mlp.up_proj.weight is F8_E4M3"));
  CHECK_THAT(error_of(with(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": []})")),
             FailsWith(ErrorCode::kBadData, "is of none of the formats"));
  // Activations with static scales need a calibration.
  CHECK_THAT(error_of(with(R"({"quant_method": "fp8", "activation_scheme": "static"})")),
             FailsWith(ErrorCode::kBadData, "is of none of the formats"));
  CHECK_THAT(error_of(with(kFp8), {{"encoder.weight", DType::kBF16, {2, 32}}}),
             FailsWith(ErrorCode::kBadData, "no tensor of the model is a weight of its decoder's linear layers"));
  std::vector<TensorMeta> taken = Decoder();
  taken.push_back({"model.layers.0.self_attn.q_proj.weight_scale_inv", DType::kF32, {1}});
  CHECK_THAT(error_of(with(kFp8), taken),
             FailsWith(ErrorCode::kBadData, "model.layers.0.self_attn.q_proj.weight_scale_inv"));
}

TEST_CASE("A model without requests has no derivations") {
  std::vector<TensorMeta> tensors = Decoder();
  REQUIRE(model::AssignOffsets(tensors).ok());
  const auto all = Derivation::All(**ModelLayout::Create(std::move(tensors)));
  REQUIRE(all.ok());
  CHECK(all->empty());
}

}  // namespace
}  // namespace lockstep::derive
