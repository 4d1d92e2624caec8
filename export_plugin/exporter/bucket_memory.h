// BucketMemory: two slots, each for a header and the payload after it. All the memory that an end of the exchange has.
#pragma once

#include <cstring>
#include <vector>

#include "export_plugin/exporter/bucket_header.h"
#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {

// What one of two slots may hold, beside its header, when both together have `bucket_bytes`.
inline uint64_t SlotPayloadBytes(uint64_t bucket_bytes) {
  return bucket_bytes / 2 - sizeof(BucketHeader);
}

class BucketMemory {
 public:
  explicit BucketMemory(uint64_t payload_bytes)
      : slot_bytes_(sizeof(BucketHeader) + payload_bytes), memory_(2 * slot_bytes_) {}

  std::byte* message(size_t slot) { return memory_.data() + slot * slot_bytes_; }
  std::byte* payload(size_t slot) { return message(slot) + sizeof(BucketHeader); }
  uint64_t bytes() const { return memory_.size(); }

  // Makes copies from a GPU into it fast. Answers why it did not.
  Status PinFor(CopyEngine& engine) {
    const std::span<std::byte> all(memory_);
    LS_ASSIGN_OR_RETURN(pin_, engine.Pin({&all, 1}));
    return OkStatus();
  }
  bool pinned() const { return pin_ != nullptr; }

  BucketHeader header(size_t slot) {
    BucketHeader header;
    std::memcpy(&header, message(slot), sizeof(header));
    return header;
  }
  void SetHeader(size_t slot, const BucketHeader& header) { std::memcpy(message(slot), &header, sizeof(header)); }

 private:
  uint64_t slot_bytes_;
  std::vector<std::byte> memory_;
  PinnedMemory pin_;
};

}  // namespace lockstep::exporter
