#include "raas_receiver/placement/writes/portion.h"

#include <algorithm>
#include <cstring>

#include "common/os/segment.h"
#include "kernels/copy_rows.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kAlignment = 8;

uint64_t Aligned(uint64_t at) {
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

// Goes through a portion from its begin; what alignment skips stays zero.
class Cursor {
 public:
  explicit Cursor(std::span<std::byte> portion) : portion_(portion) {}

  template <typename T>
  void Append(const T& value) {
    std::memcpy(Take(sizeof value), &value, sizeof value);
  }
  std::byte* Take(uint64_t bytes) {
    std::byte* const at = portion_.data() + at_;
    at_ += bytes;
    return at;
  }
  void Align() { at_ = Aligned(at_); }

 private:
  const std::span<std::byte> portion_;
  uint64_t at_ = 0;
};

}  // namespace

bool PortionBuilder::Reserve(uint64_t bytes) {
  if (bytes_ + bytes > max_bytes_) return false;
  bytes_ += bytes;
  return true;
}

void PortionBuilder::Clear() {
  bytes_ = sizeof(PortionHeader);
  runs_.clear();
  copies_.clear();
  zeros_.clear();
}

bool PortionBuilder::Scatter(uint32_t memory, const ScatterRun& run) {
  if (!Reserve(sizeof(PortionRun) + 2 * kAlignment + run.offsets.size() * (sizeof(uint32_t) + run.unit))) return false;
  runs_.push_back({memory, run});
  return true;
}

bool PortionBuilder::Copy(uint32_t memory, const layout::StridedCopy& copy, const std::byte* source) {
  if (!Reserve(sizeof(PortionRows) + kAlignment + copy.bytes())) return false;
  copies_.push_back({{.memory = memory,
                      .offset = copy.target_offset,
                      .rows = copy.rows,
                      .row_bytes = copy.row_bytes,
                      .pitch = copy.rows == 1 ? 0 : copy.target_pitch},
                     source + copy.source_offset,
                     copy.source_pitch});
  return true;
}

bool PortionBuilder::Zero(uint32_t memory, const StridedRange& range) {
  if (!Reserve(sizeof(PortionRows))) return false;
  zeros_.push_back({{.memory = memory,
                     .offset = range.offset,
                     .rows = range.rows,
                     .row_bytes = range.row_bytes,
                     .pitch = range.rows == 1 ? 0 : range.pitch},
                    nullptr,
                    0});
  return true;
}

Result<os::UniqueFd> PortionBuilder::Seal() {
  // The widest first, so that all values are aligned.
  std::stable_sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.run.unit > b.run.unit; });
  uint64_t units = 0;
  uint64_t values = 0;
  for (const Run& run : runs_) {
    units += run.run.offsets.size();
    values += run.run.offsets.size() * run.run.unit;
  }
  uint64_t bytes = sizeof(PortionHeader) + runs_.size() * sizeof(PortionRun) +
                   (copies_.size() + zeros_.size()) * sizeof(PortionRows);
  bytes = Aligned(Aligned(bytes + units * sizeof(uint32_t)) + values);
  for (const Rows& copy : copies_) bytes += Aligned(copy.entry.rows * copy.entry.row_bytes);
  Result<os::UniqueFd> sealed =
      os::CreateSealedMemfd("lockstep-portion", bytes, [&](std::span<std::byte> portion) { Write(portion); });
  Clear();
  return sealed;
}

void PortionBuilder::Write(std::span<std::byte> portion) const {
  Cursor to(portion);
  PortionHeader header{.bytes = portion.size(),
                       .runs = static_cast<uint32_t>(runs_.size()),
                       .copies = static_cast<uint32_t>(copies_.size()),
                       .zeros = static_cast<uint32_t>(zeros_.size())};
  std::memcpy(header.magic, kPortionMagic, sizeof header.magic);
  to.Append(header);
  for (const Run& run : runs_) {
    to.Append(PortionRun{run.memory, run.run.unit, run.run.base, run.run.offsets.size()});
  }
  for (const Rows& copy : copies_) to.Append(copy.entry);
  for (const Rows& zero : zeros_) to.Append(zero.entry);
  for (const Run& run : runs_) {
    const uint64_t bytes = run.run.offsets.size() * sizeof(uint32_t);
    std::memcpy(to.Take(bytes), run.run.offsets.data(), bytes);
  }
  to.Align();
  for (const Run& run : runs_) {
    const uint64_t bytes = run.run.offsets.size() * run.run.unit;
    std::memcpy(to.Take(bytes), run.run.values, bytes);
  }
  for (const Rows& copy : copies_) {
    to.Align();
    const uint64_t row_bytes = copy.entry.row_bytes;
    kernels::CopyRows(to.Take(copy.entry.rows * row_bytes), row_bytes, copy.source, copy.source_pitch, copy.entry.rows,
                      row_bytes);
  }
}

}  // namespace lockstep::placement
