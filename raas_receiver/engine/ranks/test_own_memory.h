// A test rank's write batches: staged, written into its memory or compared with it, as placement/writes/FORMAT.md has
// it.
#pragma once

#include <vector>

#include "common/base/bytes.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/engine/placement/writes/write_batch_testing.h"

namespace lockstep::engine {

class StagedWriteBatches {
 public:
  // False: it is not sealed, no write batch, or leaves a memory of `bytes`.
  bool Stage(const os::UniqueFd& fd, uint64_t bytes) {
    Bytes batch = ContentOf(fd);
    bool inside = true;
    const bool whole = ReadWriteBatch(
        batch, [&](uint32_t memory, uint64_t offset, std::byte) { inside = inside && memory == 0 && offset < bytes; });
    batches_.push_back(std::move(batch));
    return whole && inside;
  }

  // At most `most` bytes of it.
  void Write(std::byte* memory, uint64_t most) const {
    Each([&](uint64_t offset, std::byte value) {
      if (most == 0) return;
      --most;
      memory[offset] = value;
    });
  }
  bool Equal(const std::byte* memory) const {
    bool equal = true;
    Each([&](uint64_t offset, std::byte value) { equal = equal && memory[offset] == value; });
    return equal;
  }
  void Drop() { batches_.clear(); }
  uint32_t size() const { return static_cast<uint32_t>(batches_.size()); }

 private:
  template <typename Visit>
  void Each(const Visit& visit) const {
    for (const Bytes& batch : batches_) {
      (void)ReadWriteBatch(batch, [&](uint32_t, uint64_t offset, std::byte value) { visit(offset, value); });
    }
  }

  std::vector<Bytes> batches_;
};

}  // namespace lockstep::engine
