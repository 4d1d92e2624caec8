#include "export_plugin/exporter/frozen_bytes.h"

#include <atomic>
#include <cstring>

#include "common/base/text.h"

namespace lockstep::exporter {
namespace {

constexpr uint64_t kNone = UINT64_MAX;

// Where the first row starts that differs; kNone.
uint64_t FirstDifference(const StridedRange& range, const std::byte* one, const std::byte* other) {
  for (uint64_t row = 0; row < range.rows; ++row) {
    const uint64_t at = range.offset + row * range.pitch;
    if (std::memcmp(one + at, other + at, range.row_bytes) != 0) return at;
  }
  return kNone;
}

}  // namespace

Status FrozenBytes::CheckEqual(const std::byte* one, const std::byte* other, const model::ModelLayout& layout,
                               WorkerPool* pool) {
  if (equal_) return OkStatus();
  std::atomic<uint64_t> first = kNone;
  const auto compare = [&](size_t i) {
    const uint64_t at = FirstDifference(ranges_[i], one, other);
    uint64_t known = first;
    while (at < known && !first.compare_exchange_weak(known, at)) {
    }
  };
  if (pool != nullptr) {
    pool->ParallelFor(ranges_.size(), compare);
  } else {
    for (size_t i = 0; i < ranges_.size(); ++i) compare(i);
  }
  equal_ = first == kNone;
  if (equal_) return OkStatus();
  in_slot_ = {};
  return {ErrorCode::kBadData, Cat("tensor \"", layout.tensors()[layout.TensorAt(first)].name,
                                   "\" was said to be frozen, but changed between two versions; open the exporter "
                                   "with it not frozen")};
}

void FrozenBytes::Settle(size_t slot, bool ok) {
  in_slot_[slot] = ok;
  if (!in_both()) equal_ = false;
}

}  // namespace lockstep::exporter
