// The C ABI over RankClient, the upper half of lockstep.h: checks arguments, converts types, keeps the last error.
// Nothing is thrown past it.
#include <memory>
#include <string>
#include <unordered_map>

#include "common/base/version.h"
#include "export_plugin/abi.h"
#include "export_plugin/lockstep.h"
#include "kernels/copy_rows.h"
#include "trainer_agent/buffer/rank_client.h"

using namespace lockstep;  // NOLINT: this file is the library's outer face

struct lockstep_model {
  std::unique_ptr<buffer::RankClient> client;
  std::vector<ByteRange> tensors;  // in the caller's order
  std::vector<std::string> names;
  std::string run;
  std::string error;
};

namespace {

Status CheckWriting(const lockstep_model& model) {
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
                                .call_timeout = abi::Timeout(options.call_timeout_ms, 600'000)};
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
  for (size_t i = 0; i < options->tensor_count; ++i) model->names.emplace_back(options->tensors[i].name);
  LS_ASSIGN_OR_RETURN(model->client, buffer::RankClient::Open(std::move(converted)));
  model->run = ToHex(model->client->run());
  *out = model.release();
  return OkStatus();
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
  return abi::OnHandle(model, "model", [&]() -> Status {
    LS_RETURN_IF_ERROR(CheckWriting(*model));
    if (tensor >= model->tensors.size()) {
      return {ErrorCode::kBadData, Cat("there is no tensor ", tensor, "; the model has ", model->tensors.size())};
    }
    const ByteRange range = model->tensors[tensor];
    if (bytes != range.bytes || (source == nullptr && bytes > 0)) {
      return {ErrorCode::kBadData,
              Cat("tensor \"", model->names[tensor], "\" has ", range.bytes, " bytes; ", bytes, " were given")};
    }
    if (bytes == 0) return OkStatus();
    kernels::CopyRows(model->client->write_data() + range.offset, 0, source, 0, 1, bytes);
    const StridedRange written = StridedRange::Plain(range);
    return model->client->RangesDone({&written, 1});
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
