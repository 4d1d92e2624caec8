#include "trainer_agent/serve/served_lane.h"

#include "trainer_agent/serve/pull_answers.h"

namespace lockstep::serve {
namespace {

// The lanes of a standing pull are idle for as long as the trainer is; keepalive notices when the peer is gone.
constexpr std::chrono::hours kStandingIdle{24 * 365};

LaneAnswer WrongKind() {
  return {.refusal = {ErrorCode::kState,
                      "lanes of a standing pull answer stream requests and nothing else; those of another pull none"}};
}

}  // namespace

ServedLane::ServedLane(net::PeerStream& stream, const LaneTimeouts& timeouts, Pull& pull, LanePace pace,
                       std::shared_ptr<WakeupGate> gate, ServeSpan& span)
    : stream_(stream),
      idle_timeout_(pull.standing() ? kStandingIdle : timeouts.idle),
      pull_(pull),
      span_(span),
      writer_(stream, timeouts.send, std::move(pace), pull, span),
      streaming_answers_(stream.socket(), pull, std::move(gate), writer_, span) {}

asio::awaitable<Status> ServedLane::Run() {
  while (true) {
    wire::BlockRequest request;
    co_await asio::post(stream_.socket().get_executor(), asio::use_awaitable);  // lanes take turns
    Status status = co_await stream_.ReadExact(std::as_writable_bytes(std::span(&request, 1)), idle_timeout_);
    if (status.code() == ErrorCode::kUnavailable || pull_.closed()) co_return OkStatus();
    if (status.ok()) status = wire::CheckRequest(request, pull_.run->layout().block_count());
    if (status.ok() && !pull_.standing()) span_.Begin();
    if (status.ok()) status = co_await Answer(request);
    // A follower leaves when it likes, and its connection may break any hour.
    if (pull_.standing() && status.code() == ErrorCode::kUnavailable) co_return OkStatus();
    if (!status.ok()) co_return status;
  }
}

asio::awaitable<Status> ServedLane::Answer(const wire::BlockRequest& request) {
  const Result<LaneAnswer> answer = co_await Send(request);
  if (!answer.ok()) co_return answer.status();
  if (!answer->refusal.ok()) {
    writer_.AddError(request.request_id, answer->refusal);
  } else if (!answer->end_sent) {
    writer_.AddEnd(request.request_id, answer->frames, answer->target);
  }
  Status status = co_await writer_.Flush();
  if (answer->target != 0) span_.End(answer->target);
  co_return status;
}

asio::awaitable<Result<LaneAnswer>> ServedLane::Send(const wire::BlockRequest& request) {
  const auto kind = static_cast<wire::RequestKind>(request.kind);
  if ((kind == wire::RequestKind::kStream) != pull_.standing()) co_return WrongKind();
  switch (kind) {
    case wire::RequestKind::kFull:
      co_return co_await SendFull(request, pull_, writer_);
    case wire::RequestKind::kDelta:
      co_return co_await SendDelta(request, pull_, writer_);
    case wire::RequestKind::kStream:
      co_return co_await streaming_answers_.SendStream(request);
  }
  co_return Status(ErrorCode::kInternal, "a request of no kind");  // CheckRequest lets none through
}

}  // namespace lockstep::serve
