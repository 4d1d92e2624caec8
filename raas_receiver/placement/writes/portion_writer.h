// PortionWriter: what one rank is to write, or to compare, taken piece by piece and passed on in portions (FORMAT.md).
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/placement/writes/portion.h"

namespace lockstep::placement {

class PortionWriter {
 public:
  // Takes one portion after the other. What it answers is what the call answers that made the portion.
  using Pass = std::function<Status(const os::UniqueFd& portion)>;

  explicit PortionWriter(Pass pass, uint64_t portion_bytes = kMaxPortionBytes)
      : pass_(std::move(pass)), builder_(portion_bytes) {}

  // REQUIRES that nothing is taken.
  void SetPortionBytes(uint64_t bytes) { builder_ = PortionBuilder(bytes); }

  // Take pieces for memory `memory` of the rank. What they point to stays until Flush.
  Status Scatter(uint32_t memory, std::span<const ScatterRun> runs);
  Status Copy(uint32_t memory, std::span<const layout::StridedCopy> copies, const std::byte* source);
  Status Zero(uint32_t memory, std::span<const StridedRange> ranges);
  // Passes on what was taken. It points to nothing afterwards, also after an error.
  Status Flush();

 private:
  template <typename Take>
  Status Add(const Take& take);
  Status AddRun(uint32_t memory, const ScatterRun& run);
  Status AddCopy(uint32_t memory, const layout::StridedCopy& copy, const std::byte* source);
  Status PassOn();

  const Pass pass_;
  std::mutex mutex_;
  PortionBuilder builder_;
};

}  // namespace lockstep::placement
