// LiveCollector: the delta in the making, as it comes in over all lanes of a live subscription.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "common/model/layout.h"
#include "common/payload/payload.h"
#include "common/wire/frame.h"

namespace lockstep::pull {

// Thread-safe.
class LiveCollector {
 public:
  struct Delta {
    Version base = 0;
    Version target = 0;
    std::vector<payload::DeltaBlock> blocks;
    uint64_t bytes = 0;                           // of the blocks' coded data
    std::chrono::steady_clock::time_point begun;  // when the first block was here
    std::chrono::steady_clock::time_point ended;  // and the last one
  };

  LiveCollector(std::shared_ptr<const model::ModelLayout> layout, size_t lanes)
      : layout_(std::move(layout)), lanes_(lanes) {}

  // --- the session's thread ---
  // Begins the next request, for the delta from `base` on, with nothing collected. REQUIRES what LiveLanes::Ask does.
  void Begin(Version base);
  // All blocks of the delta that was asked for, once every lane's share has ended; kDeadline when no block came and no
  // share ended for `patience`: nothing is being made. Blocks are checked as those of any delta: each in its share,
  // once, with its hashes, of one target, their bytes together at most the model's. kAborted: the version was aborted;
  // the lanes live on and may be asked again. kState: the agent has another newest version; they live on too. Any
  // other: the lanes are of no more use.
  Result<Delta> Take(std::chrono::milliseconds patience);
  // OK while the lanes may be asked.
  Status status() const;
  // Makes Take fail soon with kCancelled. Any thread.
  void Cancel();
  void WaitForLanes();  // until all have left

  // --- lanes ---
  // What lanes are to ask for. Requests are numbered from 1; number 0: there was none yet.
  struct Request {
    uint32_t number = 0;
    Version base = 0;
  };
  Request request() const;
  // Whether a block frame of this lane's share may come, before its payload is read. kProtocol names the rule broken.
  Status Admit(const wire::FrameHeader& frame, uint32_t share);
  void Add(payload::DeltaBlock block);
  // The lane's share of the delta to `target` is whole.
  Status EndShare(Version target);
  // The agent will not answer; the lane lives on.
  void Refuse(Status why);
  // The lane is gone, and with it the subscription.
  void Leave(Status why);

 private:
  Status AgreeOnTarget(Version target);
  void Progress();

  const std::shared_ptr<const model::ModelLayout> layout_;
  const size_t lanes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t number_ = 0;
  Delta delta_;                  // its bytes: admitted
  std::vector<bool> announced_;  // by block: admitted
  size_t left_ = 0;              // lanes
  size_t answered_ = 0;          // shares that are whole or were refused
  uint64_t progress_ = 0;
  Status refusal_;
  Status failure_;
  bool cancelled_ = false;
};

}  // namespace lockstep::pull
