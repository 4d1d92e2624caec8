#include "raas_receiver/placement/writes/write_list.h"

#include <algorithm>
#include <cstring>

#include "kernels/gather.h"

namespace lockstep::placement {
namespace {

// A run's base is a multiple of this, at or below its first target; neighbours in front of it still have offsets.
constexpr uint64_t kBaseStep = uint64_t{1} << 31;

template <typename T>
void EnsureRoom(std::vector<T>& storage, size_t needed) {
  if (needed > storage.size()) storage.resize(std::max(needed, 2 * storage.size()));
}

}  // namespace

void WriteListBuilder::Pending::Clear() {
  runs.clear();
  copies.clear();
  offsets_used = 0;
  values_used = 0;
}

void WriteListBuilder::SetBuffers(size_t buffers) {
  pending_.resize(buffers);
}

WriteListBuilder::Pending& WriteListBuilder::Touch(uint32_t buffer) {
  Pending& pending = pending_[buffer];
  if (pending.empty()) touched_.push_back(buffer);
  return pending;
}

std::byte* WriteListBuilder::Place(uint32_t buffer, uint32_t unit, uint64_t to, std::span<const uint32_t> positions) {
  Pending& pending = Touch(buffer);
  const uint64_t first = to + positions.front();
  const uint64_t last = to + positions.back();
  const Run* run = pending.runs.empty() ? nullptr : &pending.runs.back();
  if (run == nullptr || run->unit != unit || first < run->base || last - run->base > UINT32_MAX) {
    pending.runs.push_back({first / kBaseStep * kBaseStep, unit, pending.offsets_used, pending.values_used});
    run = &pending.runs.back();
  }
  EnsureRoom(pending.offsets, pending.offsets_used + positions.size());
  EnsureRoom(pending.values, pending.values_used + positions.size() * unit);
  const auto shift = static_cast<uint32_t>(to - run->base);  // sums are right mod 2^32
  uint32_t* const offsets = pending.offsets.data() + pending.offsets_used;
  for (size_t i = 0; i < positions.size(); ++i) offsets[i] = positions[i] + shift;
  std::byte* const values = pending.values.data() + pending.values_used;
  pending.offsets_used += positions.size();
  pending.values_used += positions.size() * unit;
  return values;
}

void WriteListBuilder::Add(uint32_t buffer, uint32_t unit, const std::byte* from, uint64_t to,
                           std::span<const uint32_t> positions) {
  std::byte* const values = Place(buffer, unit, to, positions);
  kernels::GatherUnits(from, unit, positions.data(), values, positions.size());
  last_buffer_ = buffer;
  last_value_ = static_cast<size_t>(values - pending_[buffer].values.data());
}

void WriteListBuilder::AddAgain(uint32_t buffer, uint32_t unit, uint64_t to, std::span<const uint32_t> positions) {
  std::byte* const values = Place(buffer, unit, to, positions);
  std::memcpy(values, pending_[last_buffer_].values.data() + last_value_, positions.size() * unit);
}

void WriteListBuilder::AddCopy(uint32_t buffer, const layout::StridedCopy& copy) {
  Touch(buffer).copies.push_back(copy);
}

void WriteListBuilder::Clear() {
  for (const uint32_t buffer : touched_) pending_[buffer].Clear();
  touched_.clear();
  positions_ = 0;
}

void WriteListBuilder::Pack(const Pending& pending, uint32_t*& offsets, std::byte*& values,
                            std::vector<ScatterRun>& runs) {
  runs.reserve(pending.runs.size());
  for (size_t i = 0; i < pending.runs.size(); ++i) {
    const Run& run = pending.runs[i];
    const bool last = i + 1 == pending.runs.size();
    const size_t count = (last ? pending.offsets_used : pending.runs[i + 1].first_offset) - run.first_offset;
    std::memcpy(offsets, pending.offsets.data() + run.first_offset, count * sizeof *offsets);
    std::memcpy(values, pending.values.data() + run.first_value, count * run.unit);
    runs.push_back({run.base, run.unit, {offsets, count}, values});
    offsets += count;
    values += count * run.unit;
  }
}

WriteList WriteListBuilder::Finish() {
  WriteList list;
  list.positions = positions_;
  size_t offsets_used = 0;
  size_t values_used = 0;
  for (const uint32_t buffer : touched_) {
    offsets_used += pending_[buffer].offsets_used;
    values_used += pending_[buffer].values_used;
  }
  const size_t bytes = offsets_used * sizeof(uint32_t) + values_used;
  list.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  list.staged_bytes = bytes;
  list.written_bytes = values_used;
  auto* offsets = reinterpret_cast<uint32_t*>(list.memory.get());
  std::byte* values = list.memory.get() + offsets_used * sizeof(uint32_t);
  for (const uint32_t buffer : touched_) {
    Pending& pending = pending_[buffer];
    layout::Coalesce(pending.copies, layout::ElementBytes{});
    BufferWrites& writes = list.buffers.emplace_back(BufferWrites{buffer, {}, pending.copies, {}});
    Pack(pending, offsets, values, writes.runs);
    for (const layout::StridedCopy& copy : writes.copies) list.written_bytes += copy.bytes();
    list.staged_bytes +=
        sizeof writes + writes.runs.size() * sizeof(ScatterRun) + writes.copies.size() * sizeof(layout::StridedCopy);
  }
  Clear();
  return list;
}

}  // namespace lockstep::placement
