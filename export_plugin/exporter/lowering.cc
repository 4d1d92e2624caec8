#include "export_plugin/exporter/lowering.h"

#include "common/base/text.h"

namespace lockstep::exporter {
namespace {

constexpr uint64_t kBatchBytes = uint64_t{64} << 20;

// Appends the copies of `chunk`, and what they write.
Status AppendChunk(const layout::TrainingModel& model, const Chunk& chunk, std::span<const LocalTensor> locals,
                   uint32_t local, CopyList& list) {
  const model::TensorMeta& tensor = model.tensors[chunk.tensor];
  LS_ASSIGN_OR_RETURN(const ElementConversion conversion, ConversionOf(locals[local], tensor));
  const layout::TensorView source = ViewOf(locals[local]);
  const layout::TensorView target = ViewOf(tensor, chunk.pieces[0].target.size());
  LS_RETURN_IF_ERROR(layout::CheckBounds(chunk.pieces, source.shape, target.shape));
  std::vector<layout::StridedCopy> copies;
  layout::AppendCopies(chunk.pieces, source, target, copies);
  layout::Coalesce(copies, {source.element_bytes, target.element_bytes});
  for (const layout::StridedCopy& copy : copies) list.copies.push_back({local, copy, conversion});
  AppendRanges(model, chunk, list.ranges);
  if (list.batches.empty() || list.batches.back().bytes >= kBatchBytes) list.batches.emplace_back();
  list.batches.back().copies_end = list.copies.size();
  list.batches.back().ranges_end = list.ranges.size();
  list.batches.back().bytes += chunk.bytes;
  list.bytes += chunk.bytes;
  return OkStatus();
}

}  // namespace

Result<ElementConversion> ConversionOf(const LocalTensor& local, const model::TensorMeta& tensor) {
  if (local.dtype == tensor.dtype) return ElementConversion::kNone;
  const bool can_convert = local.dtype == model::DType::kF32 && tensor.dtype == model::DType::kBF16;
  if (can_convert && local.convert) return ElementConversion::kF32ToBF16;
  return Status(ErrorCode::kBadData,
                Cat("local tensor \"", local.name, "\" is ", model::FindDType(local.dtype)->name, "; tensor \"",
                    tensor.name, "\" made of it is ", model::FindDType(tensor.dtype)->name,
                    can_convert ? ": allow conversion to have it rounded, or give tensors of the latter"
                                : ": only F32 can be converted, to BF16; give tensors of the latter"));
}

Result<OwnCopies> LowerCopies(const layout::TrainingModel& model, std::span<const Chunk> chunks,
                              std::span<const LocalTensor> locals, const LocalsBySource& by_source) {
  OwnCopies own;
  for (const Chunk& chunk : chunks) {
    LS_RETURN_IF_ERROR(
        AppendChunk(model, chunk, locals, by_source[chunk.source][0], chunk.frozen ? own.frozen : own.changing));
  }
  return own;
}

Status Place(std::span<const LocalCopy> copies, std::span<const LocalTensor> locals, std::byte* target,
             std::vector<PlacedCopy>& placed) {
  placed.clear();
  placed.reserve(copies.size());
  for (const LocalCopy& copy : copies) {
    const LocalTensor& local = locals[copy.local];
    if (local.address == nullptr) {
      return {ErrorCode::kBadData, Cat("local tensor \"", local.name, "\" has no address")};
    }
    placed.push_back({static_cast<const std::byte*>(local.address), target, copy.copy, copy.conversion});
  }
  return OkStatus();
}

namespace {

Status StartAndReport(CopyEngine& engine, const CopyList& list, std::span<const LocalTensor> locals, std::byte* data,
                      const std::function<Status(size_t batch)>& report) {
  std::vector<PlacedCopy> placed;
  size_t copies = 0;
  size_t reported = 0;
  const auto report_oldest = [&] {
    LS_RETURN_IF_ERROR(engine.Wait());
    return report(reported++);
  };
  for (size_t started = 0; started < list.batches.size(); ++started) {
    const size_t end = list.batches[started].copies_end;
    LS_RETURN_IF_ERROR(Place(std::span(list.copies).subspan(copies, end - copies), locals, data, placed));
    LS_RETURN_IF_ERROR(engine.Start(placed));
    copies = end;
    if (started + 1 - reported == engine.most_under_way()) LS_RETURN_IF_ERROR(report_oldest());
  }
  while (reported < list.batches.size()) LS_RETURN_IF_ERROR(report_oldest());
  return OkStatus();
}

}  // namespace

Status RunBatches(CopyEngine& engine, const CopyList& list, std::span<const LocalTensor> locals, std::byte* data,
                  const std::function<Status(size_t batch)>& report) {
  const Status status = StartAndReport(engine, list, locals, data, report);
  if (!status.ok()) engine.Stop();
  return status;
}

}  // namespace lockstep::exporter
