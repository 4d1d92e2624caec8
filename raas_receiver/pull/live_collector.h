// LiveCollector: the delta in the making, as it comes in over all lanes of a live subscription.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "common/wire/frame.h"
#include "raas_receiver/pull/live_lanes.h"

namespace lockstep::pull {

// Thread-safe.
class LiveCollector {
 public:
  // What lanes are to ask for. Requests are numbered from 1, so that what comes for an earlier one is dropped; number
  // 0: there was none yet.
  struct Request {
    uint64_t number = 0;
    Version base = 0;
  };

  LiveCollector(std::shared_ptr<const model::ModelLayout> layout, size_t lanes)
      : layout_(std::move(layout)), lanes_(lanes) {}

  // --- the session's thread ---
  // Begins the next request, for the delta from `base` on, with nothing collected.
  void Begin(Version base);
  Result<LiveLanes::Delta> Take(std::chrono::milliseconds patience);
  void Cancel();
  Status status() const;
  uint64_t bytes() const;
  void WaitForLanes();  // until all have left

  // --- lanes ---
  Request request() const;
  // Whether a block frame of this lane's share may come, before its payload is read. kProtocol names the rule broken.
  Status Admit(const wire::FrameHeader& frame, uint32_t share);
  void Add(uint64_t number, payload::DeltaBlock block);
  // The lane's share of the delta to `target` is whole.
  Status EndShare(uint64_t number, Version target);
  // The agent will not answer; the lane lives on.
  void Refuse(uint64_t number, Status why);
  // The lane is gone, and with it the subscription.
  void Leave(Status why);

 private:
  Status AgreeOnTarget(Version target);

  const std::shared_ptr<const model::ModelLayout> layout_;
  const size_t lanes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t number_ = 0;
  LiveLanes::Delta delta_;
  std::vector<bool> announced_;  // by block: admitted
  uint64_t bytes_ = 0;           // admitted
  size_t left_ = 0;              // lanes
  size_t answered_ = 0;          // shares that are whole or were refused
  uint64_t progress_ = 0;
  Status refusal_;
  Status failure_;
  bool cancelled_ = false;
};

}  // namespace lockstep::pull
