#include "export_plugin/exporter/shadow.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/base/text.h"

namespace lockstep::exporter {
namespace {

using kernels::cuda::Change;
using kernels::cuda::kRegionUnits;

// What one thread writes at a time: some thousand changes, where one in a hundred units has changed.
constexpr size_t kRegionsPerTask = 8;

bool HasWholeUnits(const LocalCopy& copy) {
  return copy.copy.row_bytes % 2 == 0;
}

// Walks over the rows of pieces, forward.
class Places {
 public:
  Places(std::span<const ShadowPlan::Piece> pieces, uint64_t unit, std::byte* target)
      : pieces_(pieces), target_(target) {
    const auto after = std::upper_bound(pieces.begin(), pieces.end(), unit,
                                        [](uint64_t at, const auto& piece) { return at < piece.first_unit; });
    piece_ = static_cast<size_t>(after - pieces.begin()) - 1;
  }

  // Where `unit` of the batch lies, or null.
  std::byte* Of(uint64_t unit) {
    if (unit >= row_end_ && !FindRow(unit)) return nullptr;
    return row_ + 2 * (unit - row_begin_);
  }

 private:
  bool FindRow(uint64_t unit) {
    while (piece_ < pieces_.size() && unit >= pieces_[piece_].first_unit + pieces_[piece_].units()) ++piece_;
    if (piece_ == pieces_.size() || unit < pieces_[piece_].first_unit) return false;
    const layout::StridedCopy& copy = pieces_[piece_].copy.copy;
    const uint64_t row_units = copy.row_bytes / 2;
    const uint64_t row = (unit - pieces_[piece_].first_unit) / row_units;
    row_begin_ = pieces_[piece_].first_unit + row * row_units;
    row_end_ = row_begin_ + row_units;
    row_ = target_ + copy.target_offset + row * copy.target_pitch;
    return true;
  }

  const std::span<const ShadowPlan::Piece> pieces_;
  std::byte* const target_;
  size_t piece_ = 0;
  std::byte* row_ = nullptr;
  uint64_t row_begin_ = 0;
  uint64_t row_end_ = 0;
};

bool WriteRegion(std::span<const ShadowPlan::Piece> pieces, size_t region, std::span<const Change> changes,
                 std::byte* target) {
  const uint64_t first = region * kRegionUnits;
  Places places(pieces, first, target);
  for (const Change& change : changes) {
    std::byte* const place = places.Of(first + change.place);
    if (place == nullptr) return false;
    std::memcpy(place, &change.unit, sizeof(change.unit));
  }
  return true;
}

}  // namespace

Result<ShadowPlan> ShadowPlan::Of(const CopyList& list, std::span<const LocalTensor> locals) {
  ShadowPlan plan;
  size_t copy = 0;
  for (const CopyBatch& batch : list.batches) {
    Batch planned{.first_unit = plan.units()};
    for (; copy < batch.copies_end; ++copy) {
      if (!HasWholeUnits(list.copies[copy])) {
        return Status(ErrorCode::kBadData, Cat("local tensor \"", locals[list.copies[copy].local].name,
                                               "\" has rows of ", list.copies[copy].copy.row_bytes,
                                               " bytes, an odd number, of which there is no shadow: leave it out"));
      }
      plan.pieces.push_back({list.copies[copy], planned.units});
      planned.units += kernels::cuda::GroupsOf(plan.pieces.back().units()) * kernels::cuda::kGroupUnits;
    }
    planned.pieces_end = plan.pieces.size();
    plan.batches.push_back(planned);
  }
  return plan;
}

std::span<const ShadowPlan::Piece> ShadowPlan::PiecesOf(size_t batch) const {
  const size_t begin = batch == 0 ? 0 : batches[batch - 1].pieces_end;
  return std::span(pieces).subspan(begin, batches[batch].pieces_end - begin);
}

uint64_t ShadowPlan::most_units() const {
  uint64_t most = 0;
  for (const Batch& batch : batches) most = std::max(most, batch.units);
  return most;
}

ShadowBytes ShadowPlan::bytes() const {
  const uint64_t most = most_units();
  const uint64_t region_bytes = kernels::cuda::RegionsOf(most) * sizeof(uint32_t);
  uint64_t most_changes = 0;
  for (const Batch& batch : batches) most_changes = std::max(most_changes, batch.most_changes());
  return {.shadow = units() * 2,
          .marks = kernels::cuda::GroupsOf(units()),
          .either = kernels::cuda::GroupsOf(most),
          .stripe_firsts = kernels::cuda::StripesOf(most) * sizeof(uint32_t),
          .region_counts = region_bytes,
          .region_firsts = region_bytes,
          .changes = most_changes * sizeof(Change)};
}

Status WriteChanges(const ShadowPlan& plan, size_t batch, std::span<const uint32_t> region_firsts,
                    const Change* changes, std::byte* target, WorkerPool* pool) {
  const auto pieces = plan.PiecesOf(batch);
  const size_t regions = region_firsts.size() - 1;
  std::atomic<bool> placed = true;
  const auto write = [&](size_t task) {
    const size_t end = std::min(regions, (task + 1) * kRegionsPerTask);
    for (size_t region = task * kRegionsPerTask; region < end; ++region) {
      const std::span<const Change> its(changes + region_firsts[region], changes + region_firsts[region + 1]);
      if (!WriteRegion(pieces, region, its, target)) placed = false;
    }
  };
  const size_t tasks = (regions + kRegionsPerTask - 1) / kRegionsPerTask;
  if (pool == nullptr) {
    for (size_t task = 0; task < tasks; ++task) write(task);
  } else {
    pool->ParallelFor(tasks, write);
  }
  return placed ? OkStatus() : Status(ErrorCode::kCorrupt, "the GPU named a change that is in none of the tensors");
}

}  // namespace lockstep::exporter
