// One lane of a pull: a TCP connection, opened again when it breaks.
#pragma once

#include <asio.hpp>
#include <deque>
#include <memory>
#include <optional>

#include "common/base/backoff.h"
#include "common/net/strand_wakeup.h"
#include "raas_receiver/pull/lane_connection.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/request_pace.h"

namespace lockstep::pull {

// Everything but Wake and GiveTicket runs on the lane's strand. Alive until its coroutines are done, which may be after
// the set's end: the lane does not use the set once it has left.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  Lane(net::IoThreads& io, std::shared_ptr<const LaneOptions> options, LaneSet& set, uint32_t number);

  void Start();
  // Calls of the set, by any thread; they return at once. Wake says that there may be a run to take, or the pull ends.
  void Wake();
  void GiveTicket(Result<Ticket> ticket);

 private:
  // The whole life: Serve, and after a failure back off, take a new ticket, Serve again.
  asio::awaitable<void> Run();
  // Serves one connection. Returns its error when it fails, and OK when the pull ends.
  asio::awaitable<Status> Serve();
  asio::awaitable<Status> Open();
  Bytes NextRequests();
  bool IsSpare() const { return number_ >= kNearLanes && !options_->standing; }
  asio::awaitable<Status> ReceiveFrame();
  asio::awaitable<Status> ReceiveBlock(const wire::FrameHeader& frame);
  asio::awaitable<Status> ReceiveRefusal(const wire::FrameHeader& frame);
  asio::awaitable<Status> Recover();
  asio::awaitable<void> Sleep(std::chrono::milliseconds time);
  asio::awaitable<void> WatchSilence();

  std::span<std::byte> Scratch(size_t bytes);
  void ReturnRuns();
  Status Explain(const Status& status) const;

  const std::shared_ptr<const LaneOptions> options_;
  LaneSet& set_;  // not used after set_.Leave()
  const uint32_t number_;
  const LaneConnection::Strand strand_;
  LaneConnection connection_;
  net::StrandWakeup wakeup_;
  asio::steady_timer watch_;
  bool ended_ = false;   // the lane leaves the set
  bool silent_ = false;  // the watch broke the connection
  std::optional<Result<Ticket>> ticket_;
  std::deque<RunProgress> runs_;  // asked for, oldest first
  RequestPace pace_;
  uint64_t run_bytes_ = 0;  // received for the oldest
  uint32_t next_request_ = 1;
  int failures_ = 0;  // in a row, without a block in between
  Backoff backoff_;   // after them
  Bytes scratch_;     // for payloads that the sink has no place for
};

}  // namespace lockstep::pull
