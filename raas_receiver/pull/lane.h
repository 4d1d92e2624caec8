// One lane of a pull: a TCP connection, opened again when it breaks.
#pragma once

#include <asio.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "raas_receiver/pull/frame_reader.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/request_pace.h"

namespace lockstep {

// Everything but Wake and GiveTicket runs on the lane's strand. Alive until its coroutines are done.
class Lane : public BoardMember, public std::enable_shared_from_this<Lane> {
 public:
  Lane(IoThreads& io, std::shared_ptr<const LaneOptions> options, std::shared_ptr<RunBoard> board, uint32_t number);

  void Start();
  void Wake() override;
  void GiveTicket(Result<Ticket> ticket) override;

 private:
  // The whole life: Serve, and after a failure back off, take a new ticket, Serve again.
  asio::awaitable<void> Run();
  // One connection, until it fails (never OK) or the board stops (OK).
  asio::awaitable<Status> Serve();
  asio::awaitable<Status> Open();
  asio::awaitable<Status> SendRequests(Bytes first = {});
  bool IsSpare() const { return number_ >= kNearLanes; }
  asio::awaitable<Status> ReceiveFrame();
  asio::awaitable<Status> ReceiveBlock(const FrameHeader& frame);
  asio::awaitable<Status> ReceiveError(const FrameHeader& frame);
  asio::awaitable<Status> Recover();
  asio::awaitable<void> Sleep(std::chrono::milliseconds time);
  asio::awaitable<void> UntilWoken();
  asio::awaitable<void> WatchSilence();

  std::span<std::byte> Scratch(size_t bytes);
  void GiveBackRuns();
  Status Explain(const Status& status) const;

  const std::shared_ptr<const LaneOptions> options_;
  const std::shared_ptr<RunBoard> board_;
  const uint32_t number_;
  asio::strand<asio::io_context::executor_type> strand_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer wake_;
  asio::steady_timer watch_;
  bool woken_ = false;
  bool ended_ = false;
  bool silent_ = false;  // the watch broke the connection
  std::optional<Result<Ticket>> ticket_;
  std::optional<FrameReader> reader_;
  std::deque<RunProgress> runs_;  // asked for, oldest first
  RequestPace pace_;
  uint64_t run_bytes_ = 0;  // received for the oldest
  uint32_t next_request_ = 1;
  int failures_ = 0;  // in a row, without a block in between
  Bytes scratch_;     // for payloads that the sink has no place for
  std::minstd_rand random_;
};

}  // namespace lockstep
