// InPlace: a model that the trainer's process writes into shared memory itself: whole tensors that it gives, or that it
// has filled in place. Streams of tensors are published this way.
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
  // `names`: of the layout's tensors in the caller's order; `owned`: positions of those that this rank writes.
  // `threads` that copy; 0: the usual number.
  static Result<std::unique_ptr<InPlace>> Open(client::RankOptions options, std::vector<std::string> names,
                                               std::span<const size_t> owned, uint32_t threads);

  Result<std::byte*> Begin(Version version);
  Status Write(std::span<const lockstep_source> sources);
  Status TensorsDone(std::span<const size_t> tensors);
  Status Commit(std::string_view label);
  Status Abort(Version version, std::string_view reason);
  void Leave() { client_->Leave(); }

  const client::RankClient& client() const { return *client_; }
  const exporter::PublishStats& stats() const { return stats_; }

 private:
  struct WrittenBatches {
    std::vector<uint32_t> batches;
    uint64_t bytes = 0;
  };
  struct Tensor {
    std::string name;
    ByteRange range;  // of the data section
    model::DType dtype = {};
    bool owned = false;
    uint32_t first_batch = 0;  // of the rank's share; one for each piece of an owned tensor
  };

  Status CheckWriting() const;
  Status CheckOwned(size_t tensor) const;
  Status CheckSource(const lockstep_source& source) const;
  Status Report(uint64_t least_bytes);
  void PinForGpu(const void* source, std::span<std::byte> target);

  std::vector<Tensor> tensors_;  // in the caller's order
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<exporter::CopyEngine> engine_;  // uses the pool
  std::unique_ptr<client::RankClient> client_;
  std::unordered_map<const std::byte*, exporter::PinnedMemory> pinned_;  // by where in a slot
  bool pins_ = true;                                                     // until pinning fails
  WrittenBatches unreported_;                                            // are in place
  Version version_ = 0;                                                  // that was begun last
  std::chrono::steady_clock::time_point began_;
  exporter::PublishStats stats_;
};

}  // namespace lockstep::abi
