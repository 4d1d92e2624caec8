// OwnWrites: what a rank that writes its own memory is to write into one half of it. It is collected behind the
// interface of memories that are written from here, and goes to the rank in portions (placement/writes/FORMAT.md),
// which the rank checks, keeps at hand, and writes when it is told to.
//
//   collected --(a portion is full, Finish)--> handed over --(at once, or WriteLast)--> written
//
// Whatever goes wrong between the rank and us ends its connection: it has to be dropped.
//
// Threads: the memories as TargetMemory says; the rest one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "raas_receiver/placement/memory/target_memory.h"
#include "raas_receiver/placement/writes/portion.h"

namespace lockstep::targets {

class RankLink;

class OwnWrites {
 public:
  // `link` outlives this and its memories.
  OwnWrites(RankLink& link, uint32_t half) : link_(link), half_(half) {}

  // Memory `memory` of the half.
  std::unique_ptr<placement::TargetMemory> NewMemory(uint32_t memory, uint64_t bytes);
  void SetPortionBytes(uint64_t bytes) { builder_ = placement::PortionBuilder(bytes); }

  // What memories are given from here on is handed over only, when they Finish() or a portion is full ...
  void HandOverOnly() { at_once_ = false; }
  // ... or is written as well, and Finish() waits for that.
  void WriteAtOnce() { at_once_ = true; }

  // The rank writes what it has at hand, if anything, and from then on holds `version` wholly in this half; then
  // AwaitLast.
  Status WriteLast(const Held& version);
  Status AwaitLast();

 private:
  class Memory;

  template <typename Take>
  Status Add(const Take& take);
  Status Scatter(uint32_t memory, const placement::ScatterRun& run);
  Status Copy(uint32_t memory, const layout::StridedCopy& copy, const std::byte* source);
  Status Zero(uint32_t memory, const StridedRange& range);
  Status Pass();
  Status AwaitWritten();
  Status Finish();
  Status Checked(Status status);

  RankLink& link_;
  const uint32_t half_;
  std::mutex mutex_;
  placement::PortionBuilder builder_;
  bool at_once_ = false;
  bool comparing_ = false;
  bool equal_ = true;              // what was compared so far
  bool awaiting_written_ = false;  // the rank writes while the next portion is packed
  Status failed_;
};

}  // namespace lockstep::targets
