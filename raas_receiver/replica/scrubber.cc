#include "raas_receiver/replica/scrubber.h"

namespace lockstep::replica {
namespace {

constexpr uint64_t kPiece = 4 << 20;

}  // namespace

bool Scrubber::Step(ReplicaPair& replicas) {
  if (!pace_.due()) return false;
  const ReplicaPair::CheckedBlocks checked = replicas.Check(replica_, next_, kPiece);
  next_ = checked.next;
  if (next_ == 0) replica_ = 1 - replica_;
  bytes_ += checked.bytes;
  pace_.Hashed(checked.bytes, checked.of_bytes);
  return checked.damaged;
}

}  // namespace lockstep::replica
