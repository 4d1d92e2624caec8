#include "export_plugin/exporter/host_only_engine.h"

#include <unordered_set>

#include "export_plugin/exporter/readable_memory.h"

namespace lockstep::exporter {
namespace {

class HostOnlyEngine : public CopyEngine {
 public:
  HostOnlyEngine(WorkerPool* pool, Status trouble, ReadableMemory readable)
      : host_(NewHostCopyEngine(pool)), trouble_(std::move(trouble)), readable_(std::move(readable)) {}

  Status Start(std::span<const PlacedCopy> copies) override {
    checked_.clear();
    for (const PlacedCopy& placed : copies) {
      LS_RETURN_IF_ERROR(CheckReadable(placed.source + placed.copy.source_offset, placed.source));
      LS_RETURN_IF_ERROR(CheckReadable(placed.target + placed.copy.target_offset, placed.target));
    }
    return host_->Start(copies);
  }

 private:
  // Once for each memory: tensors may move between calls.
  Status CheckReadable(const std::byte* address, const std::byte* memory) {
    if (!checked_.insert(memory).second) return OkStatus();
    LS_ASSIGN_OR_RETURN(const bool readable, readable_.Has(address));
    return readable ? OkStatus() : UnreadableStatus(address, trouble_);
  }

  const std::unique_ptr<CopyEngine> host_;
  const Status trouble_;
  ReadableMemory readable_;
  std::unordered_set<const std::byte*> checked_;
};

}  // namespace

Result<std::unique_ptr<CopyEngine>> NewHostOnlyEngine(WorkerPool* pool, Status trouble) {
  LS_ASSIGN_OR_RETURN(ReadableMemory readable, ReadableMemory::Create());
  return std::unique_ptr<CopyEngine>(std::make_unique<HostOnlyEngine>(pool, std::move(trouble), std::move(readable)));
}

}  // namespace lockstep::exporter
