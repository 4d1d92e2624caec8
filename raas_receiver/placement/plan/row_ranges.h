// Internal to the plan: from the pieces of each tensor to row ranges and their column copies.
//
// A tensor and all boxes that are taken of it are seen with as few dimensions as they have in common: neighbouring
// dimensions that all boxes have whole, and without a step between them in the target, count as one. Of the dimensions
// that are left one becomes the rows: each index of those outside of it gives a range of its own, each index of those
// inside of it a copy of its own. The one is chosen that gives the fewest copies.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/plan/parameter_parts.h"
#include "raas_receiver/placement/plan/placement_plan.h"

namespace lockstep::placement {

class RowRangeBuilder {
 public:
  // Appends the ranges of `tensor`, which starts behind all before it and is taken by `parts`. kBadData names the first
  // element that nobody takes, or a parameter that needs too many copies.
  Status Append(const model::TensorMeta& tensor, std::span<const ParameterPart* const> parts);

  std::vector<RowRange> TakeRanges() { return std::move(ranges_); }
  std::vector<ColumnCopy> TakeCopies() { return std::move(copies_); }

 private:
  // A piece, in the dimensions of `grid_`; beyond them nothing is set.
  struct Box {
    const ParameterPart* part = nullptr;
    uint64_t target = 0;                               // byte of the buffer where its first element goes
    std::array<uint64_t, model::kMaxTensorRank> from;  // in the tensor
    std::array<uint64_t, model::kMaxTensorRank> size;
    std::array<uint64_t, model::kMaxTensorRank> step;  // bytes of the buffer from index to index

    uint64_t end(size_t dim) const { return from[dim] + size[dim]; }
    // Whether its elements along `dim` lie one behind the other.
    bool IsRun(size_t dim, uint64_t element_bytes) const { return size[dim] == 1 || step[dim] == element_bytes; }
  };
  using Boxes = std::vector<const Box*>;

  // The tensor, row-major.
  struct Grid {
    size_t rank = 0;
    uint64_t element_bytes = 0;
    std::array<uint64_t, model::kMaxTensorRank> size{};
    std::array<uint64_t, model::kMaxTensorRank> step{};  // bytes of the tensor from index to index
  };

  void LayOut(const model::TensorMeta& tensor, std::span<const ParameterPart* const> parts);
  void AddBox(const ParameterPart& part, const layout::Piece& piece, const size_t* dims);
  bool CanMerge(size_t dim) const;
  void Merge(size_t dim);
  void ChooseRows();
  uint64_t RunsOf(const Box& box, size_t first_dim) const;
  // The ranges of what `boxes` take of the tensor's bytes from `offset` on, in dimensions `dim` and up.
  Status Sweep(size_t dim, Boxes boxes, uint64_t offset);
  // The same for the part from index `begin` to `end` of `dim`, which each of `boxes` has whole.
  Status AppendPart(size_t dim, uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset);
  Status AppendRange(uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset);
  Status AppendColumnCopies(const Box& box, const RowRange& range, uint64_t begin);
  void AppendRuns(const Box& box, size_t dim, ColumnCopy copy);
  Status CheckCovered(const RowRange& range) const;
  Status Untaken(uint64_t offset) const;
  // Makes the last range and `range`, whose copies are the last ones, one if the one continues the other.
  void PushRange(RowRange range);
  bool Widen(RowRange& last, const RowRange& range);
  bool Lengthen(RowRange& last, const RowRange& range);

  std::vector<RowRange> ranges_;
  std::vector<ColumnCopy> copies_;
  std::unordered_map<const EngineParameter*, uint64_t> copies_of_;

  // Of the tensor being appended.
  const model::TensorMeta* tensor_ = nullptr;
  Grid grid_;
  std::vector<Box> boxes_;
  size_t rows_dim_ = 0;
  std::array<uint64_t, model::kMaxTensorRank> index_{};  // of the dimensions outside of rows_dim_, in Sweep
};

}  // namespace lockstep::placement
