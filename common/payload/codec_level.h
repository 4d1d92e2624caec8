// How hard the heads of a sparse block are compressed (FORMAT.md, "Levels"), and what that costs.
//
// A level is one row of the table in codec_level.cc, and nothing else knows how many there are: how another is added is
// in docs/walkthroughs/codec_level.md. A block says itself how it was coded, so there is one decoder for all.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/bytes.h"

namespace lockstep::payload {

// What a changed element costs at a level, as measured (docs/performance.md, "The codec").
struct LevelCost {
  double bytes = 0;  // on the wire
  // Processor time to make and undo what the first level does not have. A block's fixed part, `shared_ns` for each of
  // its elements, is divided among those that changed; `least_ns` is left when many do.
  double shared_ns = 0;
  double least_ns = 0;

  // `density`: the share of elements that changed, above 0.
  double Nanoseconds(double density) const;
};

// A handle, copied freely; ordered by rising compression.
class CodecLevel {
 public:
  struct Row {
    uint8_t number;  // as in the control plane
    std::string_view name;
    // Replaces `frame` by the compressed heads; false: they do not get smaller. Null: heads stay as they are.
    bool (*compress_heads)(std::span<const uint8_t> heads, Bytes& frame);
    LevelCost cost;
  };

  static const CodecLevel kFast;     // heads as they are: for links that carry more than an encoder compresses
  static const CodecLevel kCompact;  // heads through an entropy stage

  // All there are, rising.
  static std::span<const CodecLevel> All();

  // `row` outlives the level. All() are made of the table; tests make others.
  explicit constexpr CodecLevel(const Row& row) : row_(&row) {}

  const Row* operator->() const { return row_; }

  friend bool operator==(CodecLevel a, CodecLevel b) { return a->number == b->number; }
  friend auto operator<=>(CodecLevel a, CodecLevel b) { return a->number <=> b->number; }

 private:
  const Row* row_;
};

}  // namespace lockstep::payload
