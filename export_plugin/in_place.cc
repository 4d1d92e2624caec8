#include "export_plugin/in_place.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "export_plugin/exporter/lowering.h"
#include "export_plugin/exporter/pinned_pages.h"

namespace lockstep::abi {
namespace {

using Clock = std::chrono::steady_clock;

// Copied, and reported, at a time: the agent compares it while the next is copied. A larger tensor has several batches.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;
// Less waits for more: a report costs as much as copying it.
constexpr uint64_t kLeastReportedBytes = uint64_t{4} << 20;
// Less is as fast without.
constexpr uint64_t kLeastPinnedBytes = uint64_t{1} << 20;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Result<std::unique_ptr<InPlace>> InPlace::Open(client::RankOptions options, std::vector<std::string> names,
                                               std::span<const size_t> owned, uint32_t threads) {
  auto model = std::make_unique<InPlace>();
  // The layout sorts by offset, and empty tensors share theirs.
  std::unordered_map<std::string_view, size_t> positions;
  const model::ModelLayout& layout = *options.layout;
  for (size_t i = 0; i < layout.tensors().size(); ++i) positions[layout.tensors()[i].name] = i;
  for (std::string& name : names) {
    const size_t i = positions[name];
    const model::TensorMeta& tensor = layout.tensors()[i];
    model->tensors_.push_back({std::move(name), {tensor.offset, layout.tensor_bytes(i)}, tensor.dtype});
  }
  for (const size_t i : owned) {
    if (i >= model->tensors_.size()) {
      return Status(ErrorCode::kBadData,
                    Cat("this rank is to write tensor ", i, "; the model has ", model->tensors_.size()));
    }
    Tensor& tensor = model->tensors_[i];
    tensor.owned = true;
    tensor.first_batch = static_cast<uint32_t>(options.share.batch_ends.size());
    for (uint64_t at = 0; at < tensor.range.bytes; at += kBatchBytes) {
      const auto piece =
          StridedRange::Plain({tensor.range.offset + at, std::min(tensor.range.bytes - at, kBatchBytes)});
      options.share.Add({&piece, 1});
    }
  }
  LS_ASSIGN_OR_RETURN(model->pool_,
                      exporter::NewCopyPool(threads == 0 ? exporter::UsualCopyThreads(options.ranks) : threads));
  LS_ASSIGN_OR_RETURN(model->engine_, exporter::NewCopyEngine(model->pool_.get()));
  LS_ASSIGN_OR_RETURN(model->client_, client::RankClient::Open(std::move(options)));
  return model;
}

Status InPlace::CheckWriting() const {
  LS_RETURN_IF_ERROR(client_->CheckMayCall());
  return client_->writing() ? OkStatus()
                            : Status(ErrorCode::kState, "no version is being written; call lockstep_begin");
}

Status InPlace::CheckOwned(size_t tensor) const {
  if (tensor >= tensors_.size()) {
    return {ErrorCode::kBadData, Cat("there is no tensor ", tensor, "; the model has ", tensors_.size())};
  }
  if (tensors_[tensor].owned) return OkStatus();
  return {ErrorCode::kBadData,
          Cat("tensor \"", tensors_[tensor].name, "\" is not among those that this rank was opened to write")};
}

Status InPlace::CheckSource(const lockstep_source& source) const {
  LS_RETURN_IF_ERROR(CheckOwned(source.tensor));
  const Tensor& tensor = tensors_[source.tensor];
  if (source.convert != 0 && tensor.dtype != model::DType::kBF16) {
    return {ErrorCode::kBadData, Cat("tensor \"", tensor.name, "\" is not BF16, and nothing else is converted to")};
  }
  const uint64_t bytes = source.convert != 0 ? 2 * tensor.range.bytes : tensor.range.bytes;
  if (source.bytes == bytes && (source.address != nullptr || bytes == 0)) return OkStatus();
  return {ErrorCode::kBadData, Cat("tensor \"", tensor.name, "\" has ", bytes, " bytes; ", source.bytes, " were given",
                                   source.address == nullptr ? ", at no address" : "")};
}

Result<std::byte*> InPlace::Begin(Version version) {
  const Clock::time_point began = Clock::now();
  LS_ASSIGN_OR_RETURN(std::byte* const data, client_->Begin(version));
  version_ = version;
  unreported_ = {};
  began_ = began;
  stats_ = {.begin_seconds = SecondsSince(began)};
  return data;
}

Status InPlace::Write(std::span<const lockstep_source> sources) {
  LS_RETURN_IF_ERROR(CheckWriting());
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(CheckSource(source));
  std::byte* const data = client_->write_data();
  exporter::CopyList list;
  std::vector<exporter::LocalTensor> locals;
  std::vector<WrittenBatches> written;  // by the batches of `list`
  for (const lockstep_source& source : sources) {
    const Tensor& tensor = tensors_[source.tensor];
    const auto conversion =
        source.convert != 0 ? exporter::ElementConversion::kF32ToBF16 : exporter::ElementConversion::kNone;
    const layout::ElementBytes element = exporter::ElementsOf(conversion);
    PinForGpu(source.address, {data + tensor.range.offset, tensor.range.bytes});
    uint32_t number = tensor.first_batch;
    for (uint64_t at = 0; at < tensor.range.bytes; at += kBatchBytes) {
      const uint64_t bytes = std::min(tensor.range.bytes - at, kBatchBytes);
      if (written.empty() || written.back().bytes + bytes > kBatchBytes) {
        written.emplace_back();
        list.batches.emplace_back();
      }
      list.copies.push_back({.local = static_cast<uint32_t>(locals.size()),
                             .copy = {.source_offset = at / element.target * element.source,
                                      .target_offset = tensor.range.offset + at,
                                      .row_bytes = bytes},
                             .conversion = conversion});
      list.batches.back().copies_end = list.copies.size();
      written.back().batches.push_back(number++);
      written.back().bytes += bytes;
    }
    locals.push_back({.name = tensor.name, .shape = {}, .strides = {}, .address = source.address});
  }
  return exporter::RunBatches(*engine_, list, locals, data, [&](size_t batch) {
    const WrittenBatches& done = written[batch];
    unreported_.batches.insert(unreported_.batches.end(), done.batches.begin(), done.batches.end());
    unreported_.bytes += done.bytes;
    return Report(kLeastReportedBytes);
  });
}

Status InPlace::Report(uint64_t least_bytes) {
  if (unreported_.batches.empty() || unreported_.bytes < least_bytes) return OkStatus();
  const WrittenBatches written = std::exchange(unreported_, {});
  LS_RETURN_IF_ERROR(client_->BatchesDone(written.batches));
  stats_.bytes_copied += written.bytes;
  return OkStatus();
}

// Whole pages, since those at its ends may be a neighbour's, too.
void InPlace::PinForGpu(const void* source, std::span<std::byte> target) {
  const bool wanted = pins_ && target.size() >= kLeastPinnedBytes && !pinned_.contains(target.data());
  if (!wanted || !engine_->OnDevice(source)) return;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t before = -reinterpret_cast<uintptr_t>(target.data()) % page_bytes;
  const ByteRange whole{before, (target.size() - before) / page_bytes * page_bytes};
  const StridedRange pages = StridedRange::Plain(whole);
  Result<exporter::PinnedMemory> pinned = engine_->Pin(exporter::PagesOf(target.data(), {&pages, 1}, page_bytes));
  pins_ = pinned.ok();
  if (pins_) pinned_[target.data()] = *std::move(pinned);
}

Status InPlace::TensorsDone(std::span<const size_t> tensors) {
  LS_RETURN_IF_ERROR(CheckWriting());
  for (const size_t tensor : tensors) LS_RETURN_IF_ERROR(CheckOwned(tensor));
  WrittenBatches done;
  for (const size_t tensor : tensors) {
    uint32_t number = tensors_[tensor].first_batch;
    for (uint64_t at = 0; at < tensors_[tensor].range.bytes; at += kBatchBytes) done.batches.push_back(number++);
    done.bytes += tensors_[tensor].range.bytes;
  }
  LS_RETURN_IF_ERROR(client_->BatchesDone(done.batches));
  stats_.bytes_copied += done.bytes;
  return OkStatus();
}

Status InPlace::Commit(std::string_view label) {
  LS_RETURN_IF_ERROR(CheckWriting());
  LS_RETURN_IF_ERROR(Report(0));
  LS_RETURN_IF_ERROR(client_->SetLabel(label));
  LS_RETURN_IF_ERROR(client_->Commit());
  stats_.total_seconds = SecondsSince(began_);
  return OkStatus();
}

Status InPlace::Abort(Version version, std::string_view reason) {
  LS_RETURN_IF_ERROR(CheckWriting());
  if (version != version_) {
    return {ErrorCode::kState, Cat("version ", version, " is not being written; version ", version_, " is")};
  }
  return client_->Abort(reason);
}

}  // namespace lockstep::abi
