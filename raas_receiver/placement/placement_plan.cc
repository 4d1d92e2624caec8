#include "raas_receiver/placement/placement_plan.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/text.h"
#include "common/layout/training_model.h"
#include "raas_receiver/placement/bands.h"
#include "raas_receiver/placement/shares.h"

namespace lockstep {
namespace {

// Of one parameter: one that lies so scattered is for the directory.
constexpr uint64_t kMaxCopies = uint64_t{1} << 20;

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

bool TargetLess(const StridedCopy& a, const StridedCopy& b) {
  return std::tie(a.target_offset, a.source_offset) < std::tie(b.target_offset, b.source_offset);
}

// By window, by rising target. `shares` of one parameter follow one another.
Result<std::vector<std::vector<StridedCopy>>> CopiesOf(const ModelLayout& layout, size_t windows,
                                                       const std::vector<Share>& shares) {
  std::vector<std::vector<StridedCopy>> copies(windows);
  const EngineParameter* parameter = nullptr;
  TensorView target;
  uint64_t count = 0;
  for (const Share& share : shares) {
    if (share.parameter != parameter) {
      parameter = share.parameter;
      target = ViewOf(*parameter);
      count = 0;
    }
    const TensorMeta& tensor = layout.tensors()[share.tensor];
    const TensorView source =
        TensorView::Contiguous(Promoted(tensor.shape, target.shape.size()), target.element_bytes, tensor.offset);
    for (const Piece& piece : share.pieces) {
      const uint64_t more = CopyCount(piece, source, target);
      if (more <= kMaxCopies && (count += more) <= kMaxCopies) continue;
      return Status(ErrorCode::kBadData, Cat(share.Name(), " takes more than ", kMaxCopies,
                                             " copies: let this engine take versions from the directory"));
    }
    AppendCopies(share.pieces, source, target, copies[share.window]);
  }
  for (std::vector<StridedCopy>& of_window : copies) {
    std::sort(of_window.begin(), of_window.end(), TargetLess);
    Coalesce(of_window, {});
  }
  return copies;
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

// Over what the plan does, however it was described: the layout, the windows and the copies of each, field by field.
PlacementDigest DigestOf(const ModelLayout& layout, const std::vector<Window>& windows,
                         const std::vector<std::vector<StridedCopy>>& copies) {
  Bytes whole;
  Append(whole, layout.digest().bytes);
  for (size_t i = 0; i < windows.size(); ++i) {
    Append(whole, windows[i].rank);
    Append(whole, windows[i].memory);
    Append(whole, windows[i].bytes);
    Append(whole, Hash128(std::as_bytes(std::span(copies[i]))));
  }
  return PlacementDigest{Hash128(whole)};
}

}  // namespace

static_assert(sizeof(StridedCopy) == 6 * sizeof(uint64_t), "copies are hashed as they lie in memory");

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
  LS_ASSIGN_OR_RETURN(plan->copies_, CopiesOf(layout, plan->windows_.size(), shares));
  BandBuilder bands;
  LS_RETURN_IF_ERROR(AppendBands(tensors, layout, shares, bands));
  plan->bands_ = bands.TakeBands();
  plan->ways_ = bands.TakeWays();
  plan->digest_ = DigestOf(layout, plan->windows_, plan->copies_);
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
