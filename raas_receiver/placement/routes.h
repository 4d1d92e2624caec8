// Routes: a plan's bands, cut at the columns where the windows that take them change, so that a run of bytes has one
// answer to "where to?". Only the windows that somebody wants; made once for many look-ups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/strided_copy.h"
#include "raas_receiver/placement/placement_plan.h"

namespace lockstep {

// Byte b of the data section, in row r of its band, is byte b + shift + r * row_shift (mod 2^64) of `window`.
struct Hop {
  uint32_t window = 0;
  uint64_t shift = 0;
  uint64_t row_shift = 0;
};

// Immutable, thread-safe. `plan` outlives it.
class Routes {
 public:
  // Columns [begin, end) of each row of a band. A band's segments follow one another from 0 to its pitch; one that no
  // wanted window takes has no hops.
  struct Segment {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t first_hop = 0;
    uint32_t hops = 0;
  };

  Routes(const PlacementPlan& plan, const std::vector<bool>& wanted);

  std::span<const Band> bands() const { return plan_.bands(); }
  // The first band that ends after `offset`.
  std::span<const Band>::iterator BandAt(uint64_t offset) const { return plan_.BandAt(offset); }
  std::span<const Segment> segments(const Band& band) const;
  std::span<const Hop> hops(const Segment& segment) const {
    return std::span(hops_).subspan(segment.first_hop, segment.hops);
  }

 private:
  void AddBand(const Band& band, const std::vector<bool>& wanted);

  const PlacementPlan& plan_;
  std::vector<size_t> first_segments_;  // one per band, and one for the end
  std::vector<Segment> segments_;
  std::vector<Hop> hops_;
};

// Looks up rising offsets. Cost follows the look-ups: rows and bands between them are passed over.
class RouteCursor {
 public:
  // Bytes from the one asked for to `end` go by `hops` and lie in row `row`.
  struct Stretch {
    uint64_t end = 0;
    uint64_t row = 0;
    std::span<const Hop> hops;
  };

  explicit RouteCursor(const Routes& routes) : routes_(routes), bands_end_(routes.bands().end()) {}

  // REQUIRES offset at or after the one before.
  Stretch At(uint64_t offset);

 private:
  void EnterBand(uint64_t offset);
  void EnterRow(uint64_t offset);

  const Routes& routes_;
  const std::span<const Band>::iterator bands_end_;
  std::span<const Band>::iterator band_{};
  uint64_t band_end_ = 0;  // bytes before it have been passed, or are of band_
  uint64_t row_ = 0;
  uint64_t row_begin_ = 0;
  uint64_t row_end_ = 0;
  std::span<const Routes::Segment> segments_;
  size_t segment_ = 0;
};

// Calls add(window, StridedCopy) for the copies that bring the bytes of `range` to their windows, and answers how many
// bytes of it some window takes.
template <typename Add>
uint64_t CopiesOfRange(const Routes& routes, ByteRange range, Add add);

// Rows [row, row + rows) of `band`, of each the columns [from, to).
struct BandPart {
  uint64_t row = 0;
  uint64_t rows = 0;
  uint64_t from = 0;
  uint64_t to = 0;
};

// `range` as at most three parts of `band`: the rest of a row, whole rows, the begin of a row. REQUIRES that they
// share bytes.
std::vector<BandPart> PartsOf(const Band& band, ByteRange range);

template <typename Add>
uint64_t CopiesOfRange(const Routes& routes, ByteRange range, Add add) {
  uint64_t taken = 0;
  const auto end = routes.bands().end();
  for (auto band = routes.BandAt(range.offset); band != end && band->offset < range.offset + range.bytes; ++band) {
    for (const BandPart& part : PartsOf(*band, range)) {
      for (const Routes::Segment& segment : routes.segments(*band)) {
        const uint64_t from = std::max(segment.begin, part.from);
        const uint64_t to = std::min(segment.end, part.to);
        if (from >= to || segment.hops == 0) continue;
        taken += part.rows * (to - from);
        const uint64_t source = band->offset + part.row * band->pitch + from;
        for (const Hop& hop : routes.hops(segment)) {
          const bool one = part.rows == 1;
          add(hop.window, StridedCopy{.source_offset = source,
                                      .target_offset = source + hop.shift + part.row * hop.row_shift,
                                      .rows = part.rows,
                                      .row_bytes = to - from,
                                      .source_pitch = one ? 0 : band->pitch,
                                      .target_pitch = one ? 0 : band->pitch + hop.row_shift});
        }
      }
    }
  }
  return taken;
}

}  // namespace lockstep
