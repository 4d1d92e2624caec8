#include "raas_receiver/pull/lane.h"

#include <asio/experimental/as_tuple.hpp>

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/lane_io.h"
#include "raas_receiver/pull/lane_entry.h"

namespace lockstep {
namespace {

// What a lane takes ahead while it is busy with a block: enough that the agent never waits for a single one.
constexpr size_t kWindowBytes = 2 << 20;
constexpr auto kAwait = asio::experimental::as_tuple(asio::use_awaitable);

}  // namespace

Lane::Lane(IoThreads& io, std::shared_ptr<const LaneOptions> options, std::shared_ptr<RunBoard> board, uint32_t number)
    : options_(std::move(options)),
      board_(std::move(board)),
      number_(number),
      strand_(asio::make_strand(io.context())),
      socket_(strand_),
      wake_(strand_),
      watch_(strand_),
      ticket_(options_->tickets[number]),
      pace_(options_->outstanding),
      random_(number + 1) {}

void Lane::Start() {
  Spawn(strand_, Run());
  Spawn(strand_, WatchSilence());
}

void Lane::Wake() {
  asio::post(strand_, [self = shared_from_this()] {
    self->woken_ = true;
    self->wake_.cancel();
    if (!self->board_->stopping()) return;
    asio::error_code ignored;
    self->socket_.close(ignored);
    self->watch_.cancel();
  });
}

void Lane::GiveTicket(Result<Ticket> ticket) {
  asio::post(strand_, [self = shared_from_this(), ticket = std::move(ticket)] {
    self->ticket_ = ticket;
    self->woken_ = true;
    self->wake_.cancel();
  });
}

asio::awaitable<void> Lane::Run() {
  const auto self = shared_from_this();
  while (IsSpare() && !board_->spares_wanted() && !board_->stopping()) co_await UntilWoken();
  Status status;
  while (!board_->stopping()) {
    status = co_await Serve();
    asio::error_code ignored;
    socket_.close(ignored);
    GiveBackRuns();
    if (board_->stopping()) break;
    status = Explain(status);
    if (++failures_ >= options_->attempts) break;
    if (const Status recovered = co_await Recover(); !recovered.ok()) {
      status = recovered.WithContext(Cat("after ", status.ToString()));
      break;
    }
  }
  ended_ = true;
  watch_.cancel();
  board_->Leave(board_->stopping() ? OkStatus() : status);
}

asio::awaitable<Status> Lane::Serve() {
  if (Status status = co_await Open(); !status.ok()) co_return status;
  while (!board_->stopping()) {
    if (Status status = co_await SendRequests(); !status.ok()) co_return status;
    if (runs_.empty()) {
      co_await UntilWoken();
    } else if (Status status = co_await ReceiveFrame(); !status.ok()) {
      co_return status;
    }
  }
  co_return OkStatus();
}

asio::awaitable<Status> Lane::Open() {
  silent_ = false;
  if (!ticket_->ok()) co_return ticket_->status();
  if (Status status = co_await Connect(socket_, options_->agent, options_->connect_timeout); !status.ok())
    co_return status;
  if (board_->stopping()) co_return Status(ErrorCode::kCancelled, "told to stop");

  if (RoundTrip(socket_) >= kFarRoundTrip) board_->WantSpares();
  OpenWindow(socket_, kWindowBytes);
  reader_.emplace(socket_);
  // The first requests go along with the hello.
  Status status = co_await SendRequests(HelloOf({options_->pull_id, **ticket_, number_}));
  if (status.ok()) status = co_await ReadWelcome(socket_, options_->connect_timeout);
  co_return status;
}

// Asks for as many runs as the link swallows, after `first`, in one packet.
asio::awaitable<Status> Lane::SendRequests(Bytes first) {
  while (runs_.size() < pace_.outstanding()) {
    const std::optional<BlockRun> run = board_->Take();
    if (!run) break;
    if (runs_.empty()) reader_->Touch();
    runs_.emplace_back(*run, next_request_++);
    Append(first, runs_.back().Request());
  }
  if (first.empty()) co_return OkStatus();
  co_return co_await WriteAll(socket_, first, options_->silence_timeout);
}

asio::awaitable<Status> Lane::ReceiveFrame() {
  FrameHeader frame;
  const std::span<std::byte> memory(reinterpret_cast<std::byte*>(&frame), sizeof frame);
  if (Status status = co_await reader_->Read(memory); !status.ok()) co_return status;
  const ModelLayout& layout = *options_->layout;
  if (Status status = CheckFrame(frame, layout.block_bytes(), layout.block_count()); !status.ok()) co_return status;
  RunProgress& run = runs_.front();
  if (frame.request_id != run.request_id()) {
    co_return Status(ErrorCode::kProtocol,
                     Cat("a frame answers request ", frame.request_id, " where ", run.request_id(), " is due"));
  }
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kBlock:
      co_return co_await ReceiveBlock(frame);
    case FrameType::kError:
      co_return co_await ReceiveError(frame);
    case FrameType::kRequestEnd:
      break;
  }
  if (Status status = run.Finish(frame); !status.ok()) co_return status;
  runs_.pop_front();
  pace_.Answered(std::exchange(run_bytes_, 0), RequestPace::Clock::now(), RoundTrip(socket_));
  board_->Done();
  co_return OkStatus();
}

