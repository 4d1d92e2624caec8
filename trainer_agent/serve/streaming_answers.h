// StreamingAnswers: what a lane of a standing pull answers: its share of a delta while that is being made
// (common/wire/FORMAT.md, "Streaming deltas").
#pragma once

#include <memory>
#include <vector>

#include "trainer_agent/serve/lane_writer.h"
#include "trainer_agent/serve/wakeup.h"

namespace lockstep::serve {

// Used by the one coroutine that owns the lane, on the strand of `socket`. An error ends the lane; kUnavailable: the
// peer or its pull is gone.
class StreamingAnswers {
 public:
  // All but the gate outlive this.
  StreamingAnswers(asio::ip::tcp::socket& socket, Pull& pull, std::shared_ptr<WakeupGate> gate, LaneWriter& writer,
                   ServeSpan& span)
      : socket_(socket),
        pull_(pull),
        writer_(writer),
        span_(span),
        wakeup_(std::make_shared<Wakeup>(socket.get_executor(), std::move(gate))) {}

  // Waits for the delta, then sends its blocks as they are made.
  asio::awaitable<Result<LaneAnswer>> SendStream(const wire::BlockRequest& request);

 private:
  using Blocks = std::vector<std::shared_ptr<const payload::DeltaBlock>>;

  asio::awaitable<Result<std::shared_ptr<run::StreamingDelta>>> UntilBegun(Version base, Status& refusal);
  asio::awaitable<Status> SendShare(const wire::BlockRequest& request, const run::StreamingDelta& delta,
                                    const Blocks& blocks, LaneAnswer& answer);
  asio::awaitable<Status> UntilWoken();
  void WatchPeer();

  asio::ip::tcp::socket& socket_;
  Pull& pull_;
  LaneWriter& writer_;
  ServeSpan& span_;
  const std::shared_ptr<Wakeup> wakeup_;
  std::shared_ptr<bool> peer_spoke_;  // null: it is not watched for
};

}  // namespace lockstep::serve
