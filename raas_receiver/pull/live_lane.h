// One lane of a live subscription.
#pragma once

#include <memory>

#include "common/net/io_threads.h"
#include "common/net/strand_wakeup.h"
#include "raas_receiver/pull/lane_connection.h"
#include "raas_receiver/pull/live_collector.h"

namespace lockstep::pull {

// Everything but Wake and Stop runs on the lane's strand. Alive until its coroutines are done.
class LiveLane : public std::enable_shared_from_this<LiveLane> {
 public:
  LiveLane(net::IoThreads& io, std::shared_ptr<const LanePeer> peer, std::shared_ptr<LiveCollector> collector,
           uint32_t share);

  void Start();
  void Wake();  // there is a request
  void Stop();

 private:
  asio::awaitable<void> Run();
  asio::awaitable<Status> Open();
  asio::awaitable<Status> Serve();
  asio::awaitable<Status> ReceiveShare(const LiveCollector::Request& request);
  asio::awaitable<Status> ReceiveBlock(const wire::FrameHeader& frame);

  const std::shared_ptr<const LanePeer> peer_;
  const std::shared_ptr<LiveCollector> collector_;
  const uint32_t share_;
  const LaneConnection::Strand strand_;
  LaneConnection connection_;
  net::StrandWakeup wakeup_;
  bool stopped_ = false;
};

}  // namespace lockstep::pull
