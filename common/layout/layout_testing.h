// For tests of layouts: random shapes, tilings and relations, the elements of a relation, and copies of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/layout/piece.h"
#include "common/layout/strided_copy.h"

namespace lockstep::layout {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // From low to high, both included.
  uint64_t Between(uint64_t low, uint64_t high) { return low + engine_() % (high - low + 1); }
  bool OneIn(uint64_t count) { return engine_() % count == 0; }
  template <typename T>
  T OneOf(std::initializer_list<T> choices) {
    return *(choices.begin() + Between(0, choices.size() - 1));
  }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    std::shuffle(items.begin(), items.end(), engine_);
  }
  Extents Shape(size_t rank, uint64_t most) {
    Extents shape(rank);
    for (uint64_t& size : shape) size = Between(1, most);
    return shape;
  }

 private:
  std::mt19937_64 engine_;
};

inline constexpr uint64_t kNoElement = ~uint64_t{0};

// Calls visit(start + index) for every index of a box, in row-major order.
template <typename Visit>
void ForEachIndex(const Extents& size, Visit visit) {
  if (ElementCount(size) == 0) return;
  Extents index(size.size());
  for (;;) {
    visit(static_cast<const Extents&>(index));
    size_t k = size.size();
    while (k > 0 && ++index[k - 1] == size[k - 1]) index[--k] = 0;
    if (k == 0) return;
  }
}

inline uint64_t FlatIndex(const Extents& shape, const Extents& start, const Extents& index) {
  uint64_t flat = 0;
  for (size_t k = 0; k < shape.size(); ++k) flat = flat * shape[k] + start[k] + index[k];
  return flat;
}

// Runs `copies` of bytes. False when one leaves its memory or, with `once`, writes a byte that is not 0xff.
inline bool RunCopies(const std::vector<StridedCopy>& copies, std::span<const std::byte> source,
                      std::span<std::byte> target, bool once = false) {
  for (const StridedCopy& copy : copies) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      const uint64_t from = copy.source_offset + row * copy.source_pitch;
      const uint64_t to = copy.target_offset + row * copy.target_pitch;
      if (from + copy.row_bytes > source.size() || to + copy.row_bytes > target.size()) return false;
      const std::span<std::byte> into = target.subspan(to, copy.row_bytes);
      if (once && std::count(into.begin(), into.end(), std::byte{0xff}) < std::ssize(into)) return false;
      std::copy_n(source.begin() + from, copy.row_bytes, into.begin());
    }
  }
  return true;
}

// For every element of B the element of A that it is, or kNoElement.
inline std::vector<uint64_t> ElementMap(const Pieces& pieces, const Extents& a, const Extents& b) {
  std::vector<uint64_t> map(ElementCount(b), kNoElement);
  for (const Piece& piece : pieces) {
    ForEachIndex(piece.size, [&](const Extents& index) {
      map[FlatIndex(b, piece.target, index)] = FlatIndex(a, piece.source, index);
    });
  }
  return map;
}

// Boxes (source = target) that tile `shape`: each grows from the first free element by a random number of steps, so
// that tilings which no straight cut divides occur too.
inline Pieces RandomTiling(Random& random, const Extents& shape) {
  std::vector<bool> taken(ElementCount(shape));
  Pieces boxes;
  const auto is_free = [&](const Extents& start, const Extents& size) {
    bool free = true;
    ForEachIndex(size, [&](const Extents& index) { free = free && !taken[FlatIndex(shape, start, index)]; });
    return free;
  };
  ForEachIndex(shape, [&](const Extents& start) {
    if (taken[FlatIndex(shape, start, Extents(shape.size()))]) return;
    Extents size(shape.size(), 1);
    for (uint64_t step = random.Between(0, 12); step > 0 && !shape.empty(); --step) {
      const size_t k = random.Between(0, shape.size() - 1);
      Extents larger = size;
      ++larger[k];
      if (start[k] + larger[k] <= shape[k] && is_free(start, larger)) size = larger;
    }
    ForEachIndex(size, [&](const Extents& index) { taken[FlatIndex(shape, start, index)] = true; });
    boxes.push_back({start, start, size});
  });
  random.Shuffle(boxes);
  return boxes;
}

// Some boxes of A at places of B that are free.
inline Pieces RandomRelation(Random& random, const Extents& a, const Extents& b) {
  Pieces relation;
  std::vector<bool> taken(ElementCount(b));
  for (Piece piece : RandomTiling(random, a)) {
    bool free = true;
    for (size_t k = 0; k < b.size(); ++k) {
      free = free && piece.size[k] <= b[k];
      if (free && !random.OneIn(3)) piece.target[k] = random.Between(0, b[k] - piece.size[k]);
      free = free && piece.target[k] + piece.size[k] <= b[k];
    }
    if (!free) continue;
    ForEachIndex(piece.size, [&](const Extents& index) { free = free && !taken[FlatIndex(b, piece.target, index)]; });
    if (!free) continue;
    ForEachIndex(piece.size, [&](const Extents& index) { taken[FlatIndex(b, piece.target, index)] = true; });
    relation.push_back(std::move(piece));
  }
  return relation;
}

// The same relation, cut at random and in random order.
inline Pieces Shattered(Random& random, const Pieces& pieces) {
  Pieces shards;
  for (const Piece& piece : pieces) {
    for (const Piece& box : RandomTiling(random, piece.size)) {
      Piece shard = box;
      for (size_t k = 0; k < box.size.size(); ++k) {
        shard.source[k] += piece.source[k];
        shard.target[k] += piece.target[k];
      }
      shards.push_back(std::move(shard));
    }
  }
  random.Shuffle(shards);
  return shards;
}

}  // namespace lockstep::layout
