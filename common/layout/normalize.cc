// The canonical form of a relation. Pieces of equal displacement (source - target) form one region of the target; a
// region is cut into slabs along its first dimension wherever its cross-section changes, each cross-section likewise,
// and parts of cross-sections that stay the same from slab to slab become one box again. Nothing of that depends on how
// the region was cut before.
#include <algorithm>
#include <utility>

#include "common/layout/piece.h"

namespace lockstep::layout {
namespace {

struct Interval {
  uint64_t begin = 0;
  uint64_t end = 0;

  auto operator<=>(const Interval&) const = default;
};
using Region = std::vector<Interval>;  // a box; the last dimension first, so that cross-sections grow at the end

bool IsEmpty(const Piece& piece) {
  return std::find(piece.size.begin(), piece.size.end(), 0) != piece.size.end();
}

// Negative displacements wrap around, which keeps equal ones equal.
bool Displaced(const Piece& a, const Piece& b, size_t k) {
  return a.source[k] - a.target[k] < b.source[k] - b.target[k];
}

bool DisplacedLess(const Piece& a, const Piece& b) {
  for (size_t k = 0; k < a.size.size(); ++k) {
    if (Displaced(a, b, k)) return true;
    if (Displaced(b, a, k)) return false;
  }
  return false;
}

bool TargetLess(const Piece& a, const Piece& b) {
  return a.target < b.target;
}

// The boxes of cross-sections that are still the same as in the slab before, and where each began.
class OpenBoxes {
 public:
  // The slab that starts at `at` has the cross-section `parts`, sorted.
  void Advance(uint64_t at, std::vector<Region> parts, std::vector<Region>& closed) {
    std::vector<std::pair<Region, uint64_t>> next;
    size_t old = 0;
    for (Region& part : parts) {
      while (old < open_.size() && open_[old].first < part) Close(open_[old++], at, closed);
      const bool goes_on = old < open_.size() && open_[old].first == part;
      next.emplace_back(std::move(part), goes_on ? open_[old].second : at);
      if (goes_on) ++old;
    }
    while (old < open_.size()) Close(open_[old++], at, closed);
    open_ = std::move(next);
  }

 private:
  static void Close(std::pair<Region, uint64_t>& box, uint64_t at, std::vector<Region>& closed) {
    box.first.push_back({box.second, at});
    closed.push_back(std::move(box.first));
  }

  std::vector<std::pair<Region, uint64_t>> open_;  // sorted
};

// The canonical boxes, sorted, of what `pieces` cover in dimensions k and up.
std::vector<Region> Canonical(std::vector<const Piece*> pieces, size_t k) {
  if (pieces.empty()) return {};
  if (k == pieces[0]->size.size()) return {Region()};
  std::vector<uint64_t> cuts;
  for (const Piece* piece : pieces) {
    cuts.push_back(piece->target[k]);
    cuts.push_back(piece->target[k] + piece->size[k]);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::sort(pieces.begin(), pieces.end(), [&](const Piece* a, const Piece* b) { return a->target[k] < b->target[k]; });

  std::vector<Region> closed;
  OpenBoxes open;
  std::vector<const Piece*> inside;
  size_t entered = 0;
  for (const uint64_t cut : cuts) {
    std::erase_if(inside, [&](const Piece* piece) { return piece->target[k] + piece->size[k] <= cut; });
    while (entered < pieces.size() && pieces[entered]->target[k] == cut) inside.push_back(pieces[entered++]);
    open.Advance(cut, Canonical(inside, k + 1), closed);
  }
  std::sort(closed.begin(), closed.end());
  return closed;
}

// Replaces pieces [begin, end), of one displacement, by their canonical boxes, appended to `normal`.
void AppendCanonical(Pieces::iterator begin, Pieces::iterator end, Pieces& normal) {
  if (end - begin == 1) {
    normal.push_back(std::move(*begin));
    return;
  }
  std::vector<const Piece*> group;
  for (auto piece = begin; piece != end; ++piece) group.push_back(&*piece);
  const size_t rank = begin->size.size();
  for (const Region& region : Canonical(group, 0)) {
    Piece piece{Extents(rank), Extents(rank), Extents(rank)};
    for (size_t k = 0; k < rank; ++k) {
      const Interval interval = region[rank - 1 - k];
      piece.target[k] = interval.begin;
      piece.size[k] = interval.end - interval.begin;
      piece.source[k] = interval.begin + (begin->source[k] - begin->target[k]);
    }
    normal.push_back(std::move(piece));
  }
}

}  // namespace

Pieces Normalize(Pieces pieces) {
  std::erase_if(pieces, IsEmpty);
  if (pieces.size() < 2) return pieces;
  std::sort(pieces.begin(), pieces.end(), DisplacedLess);
  Pieces normal;
  normal.reserve(pieces.size());
  for (auto begin = pieces.begin(); begin != pieces.end();) {
    const auto end = std::upper_bound(begin, pieces.end(), *begin, DisplacedLess);
    AppendCanonical(begin, end, normal);
    begin = end;
  }
  std::sort(normal.begin(), normal.end(), TargetLess);
  return normal;
}

}  // namespace lockstep::layout
