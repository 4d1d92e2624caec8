#include "raas_receiver/replica/scrubber.h"

namespace lockstep::replica {
namespace {

constexpr uint64_t kPiece = 4 << 20;

}  // namespace

std::optional<Scrubber::Damage> Scrubber::Step(const ReplicaPair& replicas) {
  if (!pace_.due()) return std::nullopt;
  const ReplicaPair::HeldBytes held = replicas.Bytes(side_);
  const uint32_t blocks = held.state == nullptr ? 0 : held.state->layout->block_count();
  Damage damage{side_, {}, {}};
  uint64_t hashed = 0;
  for (; next_ < blocks && hashed < kPiece; ++next_) {
    const ByteRange range = held.state->layout->block_range(next_);
    hashed += range.bytes;
    if (model::BlockHash(held.data.subspan(range.offset, range.bytes)) == held.state->manifest.block_hashes[next_])
      continue;
    damage.held = held.state->manifest.held;
    damage.blocks.push_back(next_);
  }
  if (next_ >= blocks) {
    next_ = 0;
    side_ = side_ == ReplicaPair::Side::kCurrent ? ReplicaPair::Side::kOther : ReplicaPair::Side::kCurrent;
  }
  bytes_ += hashed;
  pace_.Hashed(hashed, hashed == 0 ? 0 : 2 * held.state->layout->data_bytes());
  return damage.blocks.empty() ? std::nullopt : std::optional(std::move(damage));
}

}  // namespace lockstep::replica
