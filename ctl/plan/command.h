// `lockstepctl plan`, which asks no daemon, but a trainer's shape or the descriptions of one that ran.
#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "ctl/output/output.h"
#include "export_plugin/plan/shard_description.h"

namespace CLI {
class App;
}

namespace lockstep::ctl {

struct PlanOptions {
  std::string config;        // a config.json or the directory that has one; empty: `descriptions` says all
  std::string descriptions;  // directory of rank-00000.json, rank-00001.json, ...
  bool shape_given = false;  // one of those below up to fused_norms
  rules::Topology topology;
  uint32_t ranks_per_host = 0;  // 0: all ranks are on the agent's host
  bool fused_norms = false;
  uint64_t bucket_bytes = uint64_t{512} << 20;
  std::optional<uint32_t> rank;    // list the copies of this one; nothing: a summary
  std::string write_descriptions;  // directory to write the descriptions to
  bool by_host = false;            // say what each host's part is
  std::string derive;              // config.json of a model to derive; empty: none
};

// REQUIRES options to outlive `command`.
void AddPlanOptions(CLI::App& command, PlanOptions& options);

// Gives what was left out its value: Megatron's defaults, the smallest world. kUsage when it is not one of --config and
// --descriptions, or a shape comes with descriptions.
Status FinishPlanOptions(PlanOptions& options);

// Compiles the plan and prints it. kBadData for a configuration, topology or description that is wrong, kNotFound and
// kIo for a file that cannot be read, naming it; kUsage for a rank that there is not.
Status Run(const PlanOptions& options, const Output& output);

}  // namespace lockstep::ctl
