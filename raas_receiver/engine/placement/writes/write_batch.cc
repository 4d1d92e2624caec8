#include "raas_receiver/engine/placement/writes/write_batch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/copy_rows.h"
#include "kernels/gather.h"

namespace lockstep::engine {
namespace {

// A run's base is a multiple of this, at or below its first target; neighbours in front of it still have offsets.
constexpr uint64_t kBaseStep = uint64_t{1} << 31;

uint64_t Aligned(uint64_t at) {
  return (at + kWriteBatchAlignment - 1) / kWriteBatchAlignment * kWriteBatchAlignment;
}

template <typename T>
void AppendValue(os::SealedMemfd& to, const T& value) {
  to.Append({reinterpret_cast<const std::byte*>(&value), sizeof value});
}

void Align(os::SealedMemfd& to) {
  constexpr std::array<std::byte, kWriteBatchAlignment> kZeros{};
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

WriteBatchRows EntryOf(uint32_t memory, const StridedRange& range) {
  return {.memory = memory,
          .offset = range.offset,
          .rows = range.rows,
          .row_bytes = range.row_bytes,
          .pitch = range.rows == 1 ? 0 : range.pitch};
}

}  // namespace

// ---- Taking --------------------------------------------------------------------------------------------------------

template <typename T>
T* BatchWriter::Storage<T>::Take(size_t count) {
  if (used + count > values.size()) values.resize(std::max(used + count, 2 * values.size()));
  used += count;
  return values.data() + used - count;
}

// In this write batch or the next one.
Status BatchWriter::MakeRoom(uint64_t bytes) {
  if (bytes_ + bytes <= batch_bytes_) return OkStatus();
  LS_RETURN_IF_ERROR(PassOn());
  if (bytes_ + bytes <= batch_bytes_) return OkStatus();
  return {ErrorCode::kInternal, "a piece is larger than a write batch"};
}

void BatchWriter::Take(uint64_t bytes) {
  bytes_ += bytes;
  taken_bytes_ += bytes;
}

// The last run, where units at `first` to `last` may follow in it; else a new one.
WriteBatchRun& BatchWriter::RunFor(uint32_t memory, uint32_t unit, uint64_t first, uint64_t last) {
  if (!runs_.empty()) {
    WriteBatchRun& run = runs_.back();
    if (run.memory == memory && run.unit == unit && first >= run.base && last - run.base <= UINT32_MAX) return run;
  }
  Take(sizeof(WriteBatchRun));
  return runs_.emplace_back(WriteBatchRun{memory, unit, first / kBaseStep * kBaseStep, 0});
}

Status BatchWriter::Scatter(uint32_t memory, uint32_t unit, uint64_t from, uint64_t to,
                            std::span<const uint32_t> positions) {
  while (!positions.empty()) {
    const uint64_t most = std::max<uint64_t>(1, batch_bytes_ / 4 / (sizeof(uint32_t) + unit));
    const std::span<const uint32_t> taken = positions.first(std::min<uint64_t>(most, positions.size()));
    positions = positions.subspan(taken.size());
    const uint64_t bytes = taken.size() * (sizeof(uint32_t) + unit);
    LS_RETURN_IF_ERROR(MakeRoom(sizeof(WriteBatchRun) + bytes));
    Take(bytes);
    WriteBatchRun& run = RunFor(memory, unit, to + taken.front(), to + taken.back());
    run.units += taken.size();
    uint32_t* const offsets = offsets_.Take(taken.size());
    const auto shift = static_cast<uint32_t>(to - run.base);  // sums are right mod 2^32
    for (size_t i = 0; i < taken.size(); ++i) offsets[i] = taken[i] + shift;
    std::byte* const values = values_.Take(taken.size() * unit);
    kernels::GatherUnits(data_.data() + from, unit, taken.data(), values, taken.size());
    written_bytes_ += taken.size() * unit;
  }
  return OkStatus();
}

Status BatchWriter::Copy(uint32_t memory, const layout::StridedCopy& copy) {
  std::vector<layout::StridedCopy> pieces;
  layout::AppendSplit(copy, batch_bytes_ / 4, layout::ElementBytes{}, pieces);
  for (const layout::StridedCopy& piece : pieces) {
    const uint64_t bytes = sizeof(WriteBatchRows) + kWriteBatchAlignment + piece.bytes();
    LS_RETURN_IF_ERROR(MakeRoom(bytes));
    Take(bytes);
    copies_.push_back({memory, piece});
    written_bytes_ += piece.bytes();
  }
  return OkStatus();
}

Status BatchWriter::Zero(uint32_t memory, const StridedRange& range) {
  LS_RETURN_IF_ERROR(MakeRoom(sizeof(WriteBatchRows)));
  Take(sizeof(WriteBatchRows));
  zeros_.push_back({memory, range});
  written_bytes_ += range.bytes();
  return OkStatus();
}

Status BatchWriter::Fill(const RankPlacement& placement) {
  for (const MemoryCopy& one : placement.copies()) LS_RETURN_IF_ERROR(Copy(one.memory, one.copy));
  for (const MemoryZeros& one : placement.zeros()) LS_RETURN_IF_ERROR(Zero(one.memory, one.range));
  return OkStatus();
}

// ---- Passing on ----------------------------------------------------------------------------------------------------

Status BatchWriter::Flush() {
  return bytes_ == kEmptyBytes ? OkStatus() : PassOn();
}

Status BatchWriter::PassOn() {
  Coalesce();
  const Result<os::UniqueFd> batch = Seal();
  bytes_ = kEmptyBytes;
  runs_.clear();
  offsets_.used = values_.used = 0;
  copies_.clear();
  zeros_.clear();
  LS_RETURN_IF_ERROR(batch.status());
  return pass_(*batch);
}

// Neighbours that continue one another become one: those of blocks that are copied whole.
void BatchWriter::Coalesce() {
  std::vector<MemoryCopy> merged;
  std::vector<layout::StridedCopy> of_memory;
  for (size_t begin = 0; begin < copies_.size();) {
    const uint32_t memory = copies_[begin].memory;
    of_memory.clear();
    for (; begin < copies_.size() && copies_[begin].memory == memory; ++begin) of_memory.push_back(copies_[begin].copy);
    layout::Coalesce(of_memory, layout::ElementBytes{});
    for (const layout::StridedCopy& copy : of_memory) merged.push_back({memory, copy});
  }
  copies_ = std::move(merged);
}

// The values of runs in `order`, behind their offsets.
void BatchWriter::AppendUnits(os::SealedMemfd& to, const std::vector<size_t>& order) const {
  std::vector<size_t> first_offset, first_value;
  size_t offset = 0;
  size_t value = 0;
  for (const WriteBatchRun& run : runs_) {
    first_offset.push_back(offset);
    first_value.push_back(value);
    offset += run.units;
    value += run.units * run.unit;
  }
  for (const size_t i : order) {
    to.Append(std::as_bytes(std::span(offsets_.values).subspan(first_offset[i], runs_[i].units)));
  }
  Align(to);
  for (const size_t i : order) {
    to.Append(std::span(values_.values).subspan(first_value[i], runs_[i].units * runs_[i].unit));
  }
}

Result<os::UniqueFd> BatchWriter::Seal() const {
  // The widest first, so that all values are aligned.
  std::vector<size_t> order(runs_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return runs_[a].unit > runs_[b].unit; });
  uint64_t bytes = sizeof(WriteBatchHeader) + runs_.size() * sizeof(WriteBatchRun) +
                   (copies_.size() + zeros_.size()) * sizeof(WriteBatchRows);
  bytes = Aligned(Aligned(bytes + offsets_.used * sizeof(uint32_t)) + values_.used);
  for (const MemoryCopy& one : copies_) bytes += Aligned(one.copy.bytes());
  WriteBatchHeader header{.bytes = bytes,
                          .runs = static_cast<uint32_t>(runs_.size()),
                          .copies = static_cast<uint32_t>(copies_.size()),
                          .zeros = static_cast<uint32_t>(zeros_.size())};
  std::memcpy(header.magic, kWriteBatchMagic, sizeof header.magic);
  os::SealedMemfd to("lockstep-write batch");
  AppendValue(to, header);
  for (const size_t i : order) AppendValue(to, runs_[i]);
  for (const auto& [memory, copy] : copies_) AppendValue(to, EntryOf(memory, layout::TargetRange(copy)));
  for (const auto& [memory, range] : zeros_) AppendValue(to, EntryOf(memory, range));
  AppendUnits(to, order);
  for (const auto& [memory, copy] : copies_) {
    Align(to);
    AppendRows(to, data_.data() + copy.source_offset, copy.source_pitch, copy.rows, copy.row_bytes);
  }
  Align(to);
  return std::move(to).Seal();
}

}  // namespace lockstep::engine
