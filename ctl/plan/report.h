// A compiled plan for people and for scripts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/layout/copy_plan.h"
#include "common/layout/strided_copy.h"
#include "ctl/output/json.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::ctl {

class PlanReport {
 public:
  // Compiles the plan of `descriptions`. kBadData as BuildTrainingModel and CompileExport.
  static Result<PlanReport> Create(std::vector<plan::ShardDescription> descriptions, uint64_t bucket_bytes);

  size_t ranks() const { return descriptions_.size(); }

  // What one host's agent has of a model in parts, and what of that ranks of other hosts send there.
  struct Host {
    size_t tensors = 0;
    uint64_t bytes = 0;
    uint64_t bytes_received = 0;
  };
  // By host, of `ranks_per_host` ranks each. kBadData as HostOfTensors.
  Result<std::vector<Host>> ByHost(uint32_t ranks_per_host) const;
  // [{"host", "tensors", "bytes", "bytes_received"}]
  static Json HostsJson(const std::vector<Host>& hosts);
  static std::string HostsText(const std::vector<Host>& hosts);
  const std::vector<model::TensorMeta>& tensors() const { return model_.tensors; }

  // {"digest", "bytes", "frozen_bytes", "tensors", "copies", "buckets", "largest_group": {"first", "tensors", "bytes"}
  // or null,
  //  "ranks": [{"rank", "on_agent_host", "tensors", "bytes_written", "bytes_sent", "copies", "buckets"}]}
  Json Summary() const;
  std::string SummaryText() const;

  // {"digest", "rank", "on_agent_host", "bytes", "entries": [{"tensor", "local_tensor", "pieces": [{"local", "global",
  //  "size", "copies": [{"source_offset", "target_offset", "rows", "row_bytes", "source_pitch", "target_pitch"}]}]}]}
  // Source offsets count from the local tensor, target offsets from the data section. REQUIRES rank < ranks().
  Json OfRank(uint32_t rank) const;
  std::string TextOfRank(uint32_t rank) const;

 private:
  // A box of a local tensor and the copies that bring it to its place.
  struct Move {
    const layout::PlanEntry* entry = nullptr;
    const layout::Piece* piece = nullptr;
    std::string local_name;
    std::vector<layout::StridedCopy> copies;
  };
  struct Figures {
    size_t tensors = 0;
    uint64_t bytes = 0;
    size_t copies = 0;
    size_t buckets = 0;  // none on the agent's host
  };
  // Tensors that stay in one bucket.
  struct Group {
    uint32_t first = 0;  // tensor
    size_t tensors = 0;
    uint64_t bytes = 0;
  };

  PlanReport() = default;

  std::vector<Move> MovesOf(uint32_t rank) const;
  Figures FiguresOf(uint32_t rank) const;
  size_t BucketsOf(uint32_t rank) const;
  std::optional<Group> LargestGroup() const;
  uint64_t FrozenBytes() const;

  std::vector<plan::ShardDescription> descriptions_;
  layout::TrainingModel model_;
  layout::CopyPlan plan_;
  std::vector<size_t> first_holding_;  // of each rank
  uint64_t message_bytes_ = 0;
  std::vector<Figures> figures_;  // by rank
  size_t copies_ = 0;             // of all ranks
  size_t buckets_ = 0;
};

}  // namespace lockstep::ctl
