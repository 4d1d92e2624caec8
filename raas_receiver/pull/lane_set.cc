#include "raas_receiver/pull/lane_set.h"

#include "raas_receiver/pull/lane.h"

namespace lockstep {

LaneSet::LaneSet(IoThreads& io, LaneOptions options, RenewTickets renew)
    : renew_(std::move(renew)), board_(std::make_shared<RunBoard>()) {
  const auto shared_options = std::make_shared<const LaneOptions>(std::move(options));
  for (uint32_t number = 0; number < shared_options->tickets.size(); ++number) {
    auto lane = std::make_shared<Lane>(io, shared_options, board_, number);
    board_->Join(lane);
    lane->Start();
  }
}

LaneSet::~LaneSet() {
  board_->Stop();
  board_->WaitForLanes();
}

Status LaneSet::Fetch(const std::vector<BlockRun>& runs, BlockSink& sink) {
  board_->Post(runs, sink);
  return board_->Wait(renew_);
}

void LaneSet::Cancel() {
  board_->Stop();
}

}  // namespace lockstep
