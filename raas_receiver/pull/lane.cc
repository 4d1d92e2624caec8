#include "raas_receiver/pull/lane.h"

#include <asio/experimental/as_tuple.hpp>

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/lane_io.h"

namespace lockstep::pull {
namespace {

// What a lane takes ahead while it is busy with a block: enough that the agent never waits for a single one.
constexpr size_t kWindowBytes = 2 << 20;

}  // namespace

Lane::Lane(net::IoThreads& io, std::shared_ptr<const LaneOptions> options, LaneSet& set, uint32_t number)
    : options_(std::move(options)),
      set_(set),
      number_(number),
      strand_(asio::make_strand(io.context())),
      connection_(strand_, options_->peer, options_->standing ? "standing lane" : "lane", number),
      wakeup_(strand_),
      watch_(strand_),
      ticket_(options_->peer.tickets[number]),
      pace_(options_->outstanding),
      backoff_(std::chrono::seconds(10), options_->first_backoff) {}

void Lane::Start() {
  net::Spawn(strand_, Run());
  if (!options_->standing) net::Spawn(strand_, WatchSilence());
}

void Lane::Wake() {
  asio::post(strand_, [self = shared_from_this()] {
    self->wakeup_.Wake();
    if (self->ended_ || !self->set_.stopping()) return;
    self->connection_.Close();
    self->watch_.cancel();
  });
}

void Lane::GiveTicket(Result<Ticket> ticket) {
  asio::post(strand_, [self = shared_from_this(), ticket = std::move(ticket)] {
    self->ticket_ = ticket;
    self->wakeup_.Wake();
  });
}

asio::awaitable<void> Lane::Run() {
  const auto self = shared_from_this();
  while (IsSpare() && !set_.spares_wanted() && !set_.stopping()) co_await wakeup_.Wait();
  Status status;
  while (!set_.stopping()) {
    status = co_await Serve();
    connection_.Close();
    ReturnRuns();
    if (set_.stopping()) break;
    status = Explain(status);
    if (++failures_ >= options_->attempts) break;
    if (const Status recovered = co_await Recover(); !recovered.ok()) {
      status = recovered.WithContext(Cat("after ", status.ToString()));
      break;
    }
  }
  ended_ = true;
  watch_.cancel();
  set_.Leave(set_.stopping() ? OkStatus() : status);
}

asio::awaitable<Status> Lane::Serve() {
  if (Status status = co_await Open(); !status.ok()) co_return status;
  while (!set_.stopping()) {
    if (const Bytes requests = NextRequests(); !requests.empty()) {
      Status status = co_await connection_.Send(requests, options_->silence_timeout);
      if (!status.ok()) co_return status;
    }
    if (runs_.empty()) {
      co_await wakeup_.Wait();
    } else if (Status status = co_await ReceiveFrame(); !status.ok()) {
      co_return status;
    }
  }
  co_return OkStatus();
}

asio::awaitable<Status> Lane::Open() {
  silent_ = false;
  if (!ticket_->ok()) co_return ticket_->status();
  if (Status status = co_await connection_.Open(); !status.ok()) co_return status;
  if (set_.stopping()) co_return Status(ErrorCode::kCancelled, "the pull ends");

  if (net::RoundTrip(connection_.socket()) >= kFarRoundTrip) set_.WantSpares();
  net::OpenWindow(connection_.socket(), kWindowBytes);
  net::KeepAlive(connection_.socket());
  co_return co_await connection_.Enter(**ticket_, NextRequests());
}

// Asks for as many more runs as the link swallows, in one packet; nothing when none is due.
Bytes Lane::NextRequests() {
  Bytes requests;
  while (runs_.size() < (options_->standing ? 1 : pace_.outstanding())) {
    const std::optional<BlockRun> run = set_.Take(number_);
    if (!run) break;
    if (runs_.empty()) connection_.Touch();
    runs_.emplace_back(*run, next_request_++);
    Append(requests, runs_.back().Request());
  }
  return requests;
}

asio::awaitable<Status> Lane::ReceiveFrame() {
  wire::FrameHeader frame;
  RunProgress& run = runs_.front();
  if (Status status = co_await connection_.ReadFrame(frame, run.request_id()); !status.ok()) co_return status;
  switch (static_cast<wire::FrameType>(frame.type)) {
    case wire::FrameType::kBlock:
      co_return co_await ReceiveBlock(frame);
    case wire::FrameType::kError:
      co_return co_await ReceiveRefusal(frame);
    case wire::FrameType::kRequestEnd:
      break;
  }
  if (Status status = run.Finish(frame); !status.ok()) co_return status;
  if (run.run().kind == wire::RequestKind::kStream) {
    if (Status status = set_.sink().EndShare(frame.version); !status.ok()) co_return status;
  }
  runs_.pop_front();
  pace_.Answered(std::exchange(run_bytes_, 0), RequestPace::Clock::now(), net::RoundTrip(connection_.socket()));
  set_.Return(std::nullopt);
  co_return OkStatus();
}

asio::awaitable<Status> Lane::ReceiveBlock(const wire::FrameHeader& frame) {
  RunProgress& run = runs_.front();
  if (Status status = run.Admit(frame, *options_->peer.layout); !status.ok()) co_return status;
  std::span<std::byte> memory = set_.sink().Destination(frame);
  if (memory.empty()) memory = Scratch(frame.payload_bytes);
  if (Status status = co_await connection_.Read(memory); !status.ok()) co_return status;
  if (Status status = wire::CheckFramePayload(frame, memory); !status.ok()) co_return status;
  if (Status status = set_.sink().Put(frame, memory); !status.ok()) co_return status;
  run.Received(frame);
  set_.Count(frame.payload_bytes, LaneSet::Clock::now());
  run_bytes_ += frame.payload_bytes;
  failures_ = 0;
  backoff_.Reset();
  co_return OkStatus();
}

asio::awaitable<Status> Lane::ReceiveRefusal(const wire::FrameHeader& frame) {
  Status refusal;
  if (Status status = co_await connection_.ReadRefusal(frame, refusal); !status.ok()) co_return status;
  const BlockRun run = runs_.front().run();
  runs_.pop_front();
  set_.Refuse(Explain(refusal.WithContext(Cat("the agent refused blocks [", run.first, ", ", run.end(), ")"))));
  co_return OkStatus();
}

asio::awaitable<Status> Lane::Recover() {
  co_await Sleep(backoff_.Next());
  ticket_.reset();
  set_.WantTicket(shared_from_this());
  while (!ticket_ && !set_.stopping()) co_await wakeup_.Wait();
  if (!ticket_) co_return OkStatus();  // the pull ends
  const Status& status = ticket_->status();
  // What may pass (the agent is being restarted) counts as one more failure in Open; what cannot pass ends the lane.
  const bool final = status.code() == ErrorCode::kNotFound || status.code() == ErrorCode::kResourceExhausted;
  co_return final ? status : OkStatus();
}

asio::awaitable<void> Lane::Sleep(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!set_.stopping() && std::chrono::steady_clock::now() < until) co_await wakeup_.WaitUntil(until);
}

asio::awaitable<void> Lane::WatchSilence() {
  const auto self = shared_from_this();
  while (!ended_ && !set_.stopping()) {
    watch_.expires_after(options_->silence_timeout / 4);
    (void)co_await watch_.async_wait(asio::experimental::as_tuple(asio::use_awaitable));
    const auto now = std::chrono::steady_clock::now();
    if (runs_.empty() || now - connection_.last_byte() < options_->silence_timeout) continue;
    silent_ = true;
    asio::error_code ignored;
    connection_.socket().cancel(ignored);
  }
}

std::span<std::byte> Lane::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return std::span(scratch_).first(bytes);
}

void Lane::ReturnRuns() {
  for (const RunProgress& run : runs_) set_.Return(run.Rest());
  runs_.clear();
  run_bytes_ = 0;
}

Status Lane::Explain(const Status& status) const {
  if (!silent_) return connection_.Explain(status);
  return connection_.Explain(
      {ErrorCode::kDeadline, Cat("no byte came for ", options_->silence_timeout.count(), " ms")});
}

}  // namespace lockstep::pull
