#include "export_plugin/exporter/cuda_shadow.h"

#include <array>

#include "common/base/text.h"
#include "kernels/cuda/changes.h"

namespace lockstep::exporter {
namespace {

using kernels::cuda::Change;

struct FreeOnDevice {
  void operator()(void* memory) const { (void)cudaFree(memory); }
};
struct FreeOnHost {
  void operator()(void* memory) const { (void)cudaFreeHost(memory); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T[], FreeOnDevice>;
template <typename T>
using HostArray = std::unique_ptr<T[], FreeOnHost>;

template <typename T>
Status Allocate(uint64_t bytes, DeviceArray<T>& array) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) (void)cudaGetLastError();
  array.reset(static_cast<T*>(memory));
  return CudaStatus(error, Cat("allocating ", bytes, " bytes of a shadow on the device"));
}

template <typename T>
Status Allocate(uint64_t bytes, HostArray<T>& array) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocHost(&memory, bytes);
  if (error != cudaSuccess) (void)cudaGetLastError();
  array.reset(static_cast<T*>(memory));
  return CudaStatus(error, Cat("allocating ", bytes, " pinned bytes for a shadow's changes"));
}

// What one batch under way has.
struct Slot {
  DeviceArray<uint8_t> either;
  DeviceArray<uint32_t> stripe_firsts;
  DeviceArray<uint32_t> region_counts;
  DeviceArray<uint32_t> region_firsts;
  DeviceArray<Change> changes;
  HostArray<uint32_t> host_counts;
  HostArray<uint32_t> host_firsts;  // one more
  HostArray<Change> host_changes;
  size_t batch = 0;
  std::byte* target = nullptr;
  bool counted = false;  // what changed; else all of it is being copied

  Status Allocate(const ShadowBytes& bytes) {
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.either, either));
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.stripe_firsts, stripe_firsts));
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.region_counts, region_counts));
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.region_firsts, region_firsts));
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.changes, changes));
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.region_counts, host_counts));
    LS_RETURN_IF_ERROR(exporter::Allocate(bytes.region_firsts + sizeof(uint32_t), host_firsts));
    return exporter::Allocate(bytes.changes, host_changes);
  }
};

class CudaShadow : public Shadow {
 public:
  CudaShadow(ShadowPlan plan, int device, WorkerPool* pool, const PinnedRanges* pinned)
      : plan_(std::move(plan)), device_(device), pool_(pool), pinned_(pinned) {}

  ~CudaShadow() override {
    Stop();
    CurrentDevice current;
    (void)current.Set(device_);
    lane_.reset();
    shadow_.reset();
    marks_.reset();
    for (Slot& slot : slots_) slot = Slot();
  }

  Status Open() {
    CurrentDevice current;
    LS_RETURN_IF_ERROR(current.Set(device_));
    LS_ASSIGN_OR_RETURN(lane_, CudaLane::Create(device_));
    LS_RETURN_IF_ERROR(Told(kernels::cuda::LoadChanges(), "loading what compares"));
    const ShadowBytes bytes = plan_.bytes();
    LS_RETURN_IF_ERROR(Allocate(bytes.shadow, shadow_));
    LS_RETURN_IF_ERROR(Allocate(bytes.marks, marks_));
    for (Slot& slot : slots_) LS_RETURN_IF_ERROR(slot.Allocate(bytes));
    // Nobody relies on what they are; but memory that was never written is read by no program that can be checked.
    LS_RETURN_IF_ERROR(Told(cudaMemsetAsync(shadow_.get(), 0, bytes.shadow, lane_->stream()), "clearing a shadow"));
    LS_RETURN_IF_ERROR(Told(cudaMemsetAsync(marks_.get(), 0, bytes.marks, lane_->stream()), "clearing marks"));
    return lane_->Drain();
  }

  void Begin(bool advances) override {
    advances_ = advances;
    next_batch_ = 0;
  }

