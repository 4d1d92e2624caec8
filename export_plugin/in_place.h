// InPlace: a model whose bytes the trainer's process puts into shared memory itself, as whole tensors or as ranges that
// it has filled. Streams of tensors are published so.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/lockstep.h"
#include "trainer_agent/buffer/rank_client.h"

namespace lockstep::abi {

// Not thread-safe. Errors as lockstep.h says of the functions of the same names.
class InPlace {
 public:
  // `names`: of the layout's tensors in the caller's order. `threads` that copy; 0: the usual number.
  static Result<std::unique_ptr<InPlace>> Open(buffer::RankOptions options, std::vector<std::string> names,
                                               uint32_t threads);

  Result<std::byte*> Begin(Version version);
  Status Write(std::span<const lockstep_source> sources);
  Status RangesDone(std::span<const lockstep_range> ranges);
  Status Commit(std::string_view label);
  Status Abort(Version version, std::string_view reason);
  void Leave() { client_->Leave(); }

  const buffer::RankClient& client() const { return *client_; }
  const exporter::PublishStats& stats() const { return stats_; }

 private:
  class Batch;

  Status CheckWriting() const;
  Status CheckSource(const lockstep_source& source) const;

  std::vector<std::string> names_;
  std::vector<ByteRange> tensors_;  // in the order of names_
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<exporter::CopyEngine> engine_;  // uses the pool
  std::unique_ptr<buffer::RankClient> client_;
  Version version_ = 0;  // that was begun last
  std::chrono::steady_clock::time_point began_;
  exporter::PublishStats stats_;
};

}  // namespace lockstep::abi
