// The C ABI over RankClient, the upper half of lockstep.h: checks arguments, converts types, keeps the last error.
// Nothing is thrown past it.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "common/base/version.h"
#include "export_plugin/abi.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/lockstep.h"
#include "trainer_agent/buffer/rank_client.h"

using namespace lockstep;  // NOLINT: this file is the library's outer face

struct lockstep_model {
  std::unique_ptr<buffer::RankClient> client;
  std::vector<ByteRange> tensors;  // in the caller's order
  std::vector<std::string> names;
  std::unique_ptr<WorkerPool> pool;
  std::unique_ptr<exporter::CopyEngine> engine;  // uses the pool
  std::string run;
  std::string error;
};

namespace {

// Copied, and reported, at a time: the agent compares it while the next is copied.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

Status CheckWriting(const lockstep_model& model) {
  LS_RETURN_IF_ERROR(model.client->CheckMayCall());
  return model.client->writing() ? OkStatus()
                                 : Status(ErrorCode::kState, "no version is being written; call lockstep_begin");
}

Result<model::TensorMeta> ConvertTensor(const lockstep_tensor& tensor, size_t position) {
  LS_ASSIGN_OR_RETURN(const model::DType dtype, abi::CheckTensor(tensor, "tensor", position));
  return model::TensorMeta{.name = tensor.name,
                           .dtype = dtype,
                           .shape = {tensor.shape, tensor.shape + tensor.rank},
                           .offset = tensor.offset};
}

Result<buffer::RankOptions> ConvertOptions(const lockstep_open_options& options) {
  LS_RETURN_IF_ERROR(abi::CheckAbiVersion(options.abi_version));
  if (options.socket_path == nullptr || options.model == nullptr ||
      (options.tensors == nullptr && options.tensor_count > 0)) {
    return Status(ErrorCode::kBadData, "socket_path, model and tensors must be given");
  }
  if (options.ranks == 0 || options.ranks > buffer::kMaxRanks || options.rank >= options.ranks) {
    return Status(ErrorCode::kBadData, Cat("rank ", options.rank, " of ", options.ranks,
                                           ": ranks count from 0 and are at most ", buffer::kMaxRanks));
  }
  std::vector<model::TensorMeta> tensors;
  for (size_t i = 0; i < options.tensor_count; ++i) {
    LS_ASSIGN_OR_RETURN(model::TensorMeta tensor, ConvertTensor(options.tensors[i], i));
    tensors.push_back(std::move(tensor));
  }
  buffer::RankOptions converted{.socket_path = options.socket_path,
                                .model = options.model,
                                .rank = options.rank,
                                .ranks = options.ranks,
                                .connect_timeout = abi::Timeout(options.connect_timeout_ms, 10'000),
                                .reconnect_timeout = abi::Timeout(options.reconnect_timeout_ms, 60'000),
                                .call_timeout = abi::Timeout(options.call_timeout_ms, 600'000),
                                .interrupted = abi::ConvertInterrupted(options.interrupted, options.context)};
  LS_ASSIGN_OR_RETURN(model::Attachments attachments, model::ParseAttachments(abi::TextOrEmpty(options.attachments)));
  LS_ASSIGN_OR_RETURN(converted.layout, model::ModelLayout::Create(std::move(tensors), model::kDefaultBlockBytes,
                                                                   std::move(attachments)));
  LS_ASSIGN_OR_RETURN(converted.run, abi::ParseRun(options.run));
  return converted;
}

// Byte ranges in the caller's order: the layout sorts by offset, and empty tensors share theirs.
std::vector<ByteRange> TensorRanges(const lockstep_open_options& options, const model::ModelLayout& layout) {
  std::unordered_map<std::string_view, ByteRange> ranges;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    ranges[layout.tensors()[i].name] = {layout.tensors()[i].offset, layout.tensor_bytes(i)};
  }
  std::vector<ByteRange> in_order;
  for (size_t i = 0; i < options.tensor_count; ++i) in_order.push_back(ranges[options.tensors[i].name]);
  return in_order;
}

Status Open(const lockstep_open_options* options, lockstep_model** out) {
  if (options == nullptr || out == nullptr) return {ErrorCode::kBadData, "options and model must be given"};
  LS_ASSIGN_OR_RETURN(buffer::RankOptions converted, ConvertOptions(*options));
  auto model = std::make_unique<lockstep_model>();
  model->tensors = TensorRanges(*options, *converted.layout);
  LS_ASSIGN_OR_RETURN(model->pool, exporter::NewCopyPool(options->threads == 0
                                                             ? exporter::UsualCopyThreads(std::max(1u, options->ranks))
                                                             : options->threads));
  model->engine = exporter::NewHostCopyEngine(model->pool.get());
  for (size_t i = 0; i < options->tensor_count; ++i) model->names.emplace_back(options->tensors[i].name);
  LS_ASSIGN_OR_RETURN(model->client, buffer::RankClient::Open(std::move(converted)));
  model->run = ToHex(model->client->run());
  *out = model.release();
  return OkStatus();
}

Status CheckSource(const lockstep_model& model, const lockstep_source& source) {
  if (source.tensor >= model.tensors.size()) {
    return {ErrorCode::kBadData, Cat("there is no tensor ", source.tensor, "; the model has ", model.tensors.size())};
  }
  const uint64_t bytes = model.tensors[source.tensor].bytes;
  if (source.bytes == bytes && (source.address != nullptr || bytes == 0)) return OkStatus();
  return {ErrorCode::kBadData, Cat("tensor \"", model.names[source.tensor], "\" has ", bytes, " bytes; ", source.bytes,
                                   " were given", source.address == nullptr ? ", at no address" : "")};
}

// Copies that wait to be run together.
class Batch {
 public:
  explicit Batch(lockstep_model& model) : model_(model) {}

  Status Add(const lockstep_source& source) {
    const ByteRange target = model_.tensors[source.tensor];
    const auto* from = static_cast<const std::byte*>(source.address);
    for (uint64_t at = 0; at < target.bytes;) {
      const uint64_t bytes = std::min(target.bytes - at, kBatchBytes - bytes_);
      std::byte* to = model_.client->write_data() + target.offset + at;
      copies_.push_back({.source = from + at, .target = to, .copy = {.row_bytes = bytes}});
      ranges_.push_back(StridedRange::Plain({target.offset + at, bytes}));
      at += bytes;
      bytes_ += bytes;
      if (bytes_ == kBatchBytes) LS_RETURN_IF_ERROR(Run());
    }
    return OkStatus();
  }

  Status Run() {
    LS_RETURN_IF_ERROR(model_.engine->Run(copies_));
    LS_RETURN_IF_ERROR(model_.client->RangesDone(ranges_));
    copies_.clear();
    ranges_.clear();
    bytes_ = 0;
    return OkStatus();
  }

 private:
  lockstep_model& model_;
  std::vector<exporter::PlacedCopy> copies_;
  std::vector<StridedRange> ranges_;
  uint64_t bytes_ = 0;
};

Status WriteAll(lockstep_model& model, std::span<const lockstep_source> sources) {
  LS_RETURN_IF_ERROR(CheckWriting(model));
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(CheckSource(model, source));
  Batch batch(model);
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(batch.Add(source));
  return batch.Run();
}

}  // namespace

std::string& abi::ThreadError() {
  thread_local std::string error;
  return error;
}

extern "C" {

int lockstep_open(const lockstep_open_options* options, lockstep_model** model) {
  if (model != nullptr) *model = nullptr;
  return abi::Guarded(abi::ThreadError(), [&] { return Open(options, model); });
}

int lockstep_begin(lockstep_model* model, uint64_t version, void** data) {
  return abi::OnHandle(model, "model", [&]() -> Status {
    if (data == nullptr) return {ErrorCode::kBadData, "data must be given"};
    LS_ASSIGN_OR_RETURN(*data, model->client->Begin(version));
    return OkStatus();
  });
}

int lockstep_write(lockstep_model* model, size_t tensor, const void* source, size_t bytes) {
  const lockstep_source whole = {tensor, source, bytes};
  return lockstep_write_all(model, &whole, 1);
}

int lockstep_write_all(lockstep_model* model, const lockstep_source* sources, size_t count) {
  return abi::OnHandle(model, "model", [&]() -> Status {
    if (sources == nullptr && count > 0) return {ErrorCode::kBadData, "sources must be given"};
    return WriteAll(*model, {sources, count});
  });
}

int lockstep_ranges_done(lockstep_model* model, const lockstep_range* ranges, size_t count) {
  return abi::OnHandle(model, "model", [&]() -> Status {
    LS_RETURN_IF_ERROR(CheckWriting(*model));
    if (ranges == nullptr && count > 0) return {ErrorCode::kBadData, "ranges must be given"};
    std::vector<StridedRange> converted;
    for (size_t i = 0; i < count; ++i) {
      converted.push_back(StridedRange::Plain({ranges[i].offset, ranges[i].bytes}));
    }
    return model->client->RangesDone(converted);
  });
}

int lockstep_set_label(lockstep_model* model, const char* label) {
  return abi::OnHandle(model, "model", [&]() -> Status {
    LS_RETURN_IF_ERROR(CheckWriting(*model));
    return model->client->SetLabel(abi::TextOrEmpty(label));
  });
}

int lockstep_commit(lockstep_model* model) {
  return abi::OnHandle(model, "model", [&]() -> Status {
    LS_RETURN_IF_ERROR(CheckWriting(*model));
    return model->client->Commit();
  });
}

int lockstep_abort(lockstep_model* model) {
  return abi::OnHandle(model, "model", [&]() -> Status {
    LS_RETURN_IF_ERROR(CheckWriting(*model));
    return model->client->Abort();
  });
}

const char* lockstep_run(const lockstep_model* model) {
  return model == nullptr ? "" : model->run.c_str();
}

uint64_t lockstep_committed_version(const lockstep_model* model) {
  return model == nullptr ? 0 : model->client->committed_version();
}

uint64_t lockstep_data_bytes(const lockstep_model* model) {
  return model == nullptr ? 0 : model->client->layout().data_bytes();
}

void lockstep_leave(lockstep_model* model) {
  if (model != nullptr) model->client->Leave();
}

void lockstep_close(lockstep_model* model) {
  delete model;
}

const char* lockstep_last_error(const lockstep_model* model) {
  return model == nullptr ? abi::ThreadError().c_str() : model->error.c_str();
}

const char* lockstep_version(void) {
  return kVersion.data();  // a literal: it ends with a zero
}

}  // extern "C"
