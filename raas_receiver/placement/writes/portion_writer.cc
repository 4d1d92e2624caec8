#include "raas_receiver/placement/writes/portion_writer.h"

#include <algorithm>
#include <vector>

namespace lockstep::placement {

Status PortionWriter::PassOn() {
  LS_ASSIGN_OR_RETURN(const os::UniqueFd portion, builder_.Seal());
  return pass_(portion);
}

// A piece that the portion takes, or the next one.
template <typename Take>
Status PortionWriter::Add(const Take& take) {
  if (take()) return OkStatus();
  LS_RETURN_IF_ERROR(PassOn());
  return take() ? OkStatus() : Status(ErrorCode::kInternal, "a piece is larger than a portion");
}

Status PortionWriter::AddRun(uint32_t memory, const ScatterRun& run) {
  const size_t at_once = std::max<size_t>(1, builder_.piece_bytes() / (sizeof(uint32_t) + run.unit));
  for (size_t from = 0; from < run.offsets.size(); from += at_once) {
    const ScatterRun piece{run.base, run.unit, run.offsets.subspan(from, std::min(at_once, run.offsets.size() - from)),
                           run.values + from * run.unit};
    LS_RETURN_IF_ERROR(Add([&] { return builder_.Scatter(memory, piece); }));
  }
  return OkStatus();
}

Status PortionWriter::AddCopy(uint32_t memory, const layout::StridedCopy& copy, const std::byte* source) {
  std::vector<layout::StridedCopy> pieces;
  layout::AppendSplit(copy, builder_.piece_bytes(), layout::ElementBytes{}, pieces);
  for (const layout::StridedCopy& piece : pieces) {
    LS_RETURN_IF_ERROR(Add([&] { return builder_.Copy(memory, piece, source); }));
  }
  return OkStatus();
}

Status PortionWriter::Scatter(uint32_t memory, std::span<const ScatterRun> runs) {
  std::lock_guard lock(mutex_);
  for (const ScatterRun& run : runs) LS_RETURN_IF_ERROR(AddRun(memory, run));
  return OkStatus();
}

Status PortionWriter::Copy(uint32_t memory, std::span<const layout::StridedCopy> copies, const std::byte* source) {
  std::lock_guard lock(mutex_);
  for (const layout::StridedCopy& copy : copies) LS_RETURN_IF_ERROR(AddCopy(memory, copy, source));
  return OkStatus();
}

Status PortionWriter::Zero(uint32_t memory, std::span<const StridedRange> ranges) {
  std::lock_guard lock(mutex_);
  for (const StridedRange& range : ranges) LS_RETURN_IF_ERROR(Add([&] { return builder_.Zero(memory, range); }));
  return OkStatus();
}

Status PortionWriter::Flush() {
  std::lock_guard lock(mutex_);
  return builder_.empty() ? OkStatus() : PassOn();
}

}  // namespace lockstep::placement
