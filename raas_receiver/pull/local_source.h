// The local path of one pull: on the agent's host, blocks and deltas are copied out of its memory instead of travelling
// on lanes (common/wire/FORMAT.md, "The local path").
//
// Whatever fails here is no error of the pull: the caller asks lanes for what it did not get. Nothing is believed
// before its hash was checked in our own memory: the trainer may write into what we read at any moment, and files are
// read, never mapped, so that nobody's truncation can hurt us.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/os/unix_socket.h"
#include "common/payload/payload.h"
#include "common/wire/local.h"
#include "raas_receiver/pull/run_board.h"

namespace lockstep {

struct LocalOptions {
  std::string path;  // the agent's socket, as its plan names it
  uint64_t pull_id = 0;
  Ticket ticket;
  std::shared_ptr<const ModelLayout> layout;
  std::chrono::milliseconds connect_timeout{1'000};
  std::chrono::milliseconds answer_timeout{5'000};
  std::chrono::milliseconds alive_interval{10'000};  // the agent hears of us so often
};

// One thread uses it; Cancel may be called from any.
class LocalSource {
 public:
  // kUnavailable when nobody is there: the agent is on another host, or its socket not in our sight. Any error: use
  // lanes. `pool` copies, and outlives the source.
  static Result<std::unique_ptr<LocalSource>> Connect(LocalOptions options, WorkerPool& pool);

  // Copies `blocks` in full into `sink`, of `version` when `exact`, else of that one or any newer: the newest that is
  // there. Answers those that it could not. REQUIRES a sink with a destination for every block.
  std::vector<BlockIndex> CopyBlocks(std::vector<BlockIndex> blocks, Version version, bool exact, BlockSink& sink);

  // The delta payload of `bytes` bytes, whole and with every hash checked. Any error: use lanes.
  Result<std::shared_ptr<const Payload>> ReadPayload(uint64_t payload_id, uint64_t bytes);

  // Makes the running and every later call give up soon.
  void Cancel();

  uint64_t copied_bytes() const { return copied_bytes_; }  // of blocks and of deltas' data
  // What broke the connection, and why it is of no more use; OK as long as it is.
  const Status& status() const { return status_; }

 private:
  // The memory of a version, and what each of its blocks hashes to.
  struct Half {
    UniqueFd file;
    uint64_t offset = 0;
    Version version = 0;
    std::vector<uint64_t> hashes;
  };
  struct Answer {
    LocalAnswer head;
    UniqueFd file;
    Bytes tail;
  };

  LocalSource(LocalOptions options, WorkerPool& pool, UnixConnection connection);

  Status Open();
  Result<Half> OpenHalf(Version version);
  Result<Answer> Ask(LocalRequest request);
  Result<Answer> ReceiveAnswer(LocalKind kind);
  std::vector<BlockIndex> CopyFrom(const Half& half, const std::vector<BlockIndex>& blocks, BlockSink& sink);
  bool CopyBlock(const Half& half, BlockIndex block, BlockSink& sink);
  void StayAlive();

  const LocalOptions options_;
  WorkerPool& pool_;
  UnixConnection connection_;
  Status status_;
  std::chrono::steady_clock::time_point last_word_ = std::chrono::steady_clock::now();
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> copied_bytes_ = 0;
};

}  // namespace lockstep
