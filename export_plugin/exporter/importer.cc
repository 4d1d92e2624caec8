#include "export_plugin/exporter/importer.h"

#include <memory>

#include "common/base/text.h"
#include "common/base/worker_pool.h"
#include "common/layout/copy_plan.h"
#include "export_plugin/exporter/checkpoint.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::exporter {
namespace {

// What rows are zeroed from, this much at a time.
constexpr uint64_t kZeroBytes = uint64_t{1} << 20;

// The copies of one import, made and checked before the first runs.
class ImportWork {
 public:
  ImportWork(std::span<const LocalTensor> locals, const Checkpoint& checkpoint, const layout::TrainingModel& model)
      : locals_(locals), checkpoint_(checkpoint), model_(model), filled_(locals.size()), zeros_(kZeroBytes) {}

  // What `entry` reads into `local`.
  Status Add(const layout::PlanEntry& entry, uint32_t local) {
    const model::TensorMeta& tensor = model_.tensors[entry.tensor];
    const Checkpoint::Tensor* stored = checkpoint_.Find(tensor.name);
    if (stored == nullptr) {
      return {ErrorCode::kBadData, Cat("the checkpoint has no tensor \"", tensor.name, "\", which local tensor \"",
                                       locals_[local].name, "\" is made of")};
    }
    if (stored->meta.shape != tensor.shape) {
      return {ErrorCode::kBadData, Cat("tensor \"", tensor.name, "\" has shape ", layout::ShapeText(stored->meta.shape),
                                       " in the checkpoint, the model wants ", layout::ShapeText(tensor.shape))};
    }
    LS_ASSIGN_OR_RETURN(const ElementConversion conversion, ConversionTo(locals_[local], stored->meta));
    LS_RETURN_IF_ERROR(CheckAddress(local));
    model::TensorMeta alone = stored->meta;
    alone.offset = 0;
    const layout::TensorView source = ViewOf(alone, entry.pieces[0].target.size());
    const layout::TensorView target = ViewOf(locals_[local]);
    const layout::Pieces reading = layout::Inverse(entry.pieces);
    LS_RETURN_IF_ERROR(layout::CheckBounds(reading, source.shape, target.shape));
    std::vector<layout::StridedCopy> copies;
    layout::AppendCopies(reading, source, target, copies);
    for (const layout::StridedCopy& copy : copies) copies_.push_back({stored->data, Memory(local), copy, conversion});
    filled_[local].insert(filled_[local].end(), reading.begin(), reading.end());
    stats_.bytes_read += layout::ElementCount(reading) * source.element_bytes;
    return OkStatus();
  }

  // Tensors with elements that nothing is read into are zeroed first.
  Status AddZeros() {
    for (uint32_t local = 0; local < locals_.size(); ++local) {
      const layout::TensorView view = ViewOf(locals_[local]);
      if (layout::ElementCount(view.shape) == 0 || layout::CheckTiling(filled_[local], view.shape).ok()) continue;
      LS_RETURN_IF_ERROR(CheckAddress(local));
      std::vector<layout::StridedCopy> rows;
      layout::AppendCopies(layout::Whole(view.shape), view, view, rows);
      std::vector<layout::StridedCopy> parts;
      for (const layout::StridedCopy& copy : rows) layout::AppendSplit(copy, kZeroBytes, {1, 1}, parts);
      for (layout::StridedCopy& part : parts) {
        part.source_offset = 0;
        part.source_pitch = 0;
        zeros_first_.push_back({zeros_.data(), Memory(local), part});
      }
    }
    return OkStatus();
  }

  Result<ImportStats> Run(CopyEngine& engine) {
    LS_RETURN_IF_ERROR(engine.Run(zeros_first_));
    LS_RETURN_IF_ERROR(engine.Run(copies_));
    return stats_;
  }

  ImportStats& stats() { return stats_; }

 private:
  static Result<ElementConversion> ConversionTo(const LocalTensor& local, const model::TensorMeta& stored) {
    if (local.dtype == stored.dtype) return ElementConversion::kNone;
    if (local.dtype == model::DType::kF32 && stored.dtype == model::DType::kBF16) return ElementConversion::kBF16ToF32;
    return Status(ErrorCode::kBadData,
                  Cat("tensor \"", stored.name, "\" is ", model::FindDType(stored.dtype)->name,
                      " in the checkpoint, local tensor \"", local.name, "\" is ", model::FindDType(local.dtype)->name,
                      ": only BF16 can be converted, to F32; convert the checkpoint"));
  }

  Status CheckAddress(uint32_t local) const {
    if (locals_[local].address != nullptr) return OkStatus();
    return {ErrorCode::kBadData, Cat("local tensor \"", locals_[local].name, "\" has no address")};
  }

  // Imports are what a local tensor's address is written to for.
  std::byte* Memory(uint32_t local) const { return static_cast<std::byte*>(const_cast<void*>(locals_[local].address)); }

  std::span<const LocalTensor> locals_;
  const Checkpoint& checkpoint_;
  const layout::TrainingModel& model_;
  std::vector<layout::Pieces> filled_;  // of each local
  std::vector<std::byte> zeros_;
  std::vector<PlacedCopy> zeros_first_;
  std::vector<PlacedCopy> copies_;
  ImportStats stats_;
};

}  // namespace

Result<ImportStats> ImportCheckpoint(const std::string& directory, const std::string& description,
                                     std::span<const LocalTensor> locals, uint32_t threads) {
  LS_ASSIGN_OR_RETURN(const plan::ShardDescription parsed, plan::ParseDescription(description));
  LS_RETURN_IF_ERROR(CheckLocals(locals, parsed));
  LS_ASSIGN_OR_RETURN(const layout::TrainingModel model, plan::BuildTrainingModel({parsed}));
  LS_ASSIGN_OR_RETURN(const layout::RankPlan plan, layout::CompileImport(model, 0));
  LS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  const LocalsBySource by_source = LocalsOfRank(model, 0);
  ImportWork work(locals, checkpoint, model);
  uint32_t last_tensor = UINT32_MAX;
  for (const layout::PlanEntry& entry : plan.entries) {
    if (entry.pieces.empty()) continue;
    for (const uint32_t local : by_source[entry.source]) {
      LS_RETURN_IF_ERROR(work.Add(entry, local).WithContext(directory));
    }
    if (entry.tensor != last_tensor) ++work.stats().tensors_read;
    last_tensor = entry.tensor;
  }
  LS_RETURN_IF_ERROR(work.AddZeros());
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<WorkerPool> pool, NewCopyPool(threads));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<CopyEngine> engine, NewCopyEngine(pool.get()));
  return work.Run(*engine);
}

}  // namespace lockstep::exporter
