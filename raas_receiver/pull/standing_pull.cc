#include "raas_receiver/pull/standing_pull.h"

#include "common/base/text.h"

namespace lockstep::pull {

StandingPull::StandingPull(net::IoThreads& io, LanePeer peer)
    : layout_(peer.layout),
      shares_(static_cast<uint32_t>(peer.tickets.size())),
      lanes_(io, {.peer = std::move(peer), .attempts = 1, .standing = true}, [](size_t) -> Result<std::vector<Ticket>> {
        return Status(ErrorCode::kNotFound, "a standing pull has no more tickets");
      }) {}

void StandingPull::Ask(Version base) {
  {
    MutexLock lock(mutex_);
    delta_ = {.base = base};
    here_.assign(layout_->block_count(), false);
  }
  lanes_.Post(RunsOf(StreamRequest{base}, shares_), *this);
}

Result<StandingPull::Delta> StandingPull::Take(std::chrono::milliseconds patience) {
  LS_RETURN_IF_ERROR(lanes_.Wait(patience));
  MutexLock lock(mutex_);
  return std::move(delta_);
}

Status StandingPull::Put(const wire::FrameHeader& frame, ByteView payload) {
  payload::DeltaBlock block = EntryOf(frame, Bytes(payload.begin(), payload.end()));
  MutexLock lock(mutex_);
  if (here_[frame.block]) return Broken(frame, "came twice");
  if (frame.payload_bytes > layout_->data_bytes() - delta_.bytes) return Broken(frame, "is more than the model");
  LS_RETURN_IF_ERROR(AgreeOnTarget(frame.version));
  here_[frame.block] = true;
  delta_.bytes += frame.payload_bytes;
  delta_.ended = std::chrono::steady_clock::now();
  if (delta_.blocks.empty()) delta_.begun = delta_.ended;
  delta_.blocks.push_back(std::move(block));
  return OkStatus();
}

Status StandingPull::EndShare(Version target) {
  MutexLock lock(mutex_);
  return AgreeOnTarget(target);
}

Status StandingPull::AgreeOnTarget(Version target) {
  if (delta_.target == 0) delta_.target = target;
  if (target == delta_.target) return OkStatus();
  return {ErrorCode::kProtocol,
          Cat("a streaming delta leads to version ", target, " on one lane and to ", delta_.target, " on another")};
}

}  // namespace lockstep::pull
