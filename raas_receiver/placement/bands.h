// Internal to the plan: from the pieces of each tensor to bands and ways.
//
// A tensor and all boxes that are taken of it are seen with as few dimensions as they have in common: neighbouring
// dimensions that all boxes have whole, and without a step between them in the target, count as one. Of the dimensions
// that are left one becomes the rows of bands; those outside of it are told one band after the other, those inside of
// it one way after the other. The one is chosen that gives the fewest ways.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/placement_plan.h"
#include "raas_receiver/placement/shares.h"

namespace lockstep {

// A parameter that lies so scattered that lists of ways are no way to write it, and a plan that is too large to keep.
inline constexpr uint64_t kMaxWaysOfParameter = uint64_t{1} << 20;
inline constexpr uint64_t kMaxWays = uint64_t{1} << 24;

class BandBuilder {
 public:
  // Appends the bands of `tensor`, which starts behind all before it and is taken by `shares`. kBadData names the first
  // element that nobody takes, or a parameter that needs too many ways.
  Status Append(const TensorMeta& tensor, std::span<const Share* const> shares);

  std::vector<Band> TakeBands() { return std::move(bands_); }
  std::vector<Way> TakeWays() { return std::move(ways_); }

 private:
  // A piece, in the dimensions of `grid_`; beyond them nothing is set.
  struct Box {
    const Share* share = nullptr;
    uint64_t target = 0;                        // byte of the window where its first element goes
    std::array<uint64_t, kMaxTensorRank> from;  // in the tensor
    std::array<uint64_t, kMaxTensorRank> size;
    std::array<uint64_t, kMaxTensorRank> step;  // bytes of the window from index to index

    uint64_t end(size_t dim) const { return from[dim] + size[dim]; }
    // Whether its elements along `dim` lie one behind the other.
    bool IsRun(size_t dim, uint64_t element_bytes) const { return size[dim] == 1 || step[dim] == element_bytes; }
  };
  using Boxes = std::vector<const Box*>;

  // The tensor, row-major.
  struct Grid {
    size_t rank = 0;
    uint64_t element_bytes = 0;
    std::array<uint64_t, kMaxTensorRank> size{};
    std::array<uint64_t, kMaxTensorRank> step{};  // bytes of the tensor from index to index
  };

  void See(const TensorMeta& tensor, std::span<const Share* const> shares);
  void AddBox(const Share& share, const Piece& piece, const size_t* dims);
  bool CanMerge(size_t dim) const;
  void Merge(size_t dim);
  void ChooseRows();
  uint64_t RunsOf(const Box& box, size_t first_dim) const;
  // The bands of what `boxes` take of the tensor's bytes from `offset` on, in dimensions `dim` and up.
  Status Sweep(size_t dim, Boxes boxes, uint64_t offset);
  // The same for the part from index `begin` to `end` of `dim`, which each of `boxes` has whole.
  Status AppendPart(size_t dim, uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset);
  Status AppendBand(uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset);
  Status AppendWays(const Box& box, const Band& band, uint64_t begin);
  void AppendRuns(const Box& box, size_t dim, Way way);
  Status CheckCovered(const Band& band) const;
  Status Untaken(uint64_t offset) const;
  // Makes the last band and `band`, whose ways are the last ones, one if they go on alike.
  void PushBand(Band band);
  bool Widen(Band& last, const Band& band);
  bool Lengthen(Band& last, const Band& band);

  std::vector<Band> bands_;
  std::vector<Way> ways_;
  std::unordered_map<const EngineParameter*, uint64_t> ways_of_;

  // Of the tensor being appended.
  const TensorMeta* tensor_ = nullptr;
  Grid grid_;
  std::vector<Box> boxes_;
  size_t rows_dim_ = 0;
  std::array<uint64_t, kMaxTensorRank> index_{};  // of the dimensions outside of rows_dim_, in Sweep
};

}  // namespace lockstep
