// The local path of one pull: on the agent's host, blocks and deltas are copied out of its memory instead of travelling
// on lanes (common/wire/FORMAT.md, "The local path").
//
// A failure of this source does not fail the pull, which asks the next source for the rest. The source copies a block
// into our own memory before it checks the hash, because the trainer may write into the agent's memory at any moment.
// It reads files and never maps them, so that a truncation cannot hurt us.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/os/unix_socket.h"
#include "common/payload/payload.h"
#include "common/wire/local.h"
#include "raas_receiver/pull/block_source.h"

namespace lockstep::pull {

struct LocalOptions {
  std::string path;  // the agent's socket, as its plan names it
  uint64_t pull_id = 0;
  Ticket ticket;
  std::shared_ptr<const model::ModelLayout> layout;
  std::chrono::milliseconds connect_timeout{1'000};
  std::chrono::milliseconds answer_timeout{5'000};
  std::chrono::milliseconds alive_interval{10'000};  // how often the agent is shown that a copy runs
  // Called once, when the connection breaks, but not after Cancel; by the thread that fetches.
  std::function<void(const Status& why)> on_failed = [](const Status&) {};
};

class LocalSource final : public BlockSource {
 public:
  // kUnavailable when no agent is there: the agent is on another host, or its socket not in our sight. `pool` copies,
  // and outlives the source.
  static Result<std::unique_ptr<LocalSource>> Connect(LocalOptions options, WorkerPool& pool);

  std::string_view name() const override { return "memory"; }
  // Copies the newest version that is good enough, and what the trainer overwrites meanwhile from the one after it.
  Status FetchBlocks(const FullRequest& request, BlockSink& sink) override;
  // Reads each payload whole.
  Status FetchDeltas(const DeltaRequest& request, DeltaSink& sink) override;
  void Cancel() override;
  SourceCounters counters() const override;

  // Why the connection broke; every later fetch returns that. OK while the connection works.
  const Status& status() const { return status_; }

 private:
  // The memory of a version, and what each of its blocks hashes to.
  struct Slot {
    os::UniqueFd file;
    uint64_t offset = 0;
    Version version = 0;
    std::vector<uint64_t> hashes;
  };
  struct Answer {
    wire::LocalAnswer head;
    os::UniqueFd file;
    Bytes tail;
  };

  LocalSource(LocalOptions options, WorkerPool& pool, os::UnixConnection connection);

  Status Open();
  Status Fail(const Status& why);
  Result<Slot> OpenSlot(Version version);
  Result<Answer> Ask(wire::LocalRequest request);
  Result<Answer> ReceiveAnswer(wire::LocalKind kind);
  std::vector<BlockIndex> CopyFrom(const Slot& slot, const std::vector<BlockIndex>& blocks, BlockSink& sink);
  bool CopyBlock(const Slot& slot, BlockIndex block, BlockSink& sink);
  void StayAlive();
  Result<std::shared_ptr<const payload::Payload>> ReadPayload(const DeltaStep& step);
  Result<std::shared_ptr<std::byte[]>> ReadFile(const Answer& answer);

  const LocalOptions options_;
  WorkerPool& pool_;
  os::UnixConnection connection_;
  Status status_;
  std::chrono::steady_clock::time_point last_word_ = std::chrono::steady_clock::now();
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> copied_bytes_ = 0;
};

}  // namespace lockstep::pull
