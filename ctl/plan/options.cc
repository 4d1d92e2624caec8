#include <CLI/CLI.hpp>
#include <numeric>

#include "common/base/text.h"
#include "ctl/plan/command.h"

namespace lockstep::ctl {
namespace {

constexpr uint64_t kMinBucketBytes = uint64_t{1} << 20;  // as the exporter's

constexpr char kShapeGroup[] = "A trainer's shape, with --config";

// Adds the options of a trainer's shape, and notes that one was given: descriptions say where their ranks stand.
class ShapeOptions {
 public:
  ShapeOptions(CLI::App& command, bool& given) : command_(command), given_(given) {}

  void Number(const char* names, uint32_t& value, const char* about) {
    Note(*command_.add_option(names, value, about)
              ->type_name("N")
              ->check(CLI::Range(1U, rules::kMaxWorld).description("")));
  }
  void Text(const char* name, std::string& value, const char* about) { Note(*command_.add_option(name, value, about)); }
  void Flag(const char* name, bool& value, const char* about) { Note(*command_.add_flag(name, value, about)); }

 private:
  void Note(CLI::Option& option) {
    option.group(kShapeGroup)->each([&given = given_](const std::string&) { given = true; });
  }

  CLI::App& command_;
  bool& given_;
};

void AddShapeOptions(CLI::App& command, PlanOptions& options) {
  ShapeOptions shape(command, options.shape_given);
  rules::Topology& topology = options.topology;
  topology.world = 0;
  topology.expert_tensor = 0;
  shape.Number("--tensor-parallel-size,--tp", topology.tensor, "[1]");
  shape.Number("--pipeline-parallel-size,--pp", topology.pipeline, "[1]");
  shape.Number("--virtual-pipeline-parallel-size,--vpp", topology.virtual_pipeline, "Model chunks of each rank [1]");
  shape.Number("--context-parallel-size,--cp", topology.context, "[1]");
  shape.Number("--expert-parallel-size,--ep", topology.expert, "[1]");
  shape.Number("--expert-tensor-parallel-size,--etp", topology.expert_tensor, "[--tensor-parallel-size]");
  shape.Number("--world-size", topology.world, "Ranks [as few as the sizes allow]");
  shape.Number("--first-stage-layers", topology.first_stage_layers, "Layers of the first pipeline stage");
  shape.Number("--last-stage-layers", topology.last_stage_layers, "Layers of the last pipeline stage");
  shape.Text("--pipeline-layout", topology.pipeline_layout, "Megatron's layout string, like Et*3|t*4|t*2L");
  shape.Flag("--embedding-in-split", topology.embedding_in_split, "The embedding counts as a layer of the first stage");
  shape.Flag("--loss-in-split", topology.loss_in_split, "The loss counts as a layer of the last stage");
  shape.Number("--make-vocab-size-divisible-by", topology.vocabulary_divisible_by, "[128]");
  shape.Flag("--fused-norms", options.fused_norms, "Names as of Transformer Engine's layers");
  shape.Number("--ranks-per-host", options.ranks_per_host, "The first so many ranks are on the agent's host [all]");
}

}  // namespace

void AddPlanOptions(CLI::App& command, PlanOptions& options) {
  command.add_option("--config", options.config, "The model's config.json, or its directory")->type_name("PATH");
  command
      .add_option("--descriptions", options.descriptions, "Instead: the ranks' descriptions, rank-00000.json and so on")
      ->type_name("DIR");
  command.add_option("--rank", options.rank, "List this rank's copies")->type_name("N");
  command.add_option("--bucket-bytes", options.bucket_bytes, "Memory for the exchange between hosts [512 MiB]")
      ->type_name("BYTES")
      ->check(CLI::Range(kMinBucketBytes, uint64_t{1} << 40).description(""));
  command.add_option("--write-descriptions", options.write_descriptions, "Write the ranks' descriptions there, too")
      ->type_name("DIR");
  command.add_flag("--by-host", options.by_host, "Say what each host's agent has, of --ranks-per-host ranks each");
  command.add_option("--derive", options.derive, "Say what a derived model with this config.json needs, too")
      ->type_name("PATH");
  AddShapeOptions(command, options);
}

Status FinishPlanOptions(PlanOptions& options) {
  if (options.config.empty() == options.descriptions.empty()) {
    return {ErrorCode::kUsage, "plan needs either --config PATH or --descriptions DIR (see plan --help)"};
  }
  if (!options.descriptions.empty() && options.shape_given) {
    return {ErrorCode::kUsage, "--descriptions say where their ranks stand: leave the trainer's shape out"};
  }
  if (options.by_host && (options.ranks_per_host == 0 || !options.descriptions.empty())) {
    return {ErrorCode::kUsage, "--by-host needs --config and --ranks-per-host"};
  }
  rules::Topology& topology = options.topology;
  if (topology.expert_tensor == 0) topology.expert_tensor = topology.tensor;
  if (topology.world != 0) return OkStatus();
  const uint64_t dense = uint64_t{topology.tensor} * topology.context;
  const uint64_t sparse = uint64_t{topology.expert_tensor} * topology.expert;
  const bool countable =
      dense <= rules::kMaxWorld && sparse <= rules::kMaxWorld;  // else their common multiple may overflow
  const uint64_t ranks_of_stage = countable ? std::lcm(dense, sparse) : rules::kMaxWorld + uint64_t{1};
  if (ranks_of_stage > rules::kMaxWorld / topology.pipeline) {
    return {ErrorCode::kUsage, Cat("the parallel sizes make more than ", rules::kMaxWorld, " ranks")};
  }
  topology.world = static_cast<uint32_t>(ranks_of_stage * topology.pipeline);
  return OkStatus();
}

}  // namespace lockstep::ctl
