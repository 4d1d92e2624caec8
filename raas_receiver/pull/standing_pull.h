// StandingPull: a pull whose lanes bring the blocks of the next delta while the trainer still writes it
// (common/wire/FORMAT.md, "Streaming deltas").
//
// A standing pull only saves time. When a lane is lost, the receiver pulls the delta as any other, and opens a new
// standing pull. The lanes may be idle for hours between versions; the system's keepalive finds peers that are gone.
#pragma once

#include <chrono>
#include <vector>

#include "common/base/mutex.h"
#include "common/net/io_threads.h"
#include "raas_receiver/pull/lane_set.h"

namespace lockstep::pull {

// Used by the session's thread; Cancel may be called from any.
class StandingPull : private BlockSink {
 public:
  struct Delta {
    Version base = 0;
    Version target = 0;
    std::vector<payload::DeltaBlock> blocks;
    uint64_t bytes = 0;                           // of the blocks' coded data
    std::chrono::steady_clock::time_point begun;  // when the first block was here
    std::chrono::steady_clock::time_point ended;  // and the last one
  };

  // REQUIRES at least one ticket; `io` outlives this.
  StandingPull(net::IoThreads& io, LanePeer peer);

  // Asks every lane for its share of the delta from `base` on, and discards blocks that came before. Does not wait.
  // REQUIRES Take() to have ended the delta that was asked for before, and no lane to be lost.
  void Ask(Version base);
  // Waits for the delta that was asked for and returns all of its blocks, each once and with its hashes; their bytes
  // are at most the model's. kDeadline: nothing came for `patience`; Take() may be called again. kAborted: the version
  // was aborted. kState: the agent has another newest version. After kAborted and kState, Ask() may be called again.
  // After any other error this pull is of no more use.
  Result<Delta> Take(std::chrono::milliseconds patience);
  // Why a lane was lost, the first one; OK: none was.
  Status lost() const { return lanes_.lost(); }
  // Makes Take fail soon with kCancelled.
  void Cancel() { lanes_.Cancel(); }

 private:
  std::span<std::byte> Destination(const wire::FrameHeader&) override { return {}; }
  Status Put(const wire::FrameHeader& frame, ByteView payload) override;
  Status EndShare(Version target) override;
  Status AgreeOnTarget(Version target) LS_REQUIRES(mutex_);

  const std::shared_ptr<const model::ModelLayout> layout_;
  const uint32_t shares_;
  Mutex mutex_;
  Delta delta_ LS_GUARDED_BY(mutex_);
  std::vector<bool> here_ LS_GUARDED_BY(mutex_);  // by block
  LaneSet lanes_;                                 // last: its threads use the others
};

}  // namespace lockstep::pull
