// One lane of a live subscription, and what its lanes collect together.
#pragma once

#include <asio.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/wire/frame.h"
#include "raas_receiver/pull/frame_reader.h"
#include "raas_receiver/pull/live_lanes.h"

namespace lockstep {

// The delta that was asked for, as it comes in over all lanes. Thread-safe.
class LiveBasket {
 public:
  LiveBasket(std::shared_ptr<const ModelLayout> layout, size_t lanes) : layout_(std::move(layout)), lanes_(lanes) {}

  // --- the session's thread ---
  // Empties it for the delta from `base` on.
  void Begin(Version base);
  Result<LiveLanes::Delta> Take(std::chrono::milliseconds patience);
  void Cancel();
  Status status() const;
  uint64_t bytes() const;
  void WaitForLanes();  // until all have left

  // --- lanes ---
  // The question that is due: its number and base. Number 0: nothing was asked yet.
  std::pair<uint64_t, Version> question() const;
  // Whether a block frame of this lane's share may come, before its payload is read. kProtocol names the rule broken.
  Status Admit(const FrameHeader& frame, uint32_t share);
  void Add(uint64_t question, DeltaBlock block);
  // The lane's share of the delta to `target` is whole.
  Status EndShare(uint64_t question, Version target);
  // The agent will not answer; the lane lives on.
  void Refuse(uint64_t question, Status why);
  // The subscription is over: `why` it has to be opened anew.
  void Fail(Status why);
  // The lane is gone, and with it the subscription.
  void Leave(Status why);

 private:
  Status AgreeOnTarget(Version target);

  const std::shared_ptr<const ModelLayout> layout_;
  const size_t lanes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t question_ = 0;
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

// Everything but Wake and Stop runs on the lane's strand. Alive until its coroutines are done.
class LiveLanes::Lane : public std::enable_shared_from_this<LiveLanes::Lane> {
 public:
  Lane(IoThreads& io, std::shared_ptr<const LiveOptions> options, std::shared_ptr<LiveBasket> basket, uint32_t share);

  void Start();
  void Wake();  // there is a question
  void Stop();

 private:
  asio::awaitable<void> Run();
  asio::awaitable<Status> Open();
  asio::awaitable<Status> Serve();
  asio::awaitable<Status> Answer(uint64_t question, Version base);
  asio::awaitable<Status> ReceiveBlock(uint64_t question, const FrameHeader& frame);
  asio::awaitable<Status> ReceiveError(uint64_t question, const FrameHeader& frame);

  const std::shared_ptr<const LiveOptions> options_;
  const std::shared_ptr<LiveBasket> basket_;
  const uint32_t share_;
  asio::strand<asio::io_context::executor_type> strand_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer wake_;
  std::optional<FrameReader> reader_;
  bool woken_ = false;
  bool stopped_ = false;
  uint32_t next_request_ = 1;
};

}  // namespace lockstep