  Status Start(std::span<const PlacedCopy> copies) override {
    const Status status = StartBatch(copies);
    if (!status.ok()) Stop();
    return status;
  }

  Status Wait() override {
    const Status status = FinishBatch();
    if (!status.ok()) Stop();
    return status;
  }

  void Stop() override {
    CurrentDevice current;
    (void)current.Set(device_);
    if (lane_ != nullptr) (void)lane_->Drain();
    waited_ = started_;
  }

  size_t most_under_way() const override { return kShadowBatches; }

 private:
  Status Told(cudaError_t error, std::string_view what) const {
    return error == cudaSuccess ? OkStatus() : CudaStatus(error, Cat(what, " (device ", device_, ")"));
  }

  Status StartBatch(std::span<const PlacedCopy> copies) {
    CurrentDevice current;
    LS_RETURN_IF_ERROR(current.Set(device_));
    const size_t index = started_ % kShadowBatches;
    Slot& slot = slots_[index];
    slot.batch = next_batch_++;
    slot.target = copies.front().target;
    slot.counted = advances_;
    LS_RETURN_IF_ERROR(Compare(slot, copies));
    LS_RETURN_IF_ERROR(slot.counted ? Count(slot) : CopyAll(slot));
    LS_RETURN_IF_ERROR(lane_->Mark(index));
    ++started_;
    return OkStatus();
  }

