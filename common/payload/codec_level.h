// How hard the control bytes of a sparse block are compressed (FORMAT.md, "Levels"). An agent has one level, by
// --codec.
//
// A level is one row of the table in codec_level.cc, and nothing else knows how many there are: how another is added is
// in docs/walkthroughs/codec_level.md. A block says itself how it was coded, so there is one decoder for all.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/bytes.h"

namespace lockstep::payload {

// A handle, copied freely.
class CodecLevel {
 public:
  struct Row {
    std::string_view name;
    // Replaces `frame` by the compressed control bytes; false: they do not get smaller. Null: control bytes stay as
    // they are.
    bool (*compress_controls)(std::span<const uint8_t> controls, Bytes& frame);
  };

  static const CodecLevel kFast;     // control bytes as they are
  static const CodecLevel kCompact;  // control bytes through an entropy stage, for links below about 100 MB/s

  // All there are, by rising compression.
  static std::span<const CodecLevel> All();

  // `row` outlives the level. All() are made of the table; tests make others.
  explicit constexpr CodecLevel(const Row& row) : row_(&row) {}

  const Row* operator->() const { return row_; }

  friend bool operator==(CodecLevel a, CodecLevel b) { return a->name == b->name; }

 private:
  const Row* row_;
};

}  // namespace lockstep::payload
