#include "common/layout/tiling.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/text.h"

namespace lockstep::layout {
namespace {

uint64_t Product(const uint64_t* begin, const uint64_t* end) {
  return std::accumulate(begin, end, uint64_t{1}, std::multiplies<>());
}

bool Meet(const BoxView& a, const BoxView& b, size_t rank) {
  for (size_t k = 0; k < rank; ++k) {
    if (a.start[k] >= b.start[k] + b.size[k] || b.start[k] >= a.start[k] + a.size[k]) return false;
  }
  return true;
}

// Boxes by position. A cluster is a list of boxes that may yet overlap one another; it is cut along one dimension after
// the other until each box is alone or no dimension cuts it.
class OverlapSearch {
 public:
  OverlapSearch(std::span<const BoxView> boxes, size_t rank) : boxes_(boxes), rank_(rank) {
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (Product(boxes[i].size, boxes[i].size + rank) != 0) ids_.push_back(i);
    }
  }

  std::optional<Overlap> Run() {
    // A list of its own instead of recursion: boxes from outside may nest as deep as they are many.
    open_.push_back(ids_);
    while (!open_.empty()) {
      const std::span<size_t> cluster = open_.back();
      open_.pop_back();
      if (cluster.size() < 2 || Cut(cluster)) continue;
      if (auto overlap = ComparePairs(cluster)) return overlap;
    }
    return std::nullopt;
  }

 private:
  bool Cut(std::span<size_t> cluster) {
    for (size_t k = 0; k < rank_; ++k) {
      if (CutAlong(cluster, k)) return true;
    }
    return false;
  }

  bool CutAlong(std::span<size_t> cluster, size_t k) {
    const auto by_start = [&](size_t a, size_t b) {
      return std::pair(boxes_[a].start[k], a) < std::pair(boxes_[b].start[k], b);
    };
    if (!std::is_sorted(cluster.begin(), cluster.end(), by_start)) std::sort(cluster.begin(), cluster.end(), by_start);
    size_t begin = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < cluster.size(); ++i) {
      const BoxView& box = boxes_[cluster[i]];
      if (i > begin && box.start[k] >= end) {
        open_.push_back(cluster.subspan(begin, i - begin));
        begin = i;
      }
      end = std::max(end, box.start[k] + box.size[k]);
    }
    if (begin == 0) return false;
    open_.push_back(cluster.subspan(begin));
    return true;
  }

  std::optional<Overlap> ComparePairs(std::span<const size_t> cluster) const {
    for (size_t i = 1; i < cluster.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!Meet(boxes_[cluster[i]], boxes_[cluster[j]], rank_)) continue;
        return Overlap{std::min(cluster[i], cluster[j]), std::max(cluster[i], cluster[j])};
      }
    }
    return std::nullopt;
  }

  std::span<const BoxView> boxes_;
  size_t rank_;
  std::vector<size_t> ids_;
  std::vector<std::span<size_t>> open_;
};

// The first index along dimension `k` where the boxes' cross-sections do not add up to `full`.
uint64_t FirstUncovered(std::span<const BoxView> boxes, size_t k, size_t rank, uint64_t full) {
  std::vector<std::pair<uint64_t, uint64_t>> steps;  // where, and by how much (modulo 2^64) the sum changes
  for (const BoxView& box : boxes) {
    const uint64_t cross = Product(box.size + k + 1, box.size + rank);
    steps.emplace_back(box.start[k], cross);
    steps.emplace_back(box.start[k] + box.size[k], uint64_t{0} - cross);
  }
  std::sort(steps.begin(), steps.end());
  uint64_t at = 0;
  uint64_t covered = 0;
  for (size_t i = 0; i < steps.size();) {
    if (steps[i].first > at && covered < full) return at;
    at = steps[i].first;
    for (; i < steps.size() && steps[i].first == at; ++i) covered += steps[i].second;
  }
  return at;
}

}  // namespace

BoxView TargetView(const Piece& piece, size_t rank) {
  const size_t skip = piece.target.size() - rank;
  return {piece.target.data() + skip, piece.size.data() + skip};
}

Piece Shared(const BoxView& a, const BoxView& b, size_t rank) {
  Piece shared;
  for (size_t k = 0; k < rank; ++k) {
    const uint64_t start = std::max(a.start[k], b.start[k]);
    shared.target.push_back(start);
    shared.size.push_back(std::min(a.start[k] + a.size[k], b.start[k] + b.size[k]) - start);
  }
  shared.source = shared.target;
  return shared;
}

std::optional<Overlap> FindOverlap(std::span<const BoxView> boxes, size_t rank) {
  if (boxes.size() < 2) return std::nullopt;
  return OverlapSearch(boxes, rank).Run();
}

std::optional<Hole> FindHole(std::span<const BoxView> boxes, const Extents& shape) {
  const size_t rank = shape.size();
  const uint64_t all = ElementCount(shape);
  uint64_t covered = 0;
  std::vector<BoxView> inside;
  for (const BoxView& box : boxes) {
    const uint64_t elements = Product(box.size, box.size + rank);
    covered += elements;
    if (elements != 0) inside.push_back(box);
  }
  if (covered >= all) return std::nullopt;
  Hole hole{.elements = all - covered};
  for (size_t k = 0; k < rank; ++k) {
    const uint64_t at = FirstUncovered(inside, k, rank, Product(shape.data() + k + 1, shape.data() + rank));
    hole.first.push_back(at);
    std::erase_if(inside, [&](const BoxView& box) { return at < box.start[k] || at - box.start[k] >= box.size[k]; });
  }
  return hole;
}

Status CheckDisjoint(const Pieces& pieces) {
  if (pieces.size() < 2) return OkStatus();
  const size_t rank = pieces[0].size.size();
  for (const bool target : {false, true}) {
    std::vector<BoxView> boxes;
    for (const Piece& piece : pieces) {
      boxes.push_back({target ? piece.target.data() : piece.source.data(), piece.size.data()});
    }
    if (const auto overlap = FindOverlap(boxes, rank)) {
      const Piece shared = Shared(boxes[overlap->first], boxes[overlap->second], rank);
      return {ErrorCode::kBadData, Cat("pieces ", overlap->first, " and ", overlap->second, " overlap on the ",
                                       target ? "target" : "source", " side in ", BoxText(shared.target, shared.size))};
    }
  }
  return OkStatus();
}

}  // namespace lockstep::layout