asio::awaitable<Status> Lane::ReceiveBlock(const FrameHeader& frame) {
  RunProgress& run = runs_.front();
  if (Status status = run.Admit(frame, *options_->layout); !status.ok()) co_return status;
  std::span<std::byte> memory = board_->sink().Destination(frame);
  if (memory.empty()) memory = Scratch(frame.payload_bytes);
  if (Status status = co_await reader_->Read(memory); !status.ok()) co_return status;
  if (Status status = CheckFramePayload(frame, memory); !status.ok()) co_return status;
  if (Status status = board_->sink().Put(frame, memory); !status.ok()) co_return status;
  run.Received(frame);
  board_->Count(frame.payload_bytes);
  run_bytes_ += frame.payload_bytes;
  failures_ = 0;
  co_return OkStatus();
}

asio::awaitable<Status> Lane::ReceiveError(const FrameHeader& frame) {
  const std::span<std::byte> text = Scratch(frame.payload_bytes);
  if (Status status = co_await reader_->Read(text); !status.ok()) co_return status;
  if (Status status = CheckFramePayload(frame, text); !status.ok()) co_return status;
  const BlockRun run = runs_.front().run();
  runs_.pop_front();
  board_->Refuse(Explain({static_cast<ErrorCode>(frame.block), Cat("the agent refused blocks [", run.first, ", ",
                                                                   run.end(), "): ", CleanText(AsText(text)))}));
  co_return OkStatus();
}

asio::awaitable<Status> Lane::Recover() {
  const auto longest = options_->first_backoff * (1 << (failures_ - 1));
  const auto jitter = std::uniform_int_distribution<int64_t>(longest.count() / 2, longest.count())(random_);
  co_await Sleep(std::chrono::milliseconds(jitter));
  ticket_.reset();
  board_->WantTicket(shared_from_this());
  while (!ticket_ && !board_->stopping()) co_await UntilWoken();
  if (!ticket_) co_return OkStatus();  // the board stopped
  const Status& status = ticket_->status();
  // What may pass (the agent is being restarted) counts as one more failure in Open; what cannot pass ends the lane.
  const bool final = status.code() == ErrorCode::kNotFound || status.code() == ErrorCode::kResourceExhausted;
  co_return final ? status : OkStatus();
}

asio::awaitable<void> Lane::Sleep(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!board_->stopping() && std::chrono::steady_clock::now() < until) {
    wake_.expires_at(until);
    co_await wake_.async_wait(kAwait);
  }
}

asio::awaitable<void> Lane::UntilWoken() {
  if (!woken_) {
    wake_.expires_at(asio::steady_timer::time_point::max());
    co_await wake_.async_wait(kAwait);
  }
  woken_ = false;
}

asio::awaitable<void> Lane::WatchSilence() {
  const auto self = shared_from_this();
  while (!ended_ && !board_->stopping()) {
    watch_.expires_after(options_->silence_timeout / 4);
    co_await watch_.async_wait(kAwait);
    const auto now = std::chrono::steady_clock::now();
    if (runs_.empty() || !reader_ || now - reader_->last_byte() < options_->silence_timeout) continue;
    silent_ = true;
    asio::error_code ignored;
    socket_.cancel(ignored);
  }
}

std::span<std::byte> Lane::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return std::span(scratch_).first(bytes);
}

void Lane::GiveBackRuns() {
  for (const RunProgress& run : runs_) board_->GiveBack(run.Rest());
  runs_.clear();
  run_bytes_ = 0;
}

Status Lane::Explain(const Status& status) const {
  const std::string where = Cat("lane ", number_, " of pull ", options_->pull_id, " to ", options_->agent.ToString());
  if (!silent_) return status.WithContext(where);
  return {ErrorCode::kDeadline, Cat(where, ": no byte came for ", options_->silence_timeout.count(), " ms")};
}

}  // namespace lockstep
