// The writes of one chunk: what goes to which places of which buffers. Built by one thread, then immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/layout/strided_copy.h"
#include "raas_receiver/placement/writes/portion.h"

namespace lockstep::placement {

struct BufferWrites {
  uint32_t buffer = 0;
  std::vector<ScatterRun> runs;  // into the list's memory
  std::vector<layout::StridedCopy> copies;
  std::span<const StridedRange> zeros;  // the plan's
};

struct WriteList {
  std::vector<BufferWrites> buffers;
  std::unique_ptr<std::byte[]> memory;
  uint64_t staged_bytes = 0;   // of memory, all in all
  uint64_t written_bytes = 0;  // into buffers
  uint64_t positions = 0;      // changed units that some buffer takes
};

// Collects a chunk's writes in memory that grows once and is used again: one per thread.
class WriteListBuilder {
 public:
  // REQUIRES an empty builder.
  void SetBuffers(size_t buffers);

  // The units of `unit` bytes at `from` + `positions` (bytes, rising, less than 2^31 apart) go to `to` + `positions` of
  // `buffer`. With several buffers for the same units, gathering once and AddAgain is cheaper.
  void Add(uint32_t buffer, uint32_t unit, const std::byte* from, uint64_t to, std::span<const uint32_t> positions);
  // The units that were last added go to `to` + `positions` of `buffer` too.
  void AddAgain(uint32_t buffer, uint32_t unit, uint64_t to, std::span<const uint32_t> positions);
  void AddCopy(uint32_t buffer, const layout::StridedCopy& copy);
  void CountPositions(uint64_t positions) { positions_ += positions; }

  // Everything since the last call, in memory of exactly that size; the builder is empty then.
  WriteList Finish();
  void Clear();

 private:
  struct Run {
    uint64_t base = 0;
    uint32_t unit = 0;
    size_t first_offset = 0;
    size_t first_value = 0;
  };
  // Storage of which the first `offsets_used` and `values_used` are taken.
  struct Pending {
    std::vector<Run> runs;
    std::vector<uint32_t> offsets;
    std::vector<std::byte> values;
    size_t offsets_used = 0;
    size_t values_used = 0;
    std::vector<layout::StridedCopy> copies;

    bool empty() const { return runs.empty() && copies.empty(); }
    void Clear();
  };

  Pending& Touch(uint32_t buffer);
  // Room for the values of `positions`, whose offsets are written.
  std::byte* Place(uint32_t buffer, uint32_t unit, uint64_t to, std::span<const uint32_t> positions);
  static void Pack(const Pending& pending, uint32_t*& offsets, std::byte*& values, std::vector<ScatterRun>& runs);

  std::vector<Pending> pending_;   // by buffer
  std::vector<uint32_t> touched_;  // buffers that are not empty
  uint32_t last_buffer_ = 0;
  size_t last_value_ = 0;
  uint64_t positions_ = 0;
};

}  // namespace lockstep::placement
