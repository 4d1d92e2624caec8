// Write batches: what a rank is to write into its own memory, or to compare with it, as it travels to the rank: memfds
// that cannot be changed any more (FORMAT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/os/sealed_memfd.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/engine/placement/plan/rank_placement.h"

namespace lockstep::engine {

inline constexpr char kWriteBatchMagic[] = "LSWRITE1";
inline constexpr uint16_t kWriteBatchFormat = 1;
inline constexpr uint64_t kMaxWriteBatchBytes = uint64_t{64} << 20;
inline constexpr uint64_t kWriteBatchAlignment = 8;

struct WriteBatchHeader {  // 64 bytes
  char magic[8] = {};      // kWriteBatchMagic
  uint16_t format = kWriteBatchFormat;
  uint16_t header_bytes = 64;
  uint32_t reserved = 0;
  uint64_t bytes = 0;  // of the write batch
  uint32_t runs = 0;   // entries of each table
  uint32_t copies = 0;
  uint32_t zeros = 0;
  uint8_t rest[28] = {};  // 0
};
static_assert(sizeof(WriteBatchHeader) == 64);
static_assert(offsetof(WriteBatchHeader, bytes) == 16);
static_assert(offsetof(WriteBatchHeader, rest) == 36);

struct WriteBatchRun {  // 24 bytes
  uint32_t memory = 0;
  uint32_t unit = 0;
  uint64_t base = 0;
  uint64_t units = 0;
};
static_assert(sizeof(WriteBatchRun) == 24);

struct WriteBatchRows {  // 40 bytes
  uint32_t memory = 0;
  uint32_t reserved = 0;
  uint64_t offset = 0;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t pitch = 0;  // 0 where there is one row
};
static_assert(sizeof(WriteBatchRows) == 40);

// What one rank is to write, taken piece by piece, and passed on in write batches. Threads: one at a time.
class BatchWriter {
 public:
  // Takes one write batch after the other. What it answers is what the call answers that made the write batch.
  using Pass = std::function<Status(const os::UniqueFd& batch)>;

  // `data`, which stays: where values come from. Write batches have at most `batch_bytes`.
  BatchWriter(std::span<const std::byte> data, Pass pass, uint64_t batch_bytes = kMaxWriteBatchBytes)
      : data_(data), pass_(std::move(pass)), batch_bytes_(batch_bytes) {}

  // The units of `unit` bytes at data[from + positions[i]], positions rising, go to byte `to` + positions[i] (mod 2^64)
  // of `memory`.
  Status Scatter(uint32_t memory, uint32_t unit, uint64_t from, uint64_t to, std::span<const uint32_t> positions);
  Status Copy(uint32_t memory, const layout::StridedCopy& copy);
  Status Zero(uint32_t memory, const StridedRange& range);
  // All that `placement` has of the data, and its zeros.
  Status Fill(const RankPlacement& placement);
  // Passes on what is left, also after an error.
  Status Flush();

  uint64_t taken_bytes() const { return taken_bytes_; }      // by write batches, in all
  uint64_t written_bytes() const { return written_bytes_; }  // into memories, in all

 private:
  // Values that grow and are used again; the first `used` are taken.
  template <typename T>
  struct Storage {
    std::vector<T> values;
    size_t used = 0;

    T* Take(size_t count);
  };

  static constexpr uint64_t kEmptyBytes =
      sizeof(WriteBatchHeader) + 2 * kWriteBatchAlignment;  // gaps behind offsets, values

  Status MakeRoom(uint64_t bytes);
  void Take(uint64_t bytes);
  WriteBatchRun& RunFor(uint32_t memory, uint32_t unit, uint64_t first, uint64_t last);
  void Coalesce();
  Status PassOn();
  Result<os::UniqueFd> Seal() const;
  void AppendUnits(os::SealedMemfd& to, const std::vector<size_t>& order) const;

  std::span<const std::byte> data_;
  const Pass pass_;
  const uint64_t batch_bytes_;
  uint64_t bytes_ = kEmptyBytes;  // at most those of the write batch
  std::vector<WriteBatchRun> runs_;
  Storage<uint32_t> offsets_;  // of all runs, in order
  Storage<std::byte> values_;  // likewise
  std::vector<MemoryCopy> copies_;
  std::vector<MemoryZeros> zeros_;
  uint64_t taken_bytes_ = 0;
  uint64_t written_bytes_ = 0;
};

}  // namespace lockstep::engine
