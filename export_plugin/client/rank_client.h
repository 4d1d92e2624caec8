// RankClient: one rank's side of the rank protocol. It runs inside the trainer's process: no threads, no exceptions.
//
// A client survives its agent. It remembers what it reported of the last version. The call that notices a lost
// connection reconnects, returns the segments, and repeats BEGIN, BATCHES, UNCHANGED and COMMIT where the new agent
// lacks them. The bytes themselves are in the shared slots, which outlive the agent and are the same memory for this
// object's whole life: what a rank has written into a slot is there until a rank writes over it, whatever became of the
// version.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/label.h"
#include "common/model/layout.h"
#include "common/os/own_process.h"
#include "common/os/segment.h"
#include "common/os/unix_socket.h"
#include "common/wire/rank_messages.h"

namespace lockstep::client {

struct RankOptions {
  std::string socket_path;
  std::string model;
  std::shared_ptr<const model::ModelLayout> layout;
  uint32_t rank = 0;
  uint32_t ranks = 1;
  wire::Share share;  // what this rank writes of every version
  RunId run;          // zero: a new run
  std::string guard;  // that every version is to keep (trainer_agent/run/guard.h); empty: none
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds reconnect_timeout{60'000};
  std::chrono::milliseconds call_timeout{600'000};
  // How often the call under way was interrupted, which ends it as a passed call_timeout does; only a second time ends
  // the wait for COMMIT's answer. Never falls before the call has returned.
  std::function<int()> interrupted;
};

// Not thread-safe. A process that is forked off has no part in the connection: every call is kState there. Closing the
// connection (destruction) while a version is being written aborts that version.
class RankClient {
 public:
  ~RankClient() { Disconnect(); }

  static Result<std::unique_ptr<RankClient>> Open(RankOptions options);

  // The data section of the slot to fill. Errors as lockstep_begin (export_plugin/lockstep.h).
  Result<std::byte*> Begin(Version version);
  // Reports the bytes of these batches of the share as final. Batches that together are smaller than any block wait for
  // later ones, at the latest for Commit(). kAborted after a reconnection: why the version will never be committed.
  // REQUIRES writing(), and the share to have the batches.
  Status BatchesDone(std::span<const uint32_t> batches);
  // Reports their bytes as final and equal to those of the other slot, the version before. The agent trusts that when
  // it has that version, and does not compare them; else it reads them like any others. REQUIRES as BatchesDone().
  Status Unchanged(std::span<const uint32_t> batches);
  // Sets the label that this rank gives the version (common/model/label.h); empty: this rank gives none. REQUIRES
  // writing().
  Status SetLabel(std::string_view label);
  // After kDeadline and kUnavailable the version may be committed or not. REQUIRES writing()
  Status Commit();
  // Aborts the version for all ranks; the others get `reason`. REQUIRES writing().
  Status Abort(std::string_view reason = {});

  // Ends the connection, and with it a version being written, as destruction does; the slots stay mapped as long as
  // this object lives. Every later call is kState.
  void Leave();

  // kState where every call is: after Leave(), and in a process that was forked off.
  Status CheckMayCall() const;
  bool writing() const { return reported_.version != 0 && !reported_.committed && reported_.aborted.ok(); }
  const RunId& run() const { return options_.run; }
  const wire::Share& share() const { return options_.share; }  // as it was opened
  // The newest that the agent had committed when it last answered: a version's last rank knows it at its own Commit(),
  // the others with their next one.
  Version committed_version() const { return newest_version_; }
  const model::ModelLayout& layout() const { return *options_.layout; }
  // The data section being filled. REQUIRES writing().
  std::byte* write_data() { return data(reported_.slot); }
  // The data section of the other slot, with what ranks wrote into it last. REQUIRES writing().
  const std::byte* other_data() { return data(1 - reported_.slot); }
  size_t slot() const { return reported_.slot; }  // that is being filled, 0 or 1. REQUIRES writing()
  // The data section of slot 0 or 1, at any time: an address to prepare. Only write_data() may be written.
  std::byte* data(size_t slot) { return segments_[1 + slot].data() + data_offset_; }

 private:
  // Batches that were reported in one way.
  struct Batches {
    std::vector<uint32_t> all;  // of the version: what is reported again after a reconnection
    size_t sent = 0;            // of `all`; the rest waits for others
    uint64_t waiting_bytes = 0;
  };
  // The last version that was begun, and what was reported of it.
  struct ReportedVersion {
    Version version = 0;
    Batches changed;
    Batches unchanged;
    bool commit_sent = false;  // and not answered
    bool committed = false;
    Status aborted;  // why it will never be committed; OK: it may be
    size_t slot = 0;
    std::string label;
  };

  explicit RankClient(RankOptions options) : options_(std::move(options)) {}

  void Disconnect();

  Status Connect(std::chrono::milliseconds timeout);
  Status SendOpen(std::chrono::milliseconds timeout);
  Status Opened(wire::RankMessage reply);
  Status MapSegments(const wire::OpenedBody& opened, std::vector<os::UniqueFd> fds);
  Status Reconnect();
  Status Pause() const;
  os::Interrupted Interrupted() const;
  Status Replay();
  // Sends and awaits the answer; on a lost connection reconnects, replays and sends again.
  Result<wire::RankMessage> Call(wire::RankMessageType type, ByteView body);
  Result<wire::RankMessage> CallOnce(wire::RankMessageType type, ByteView body);
  Result<wire::RankMessage> Exchange(wire::RankMessageType type, ByteView body);
  Status Done(const wire::RankMessage& reply);
  Status TryCommit();
  Bytes BeginBody(Version version) const;
  Bytes CommitBody() const;
  Status Report(wire::RankMessageType type, std::span<const uint32_t> batches, Batches& reported);
  // Sends what waits; reconnects, which sends everything again, when the connection is lost.
  Status SendWaiting(wire::RankMessageType type, Batches& reported);
  Status SendBatches(wire::RankMessageType type, Batches& reported);

  const os::OwnProcess process_;
  bool left_ = false;
  RankOptions options_;
  os::UnixConnection connection_;
  std::array<os::MappedSegment, 3> segments_;  // control, slot 0, slot 1
  uint64_t data_offset_ = 0;
  Version newest_version_ = 0;
  ReportedVersion reported_;
};

}  // namespace lockstep::client
