// What a trainer's rank says it holds (export_plugin/plan/shard_description.h), and the model and the plan that are
// made of it.
#include "export_plugin/plan/shard_description.h"

#include <algorithm>

#include "common/layout/copy_plan.h"
#include "export_plugin/rules/model_config.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr char kFormat[] = "export_plugin/plan/FORMAT.md";
constexpr uint64_t kMostTensors = 4096;  // of a configuration: a few bytes may name a million

bool NamesManyTensors(const plan::PartDescription& part) {
  const auto* megatron = std::get_if<plan::MegatronDescription>(&part);
  if (megatron == nullptr) return false;
  const auto config = rules::ParseModelConfig(megatron->config);
  if (!config.ok()) return false;
  return (config->layers + config->mtp_layers) * (config->experts + 1) > kMostTensors;
}

uint64_t TensorBytes(const layout::TrainingModel& model) {
  uint64_t bytes = 0;
  for (const model::TensorMeta& tensor : model.tensors) bytes += *model::TensorBytes(tensor);
  return bytes;
}

// A plan of `descriptions`, if they give one, writes every byte of the model once.
void TestPlan(const std::vector<plan::ShardDescription>& descriptions) {
  const auto model = plan::BuildTrainingModel(descriptions);
  if (!model.ok()) return CheckRefusal(model.status(), {ErrorCode::kBadData});
  const auto compiled = layout::CompileExport(*model, plan::OnAgentHost(descriptions));
  if (!compiled.ok()) return CheckRefusal(compiled.status(), {ErrorCode::kBadData});
  LS_FUZZ_RULE(compiled->bytes == TensorBytes(*model));
  LS_FUZZ_RULE(compiled->ranks.size() == descriptions.size());
}

Bytes Block(std::string_view kind, std::string_view name) {
  return Copy(AsBytes(std::string_view(DocumentBlock(kFormat, kind, name))));
}

const plan::ShardDescription& OtherRank() {
  static const plan::ShardDescription description = *plan::ParseDescription(DocumentBlock(kFormat, "json", "rank 1"));
  return description;
}

Steps StepsOf(const plan::ShardDescription& description) {
  const auto* tensors = std::get_if<std::vector<plan::TensorDescription>>(&description.parts[0]);
  if (tensors == nullptr || tensors->size() != 2) return {};
  return {(*tensors)[0].name != "experts", (*tensors)[1].name != "b"};
}

}  // namespace

std::vector<Bytes> Seeds() {
  const std::string_view whole =
      R"({"format":1,"on_agent_host":true,"parts":[{"kind":"tensors","tensors":[)"
      R"({"name":"experts","dtype":"F32","shape":[2,3,4],"local_shape":[2,3,4],"frozen":false,)"
      R"("boxes":[{"local":[0,0,0],"global":[0,0,0],"size":[2,3,4]}],)"
      R"("into":[{"name":"e.0","shape":[3,4],"from":[0,0,0]},{"name":"e.1","shape":[3,4],"from":[1,0,0]}]},)"
      R"({"name":"b","dtype":"BF16","shape":[],"local_shape":[],"boxes":[{"local":[],"global":[],"size":[]}]}]}]})";
  return {Block("json", "rank 0"), Block("json", "rank 1"), Copy(AsBytes(whole))};
}

void TestInput(ByteView input) {
  const auto description = plan::ParseDescription(AsText(input));
  if (!description.ok()) return CheckRefusal(description.status(), {ErrorCode::kBadData});
  const std::string json = plan::ToJson(*description);
  const auto again = plan::ParseDescription(json);
  LS_FUZZ_RULE(again.ok() && plan::ToJson(*again) == json);
  LS_FUZZ_RULE(plan::LocalsOf(*description).size() == plan::LocalsOf(*again).size());
  if (std::any_of(description->parts.begin(), description->parts.end(), NamesManyTensors)) return;
  TestPlan({*description});
  TestPlan({*description, OtherRank()});
  Accepted(input, StepsOf(*description));
}

}  // namespace lockstep::fuzz
