#include "export_plugin/exporter/bucket_memory.h"

#include "kernels/hash.h"

namespace lockstep::exporter {
namespace {

class HostBuckets : public BucketMemory {
 public:
  explicit HostBuckets(uint64_t payload_bytes) : BucketMemory(payload_bytes), memory_(allocation_bytes()) {
    SetMemory(memory_.data());
  }

  Result<BucketHeader> ReadHeader(const std::byte* message) override {
    BucketHeader header;
    std::memcpy(&header, message, sizeof(header));
    return header;
  }
  Status WriteHeader(std::byte* message, const BucketHeader& header) override {
    std::memcpy(message, &header, sizeof(header));
    return OkStatus();
  }
  Result<uint64_t> PayloadHash(size_t slot, uint64_t bytes) override { return Hash64({payload(slot), bytes}); }
  BucketKind bucket_kind() const override { return BucketKind::kBucket; }

  bool on_device() const override { return false; }
  Status PinFor(CopyEngine& engine) override {
    const std::span<std::byte> all(memory_);
    LS_ASSIGN_OR_RETURN(pin_, engine.Pin({&all, 1}));
    return OkStatus();
  }
  bool pinned() const override { return pin_ != nullptr; }

 private:
  std::vector<std::byte> memory_;
  PinnedMemory pin_;
};

}  // namespace

Result<std::unique_ptr<BucketMemory>> NewBuckets(std::optional<int> device, uint64_t payload_bytes) {
  if (device) return NewDeviceBuckets(*device, payload_bytes);
  return std::unique_ptr<BucketMemory>(std::make_unique<HostBuckets>(payload_bytes));
}

}  // namespace lockstep::exporter
