// BucketMemory: all the memory that one end of an exchange has: two slots, each for a header and its payload, and a
// header for answers. The memory is the host's, or that of the GPU in which the exchange wants its messages.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "export_plugin/exporter/bucket_header.h"
#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {

// Payload bytes of one slot, when both slots together have `bucket_bytes`.
inline uint64_t SlotPayloadBytes(uint64_t bucket_bytes) {
  return bucket_bytes / 2 - sizeof(BucketHeader);
}

// Not thread-safe. Calls wait only for their own work: the copy engine must have finished with a payload, and the
// exchange with a message, before a call here reads it. Only a GPU's memory has errors, the host's has none.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;
  BucketMemory(const BucketMemory&) = delete;
  BucketMemory& operator=(const BucketMemory&) = delete;

  std::byte* message(size_t slot) { return memory_ + slot * slot_bytes_; }
  std::byte* payload(size_t slot) { return message(slot) + sizeof(BucketHeader); }
  std::byte* answer() { return message(2); }
  uint64_t bytes() const { return 2 * slot_bytes_; }  // of both slots; kSlotAlignment more, at most, for each

  virtual Result<BucketHeader> ReadHeader(const std::byte* message) = 0;
  virtual Status WriteHeader(std::byte* message, const BucketHeader& header) = 0;
  // The hash of a payload's first `bytes`, as a header of bucket_kind() has it.
  virtual Result<uint64_t> PayloadHash(size_t slot, uint64_t bytes) = 0;
  virtual BucketKind bucket_kind() const = 0;

  virtual bool on_device() const = 0;
  // Pins the memory, so that copies from a GPU into it are fast. Returns why it is not pinned.
  virtual Status PinFor(CopyEngine& engine) = 0;
  virtual bool pinned() const = 0;

 protected:
  explicit BucketMemory(uint64_t payload_bytes)
      : slot_bytes_((sizeof(BucketHeader) + payload_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment) {}
  uint64_t allocation_bytes() const { return bytes() + sizeof(BucketHeader); }
  void SetMemory(std::byte* memory) { memory_ = memory; }

 private:
  static constexpr uint64_t kSlotAlignment = 256;  // what cudaMalloc() aligns to, and kernels and NCCL like

  const uint64_t slot_bytes_;
  std::byte* memory_ = nullptr;
};

// Makes buckets in the memory of `device`; of the host when it has no value. Errors as NewDeviceBuckets().
Result<std::unique_ptr<BucketMemory>> NewBuckets(std::optional<int> device, uint64_t payload_bytes);

// kResourceExhausted: the GPU lacks the memory. The error of GpuTrouble() where no GPU is reached.
Result<std::unique_ptr<BucketMemory>> NewDeviceBuckets(int device, uint64_t payload_bytes);

}  // namespace lockstep::exporter
