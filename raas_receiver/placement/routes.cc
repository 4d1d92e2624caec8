#include "raas_receiver/placement/routes.h"

#include <algorithm>

namespace lockstep {

Routes::Routes(const PlacementPlan& plan, const std::vector<bool>& wanted) : plan_(plan) {
  first_segments_.reserve(plan.bands().size() + 1);
  for (const Band& band : plan.bands()) AddBand(band, wanted);
  first_segments_.push_back(segments_.size());
}

std::span<const Routes::Segment> Routes::segments(const Band& band) const {
  const auto index = static_cast<size_t>(&band - plan_.bands().data());
  return std::span(segments_).subspan(first_segments_[index], first_segments_[index + 1] - first_segments_[index]);
}

void Routes::AddBand(const Band& band, const std::vector<bool>& wanted) {
  first_segments_.push_back(segments_.size());
  std::vector<const Way*> ways;
  std::vector<uint64_t> cuts{0, band.pitch};
  for (const Way& way : plan_.ways(band)) {
    if (!wanted[way.window]) continue;
    ways.push_back(&way);
    cuts.push_back(way.column);
    cuts.push_back(way.column + way.bytes);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<const Way*> here;
  size_t next = 0;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::erase_if(here, [&](const Way* way) { return way->column + way->bytes <= cuts[i]; });
    for (; next < ways.size() && ways[next]->column <= cuts[i]; ++next) here.push_back(ways[next]);
    segments_.push_back(
        {cuts[i], cuts[i + 1], static_cast<uint32_t>(hops_.size()), static_cast<uint32_t>(here.size())});
    for (const Way* way : here) {
      hops_.push_back({.window = way->window,
                       .shift = way->target_offset - way->column - band.offset,
                       .row_shift = way->target_pitch - band.pitch});
    }
  }
}

RouteCursor::Stretch RouteCursor::At(uint64_t offset) {
  if (offset >= band_end_) EnterBand(offset);
  if (band_ == bands_end_) return {.end = UINT64_MAX};
  if (offset < band_->offset) return {.end = band_->offset};
  if (offset >= row_end_) EnterRow(offset);
  const uint64_t column = offset - row_begin_;
  if (column >= segments_[segment_].end) {
    const auto after = [](uint64_t at, const Routes::Segment& segment) { return at < segment.end; };
    segment_ = static_cast<size_t>(
        std::upper_bound(segments_.begin() + static_cast<ptrdiff_t>(segment_), segments_.end(), column, after) -
        segments_.begin());
  }
  const Routes::Segment& segment = segments_[segment_];
  return {.end = row_begin_ + segment.end, .row = row_, .hops = routes_.hops(segment)};
}

void RouteCursor::EnterBand(uint64_t offset) {
  band_ = routes_.BandAt(offset);
  if (band_ == bands_end_) {
    band_end_ = UINT64_MAX;
    return;
  }
  band_end_ = band_->end();
  segments_ = routes_.segments(*band_);
  segment_ = 0;
  row_ = 0;
  row_begin_ = band_->offset;
  row_end_ = band_->offset + band_->pitch;
}

void RouteCursor::EnterRow(uint64_t offset) {
  // Mostly the next one: only a jump is worth a division.
  const uint64_t rows = offset - row_end_ < band_->pitch ? 1 : (offset - row_begin_) / band_->pitch;
  row_ += rows;
  row_begin_ += rows * band_->pitch;
  row_end_ = row_begin_ + band_->pitch;
  segment_ = 0;
}

std::vector<BandPart> PartsOf(const Band& band, ByteRange range) {
  const uint64_t from = std::max(band.offset, range.offset) - band.offset;
  const uint64_t to = std::min(band.end(), range.offset + range.bytes) - band.offset;
  const uint64_t first = from / band.pitch;
  const uint64_t last = (to - 1) / band.pitch;
  const uint64_t first_column = from - first * band.pitch;
  const uint64_t last_column = to - last * band.pitch;
  if (first == last) return {{first, 1, first_column, last_column}};
  std::vector<BandPart> parts;
  const uint64_t whole_from = first_column == 0 ? first : first + 1;
  const uint64_t whole_to = last_column == band.pitch ? last + 1 : last;
  if (whole_from != first) parts.push_back({first, 1, first_column, band.pitch});
  if (whole_from < whole_to) parts.push_back({whole_from, whole_to - whole_from, 0, band.pitch});
  if (whole_to == last) parts.push_back({last, 1, 0, last_column});
  return parts;
}

}  // namespace lockstep
