// InPlace: a model that the trainer's process writes into shared memory itself, as whole tensors or as ranges that it
// has filled. Streams of tensors are published this way.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "export_plugin/client/rank_client.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/lockstep.h"

namespace lockstep::abi {

// Not thread-safe. Errors as lockstep.h says of the functions of the same names.
class InPlace {
 public:
  // `names`: of the layout's tensors in the caller's order. `threads` that copy; 0: the usual number.
  static Result<std::unique_ptr<InPlace>> Open(client::RankOptions options, std::vector<std::string> names,
                                               uint32_t threads);

  Result<std::byte*> Begin(Version version);
  Status Write(std::span<const lockstep_source> sources);
  Status RangesDone(std::span<const lockstep_range> ranges);
  Status Commit(std::string_view label);
  Status Abort(Version version, std::string_view reason);
  void Leave() { client_->Leave(); }

  const client::RankClient& client() const { return *client_; }
  const exporter::PublishStats& stats() const { return stats_; }

 private:
  class Copies;
  struct WrittenRanges {
    std::vector<StridedRange> ranges;
    uint64_t bytes = 0;
  };
  struct Tensor {
    std::string name;
    ByteRange range;  // of the data section
    model::DType dtype = {};
  };

  Status CheckWriting() const;
  Status CheckSource(const lockstep_source& source) const;
  Status Report(uint64_t least_bytes);
  void PinForGpu(const void* source, std::span<std::byte> target);

  std::vector<Tensor> tensors_;  // in the caller's order
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<exporter::CopyEngine> engine_;  // uses the pool
  std::unique_ptr<client::RankClient> client_;
  std::unordered_map<const std::byte*, exporter::PinnedMemory> pinned_;  // by where in a slot
  bool pins_ = true;                                                     // until pinning fails
  WrittenRanges unreported_;                                             // is in place
  Version version_ = 0;                                                  // that was begun last
  std::chrono::steady_clock::time_point began_;
  exporter::PublishStats stats_;
};

}  // namespace lockstep::abi
