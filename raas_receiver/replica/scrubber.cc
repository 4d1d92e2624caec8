#include "raas_receiver/replica/scrubber.h"

#include <algorithm>

namespace lockstep::replica {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kPiece = 4 << 20;
constexpr milliseconds kPieceTime{4};  // at least
constexpr milliseconds kNothingHeld{1'000};
constexpr milliseconds kNever = std::chrono::hours(1);

}  // namespace

milliseconds Scrubber::UntilDue() const {
  if (round_ == milliseconds(0)) return kNever;
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(due_ - Clock::now()));
}

// Of the round, for `bytes` of what two replicas hold.
milliseconds Scrubber::Share(uint64_t bytes, const model::ModelLayout& layout) const {
  return milliseconds(static_cast<int64_t>(static_cast<double>(round_.count()) * static_cast<double>(bytes) /
                                           (2 * static_cast<double>(layout.data_bytes()))));
}

std::optional<Scrubber::Damage> Scrubber::Step(const ReplicaPair& replicas) {
  if (UntilDue() > milliseconds(0)) return std::nullopt;
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
  due_ = Clock::now() + (hashed == 0 ? kNothingHeld : std::max(kPieceTime, Share(hashed, *held.state->layout)));
  return damage.blocks.empty() ? std::nullopt : std::optional(std::move(damage));
}

}  // namespace lockstep::replica
