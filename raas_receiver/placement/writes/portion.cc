#include "raas_receiver/placement/writes/portion.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/os/sealed_memfd.h"
#include "kernels/copy_rows.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kAlignment = 8;

uint64_t Aligned(uint64_t at) {
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
void AppendValue(os::SealedMemfd& to, const T& value) {
  to.Append({reinterpret_cast<const std::byte*>(&value), sizeof value});
}

void Align(os::SealedMemfd& to) {
  constexpr std::array<std::byte, kAlignment> kZeros{};
  to.Append(ByteView(kZeros).first(Aligned(to.size()) - to.size()));
}

// Rows one behind the other.
void AppendRows(os::SealedMemfd& to, const std::byte* source, uint64_t pitch, uint64_t rows, uint64_t row_bytes) {
  if (rows == 1 || pitch == row_bytes) return to.Append({source, rows * row_bytes});
  const uint64_t at_once = os::SealedMemfd::kMostAtOnce / row_bytes;
  for (uint64_t row = 0; at_once == 0 && row < rows; ++row) to.Append({source + row * pitch, row_bytes});
  for (uint64_t row = 0; at_once != 0 && row < rows; row += at_once) {
    const uint64_t count = std::min(at_once, rows - row);
    kernels::CopyRows(to.Take(count * row_bytes), row_bytes, source + row * pitch, pitch, count, row_bytes);
  }
}

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
  Result<os::UniqueFd> sealed = Write(bytes);
  Clear();
  return sealed;
}

Result<os::UniqueFd> PortionBuilder::Write(uint64_t bytes) const {
  os::SealedMemfd to("lockstep-portion");
  PortionHeader header{.bytes = bytes,
                       .runs = static_cast<uint32_t>(runs_.size()),
                       .copies = static_cast<uint32_t>(copies_.size()),
                       .zeros = static_cast<uint32_t>(zeros_.size())};
  std::memcpy(header.magic, kPortionMagic, sizeof header.magic);
  AppendValue(to, header);
  for (const Run& run : runs_) {
    AppendValue(to, PortionRun{run.memory, run.run.unit, run.run.base, run.run.offsets.size()});
  }
  for (const Rows& copy : copies_) AppendValue(to, copy.entry);
  for (const Rows& zero : zeros_) AppendValue(to, zero.entry);
  for (const Run& run : runs_) to.Append(std::as_bytes(run.run.offsets));
  Align(to);
  for (const Run& run : runs_) to.Append({run.run.values, run.run.offsets.size() * run.run.unit});
  for (const Rows& copy : copies_) {
    Align(to);
    AppendRows(to, copy.source, copy.source_pitch, copy.entry.rows, copy.entry.row_bytes);
  }
  Align(to);
  return std::move(to).Seal();
}

}  // namespace lockstep::placement
