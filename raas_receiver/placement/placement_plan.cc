#include "raas_receiver/placement/placement_plan.h"

#include <algorithm>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "raas_receiver/placement/bands.h"
#include "raas_receiver/placement/copies.h"
#include "raas_receiver/placement/shares.h"

namespace lockstep {
namespace {

std::vector<Window> WindowsOf(const std::vector<RankDescription>& ranks) {
  std::vector<Window> windows;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].halves.empty()) continue;
    for (uint32_t memory = 0; memory < ranks[rank].halves[0].size(); ++memory) {
      windows.push_back({rank, memory, ranks[rank].halves[0][memory].bytes});
    }
  }
  return windows;
}

Status AppendBands(const TensorTable& tensors, const ModelLayout& layout, const std::vector<Share>& shares,
                   BandBuilder& bands) {
  std::vector<const Share*> by_tensor;
  by_tensor.reserve(shares.size());
  for (const Share& share : shares) by_tensor.push_back(&share);
  std::stable_sort(by_tensor.begin(), by_tensor.end(),
                   [](const Share* a, const Share* b) { return a->tensor < b->tensor; });
  auto begin = by_tensor.begin();
  for (uint32_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    const auto end = std::find_if(begin, by_tensor.end(), [&](const Share* one) { return one->tensor != tensor; });
    if (tensors.wanted(tensor)) LS_RETURN_IF_ERROR(bands.Append(layout.tensors()[tensor], {begin, end}));
    begin = end;
  }
  return OkStatus();
}

// Over what the plan does, however it was described: the layout, the windows, and the copies and zeros of each, field
// by field.
PlacementDigest DigestOf(const ModelLayout& layout, const std::vector<Window>& windows,
                         const std::vector<std::vector<StridedCopy>>& copies,
                         const std::vector<std::vector<StridedRange>>& zeros) {
  Bytes whole;
  Append(whole, layout.digest().bytes);
  for (size_t i = 0; i < windows.size(); ++i) {
    Append(whole, windows[i].rank);
    Append(whole, windows[i].memory);
    Append(whole, windows[i].bytes);
    Append(whole, Hash128(std::as_bytes(std::span(copies[i]))));
    Append(whole, Hash128(std::as_bytes(std::span(zeros[i]))));
  }
  return PlacementDigest{Hash128(whole)};
}

}  // namespace

static_assert(sizeof(StridedCopy) == 6 * sizeof(uint64_t), "copies are hashed as they lie in memory");
static_assert(sizeof(StridedRange) == 4 * sizeof(uint64_t), "so are zeros");

Result<std::shared_ptr<const PlacementPlan>> PlacementPlan::Compile(const ModelLayout& layout,
                                                                    const std::vector<RankDescription>& ranks,
                                                                    const std::vector<std::string>& unused) {
  LS_ASSIGN_OR_RETURN(const TensorTable tensors, TensorTable::Create(layout, unused));
  const std::shared_ptr<PlacementPlan> plan(new PlacementPlan());
  plan->windows_ = WindowsOf(ranks);
  std::vector<Share> shares;
  uint32_t first_window = 0;
  for (const RankDescription& rank : ranks) {
    LS_RETURN_IF_ERROR(AppendShares(tensors, rank, first_window, shares));
    first_window += rank.halves.empty() ? 0 : static_cast<uint32_t>(rank.halves[0].size());
  }
  CopyBuilder copies(layout, plan->windows_.size());
  for (const Share& share : shares) LS_RETURN_IF_ERROR(copies.Append(share));
  plan->copies_ = copies.TakeCopies();
  plan->zeros_ = copies.TakeZeros();
  BandBuilder bands;
  LS_RETURN_IF_ERROR(AppendBands(tensors, layout, shares, bands));
  plan->bands_ = bands.TakeBands();
  plan->ways_ = bands.TakeWays();
  plan->digest_ = DigestOf(layout, plan->windows_, plan->copies_, plan->zeros_);
  return std::shared_ptr<const PlacementPlan>(plan);
}

uint64_t PlacementPlan::copied_bytes(uint32_t window) const {
  uint64_t bytes = 0;
  for (const StridedCopy& copy : copies_[window]) bytes += copy.bytes();
  return bytes;
}

std::span<const Band>::iterator PlacementPlan::BandAt(uint64_t offset) const {
  const std::span<const Band> all = bands();
  return std::upper_bound(all.begin(), all.end(), offset,
                          [](uint64_t position, const Band& band) { return position < band.end(); });
}

}  // namespace lockstep
