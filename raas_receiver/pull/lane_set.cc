#include "raas_receiver/pull/lane_set.h"

#include "raas_receiver/pull/lane.h"

namespace lockstep::pull {

LaneSet::LaneSet(net::IoThreads& io, LaneOptions options, RenewTickets renew)
    : io_(io),
      options_(std::make_shared<const LaneOptions>(std::move(options))),
      renew_(std::move(renew)),
      queue_(std::make_shared<RunQueue>(options_->standing)) {}

LaneSet::~LaneSet() {
  queue_->Stop();
  queue_->WaitForLanes();
}

void LaneSet::Start() {
  for (uint32_t number = 0; number < options_->peer.tickets.size(); ++number) {
    auto lane = std::make_shared<Lane>(io_, options_, queue_, number);
    queue_->Join(lane);
    lane->Start();
  }
}

Status LaneSet::FetchBlocks(const FullRequest& request, BlockSink& sink) {
  return Fetch(RunsOf(request, *options_->peer.layout, options_->peer.tickets.size()), sink);
}

Status LaneSet::FetchDeltas(const DeltaRequest& request, DeltaSink& sink) {
  return Fetch(RunsOf(request, *options_->peer.layout, options_->peer.tickets.size()), sink);
}

SourceCounters LaneSet::counters() const {
  SourceCounters counters = queue_->counters();
  if (options_->peer.InPlaintext()) counters.plain_bytes = counters.payload_bytes;
  return counters;
}

Status LaneSet::Fetch(const std::vector<BlockRun>& runs, BlockSink& sink) {
  if (runs.empty()) return OkStatus();
  Post(runs, sink);
  return Wait();
}

void LaneSet::Post(const std::vector<BlockRun>& runs, BlockSink& sink) {
  if (!std::exchange(started_, true)) Start();
  queue_->Post(runs, sink);
}

Status LaneSet::Wait(std::optional<std::chrono::milliseconds> patience) {
  return queue_->Wait(renew_, patience);
}

}  // namespace lockstep::pull
