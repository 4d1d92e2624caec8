// For tests: what a write batch says, read as FORMAT.md has it, byte by byte.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <vector>

#include "common/base/bytes.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/engine/placement/writes/write_batch.h"

namespace lockstep::engine {

// The write batch as bytes; none: it is not sealed.
inline Bytes ContentOf(const os::UniqueFd& batch) {
  constexpr int kFinal = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  if ((::fcntl(batch.get(), F_GET_SEALS) & kFinal) != kFinal) return {};
  Bytes content(static_cast<size_t>(::lseek(batch.get(), 0, SEEK_END)));
  const ssize_t got = ::pread(batch.get(), content.data(), content.size(), 0);
  return got == static_cast<ssize_t>(content.size()) ? content : Bytes();
}

using EachByte = std::function<void(uint32_t memory, uint64_t offset, std::byte value)>;

// Calls `each` for every byte that the write batch gives, in its order. False: it is not as long as its tables say, or
// none.
inline bool ReadWriteBatch(ByteView batch, const EachByte& each) {
  WriteBatchHeader header;
  if (batch.size() < sizeof header) return false;
  std::memcpy(&header, batch.data(), sizeof header);
  if (std::memcmp(header.magic, kWriteBatchMagic, sizeof header.magic) != 0 || header.bytes != batch.size())
    return false;
  uint64_t at = sizeof header;
  const auto take = [&](auto& entry) {
    if (batch.size() - at < sizeof entry) return false;
    std::memcpy(&entry, batch.data() + at, sizeof entry);
    at += sizeof entry;
    return true;
  };
  std::vector<WriteBatchRun> runs(header.runs);
  std::vector<WriteBatchRows> rows(header.copies + header.zeros);
  for (WriteBatchRun& run : runs) {
    if (!take(run)) return false;
  }
  for (WriteBatchRows& entry : rows) {
    if (!take(entry)) return false;
  }
  uint64_t offset_at = at;
  for (const WriteBatchRun& run : runs) at += run.units * sizeof(uint32_t);
  at = (at + 7) / 8 * 8;
  for (const WriteBatchRun& run : runs) {
    for (uint64_t i = 0; i < run.units; ++i, offset_at += sizeof(uint32_t)) {
      uint32_t offset = 0;
      std::memcpy(&offset, batch.data() + offset_at, sizeof offset);
      for (uint32_t byte = 0; byte < run.unit; ++byte) each(run.memory, run.base + offset + byte, batch[at++]);
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool zeros = i >= header.copies;
    if (!zeros) at = (at + 7) / 8 * 8;
    for (uint64_t row = 0; row < rows[i].rows; ++row) {
      for (uint64_t byte = 0; byte < rows[i].row_bytes; ++byte) {
        each(rows[i].memory, rows[i].offset + row * rows[i].pitch + byte, zeros ? std::byte{0} : batch[at++]);
      }
    }
  }
  return (at + 7) / 8 * 8 == batch.size();
}

}  // namespace lockstep::engine