  Status Compare(const Slot& slot, std::span<const PlacedCopy> copies) {
    const uint64_t first_unit = plan_.batches[slot.batch].first_unit;
    const auto pieces = plan_.PiecesOf(slot.batch);
    const std::byte* known = nullptr;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (copies[i].source != known) LS_RETURN_IF_ERROR(CheckHere(known = copies[i].source));
      const layout::StridedCopy& copy = copies[i].copy;
      const uint64_t unit = first_unit + pieces[i].first_unit;
      const kernels::cuda::Piece piece{.rows = copies[i].source + copy.source_offset,
                                       .pitch = copy.source_pitch,
                                       .row_units = copy.row_bytes / 2,
                                       .units = pieces[i].units(),
                                       .rounds = copies[i].conversion == ElementConversion::kF32ToBF16,
                                       .shadow = shadow_.get() + unit,
                                       .marks = marks_.get() + unit / kernels::cuda::kGroupUnits,
                                       .either = slot.either.get() + pieces[i].first_unit / kernels::cuda::kGroupUnits};
      LS_RETURN_IF_ERROR(Told(kernels::cuda::StartCompare(piece, lane_->stream()), "starting to compare"));
    }
    return OkStatus();
  }

  Status CheckHere(const void* tensor) const {
    cudaPointerAttributes attributes{};
    LS_RETURN_IF_ERROR(Told(cudaPointerGetAttributes(&attributes, tensor), "asking where a tensor lies"));
    if (attributes.type == cudaMemoryTypeDevice && attributes.device == device_) return OkStatus();
    return {ErrorCode::kBadData, Cat("the tensor at ", tensor, " is not on device ", device_,
                                     " as those that have a shadow are: keep all that change on one GPU, or leave the "
                                     "shadow out")};
  }

  Status Count(const Slot& slot) {
    const uint64_t units = plan_.batches[slot.batch].units;
    LS_RETURN_IF_ERROR(
        Told(kernels::cuda::StartCount(slot.either.get(), kernels::cuda::GroupsOf(units), slot.region_counts.get(),
                                       slot.stripe_firsts.get(), lane_->stream()),
             "starting to count"));
    return ToHost(slot.host_counts.get(), slot.region_counts.get(), kernels::cuda::RegionsOf(units) * sizeof(uint32_t));
  }

  Status ToHost(void* to, const void* from, uint64_t bytes) const {
    if (bytes == 0) return OkStatus();
    return Told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, lane_->stream()), "starting a copy");
  }

  Status CopyAll(const Slot& slot) {
    const auto* const share = reinterpret_cast<const std::byte*>(shadow_.get());
    for (const ShadowPlan::Piece& piece : plan_.PiecesOf(slot.batch)) {
      layout::StridedCopy copy = piece.copy.copy;
      copy.source_offset = 2 * (plan_.batches[slot.batch].first_unit + piece.first_unit);
      copy.source_pitch = copy.rows == 1 ? 0 : copy.row_bytes;
      LS_RETURN_IF_ERROR(lane_->Start({share, slot.target, copy}, true, false, *pinned_));
    }
    return OkStatus();
  }

  // The oldest.
  Status FinishBatch() {
    CurrentDevice current;
    LS_RETURN_IF_ERROR(current.Set(device_));
    const size_t index = waited_ % kShadowBatches;
    Slot& slot = slots_[index];
    LS_RETURN_IF_ERROR(lane_->WaitFor(index));
    if (slot.counted) LS_RETURN_IF_ERROR(Advance(slot, index));
    ++waited_;
    return OkStatus();
  }

  Status Advance(Slot& slot, size_t index) {
    const ShadowPlan::Batch& batch = plan_.batches[slot.batch];
    const size_t regions = kernels::cuda::RegionsOf(batch.units);
    uint64_t changed = 0;
    for (size_t region = 0; region < regions; ++region) {
      slot.host_firsts[region] = static_cast<uint32_t>(changed);
      changed += slot.host_counts[region];
    }
    const bool dense = changed > batch.most_changes();
    slot.host_firsts[regions] = static_cast<uint32_t>(changed);
    LS_RETURN_IF_ERROR(dense ? CopyAll(slot) : Take(slot, regions, changed));
    LS_RETURN_IF_ERROR(lane_->Mark(index));
    LS_RETURN_IF_ERROR(lane_->WaitFor(index));
    if (dense) return OkStatus();
    return WriteChanges(plan_, slot.batch, {slot.host_firsts.get(), regions + 1}, slot.host_changes.get(), slot.target,
                        pool_);
  }

  Status Take(const Slot& slot, size_t regions, uint64_t changed) {
    const ShadowPlan::Batch& batch = plan_.batches[slot.batch];
    LS_RETURN_IF_ERROR(Told(cudaMemcpyAsync(slot.region_firsts.get(), slot.host_firsts.get(),
                                            regions * sizeof(uint32_t), cudaMemcpyHostToDevice, lane_->stream()),
                            "starting a copy"));
    LS_RETURN_IF_ERROR(Told(kernels::cuda::StartTake(slot.either.get(), kernels::cuda::GroupsOf(batch.units),
                                                     shadow_.get() + batch.first_unit, slot.region_firsts.get(),
                                                     slot.stripe_firsts.get(), slot.changes.get(), lane_->stream()),
                            "starting to take changes"));
    return ToHost(slot.host_changes.get(), slot.changes.get(), changed * sizeof(Change));
  }

  const ShadowPlan plan_;
  const int device_;
  WorkerPool* const pool_;
  const PinnedRanges* const pinned_;
  std::unique_ptr<CudaLane> lane_;
  DeviceArray<uint16_t> shadow_;
  DeviceArray<uint8_t> marks_;
  std::array<Slot, kShadowBatches> slots_;
  bool advances_ = false;
  size_t next_batch_ = 0;
  uint64_t started_ = 0;
  uint64_t waited_ = 0;
};

}  // namespace

Result<std::unique_ptr<Shadow>> NewCudaShadow(ShadowPlan plan, int device, WorkerPool* pool,
                                              const PinnedRanges* pinned) {
  auto shadow = std::make_unique<CudaShadow>(std::move(plan), device, pool, pinned);
  LS_RETURN_IF_ERROR(shadow->Open());
  return std::unique_ptr<Shadow>(std::move(shadow));
}

}  // namespace lockstep::exporter
