// The C ABI over Exporter and ImportCheckpoint, the lower half of lockstep.h.
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "export_plugin/abi.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/exporter/importer.h"
#include "export_plugin/lockstep.h"
#include "export_plugin/plan/sheet.h"

using namespace lockstep;  // NOLINT: this file is the library's outer face

struct lockstep_exporter {
  std::unique_ptr<exporter::Exchange> exchange;
  std::unique_ptr<exporter::Exporter> exporter;  // uses the exchange
  size_t locals = 0;
  std::string run;
  std::string description;
  std::string error;
};

namespace {

// The exchange that a host program gives.
class CallbackExchange : public exporter::Exchange {
 public:
  explicit CallbackExchange(const lockstep_exchange& callbacks) : callbacks_(callbacks) {}

  static Status Check(const lockstep_exchange& callbacks) {
    const bool whole = callbacks.start_send != nullptr && callbacks.start_receive != nullptr &&
                       callbacks.wait != nullptr && callbacks.error != nullptr;
    return whole ? OkStatus() : Status(ErrorCode::kBadData, "the exchange lacks one of its functions");
  }

  std::optional<int> device() const override {
    if (callbacks_.in_gpu_memory == 0) return std::nullopt;
    return callbacks_.device;
  }
  Result<Transfer> StartSend(uint32_t peer, const void* data, uint64_t bytes) override {
    Transfer transfer = 0;
    const int code = callbacks_.start_send(callbacks_.context, peer, data, bytes, &transfer);
    return Started(code, transfer, peer);
  }
  Result<Transfer> StartReceive(uint32_t peer, void* data, uint64_t bytes) override {
    Transfer transfer = 0;
    const int code = callbacks_.start_receive(callbacks_.context, peer, data, bytes, &transfer);
    return Started(code, transfer, peer);
  }
  Status Wait(Transfer transfer) override { return Outcome(callbacks_.wait(callbacks_.context, transfer)); }

 private:
  Result<Transfer> Started(int code, Transfer transfer, uint32_t peer) {
    LS_RETURN_IF_ERROR(Outcome(code));
    if (transfer != 0) return transfer;
    return Status(ErrorCode::kUnavailable, Cat("the exchange with rank ", peer, " gave no transfer"));
  }

  // Whatever the program calls it: nobody knows which message would come next.
  Status Outcome(int code) {
    if (code == LOCKSTEP_OK) return OkStatus();
    const char* sentence = callbacks_.error(callbacks_.context);
    const bool silent = sentence == nullptr || *sentence == '\0';
    return {ErrorCode::kUnavailable, silent ? Cat("the exchange failed with code ", code) : CleanText(sentence)};
  }

  const lockstep_exchange callbacks_;
};

Result<std::vector<std::string>> ConvertSheets(const char* const* sheets, uint32_t ranks) {
  if (sheets == nullptr || ranks == 0) return Status(ErrorCode::kBadData, "the sheets of all ranks must be given");
  std::vector<std::string> converted;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (sheets[rank] == nullptr) return Status(ErrorCode::kBadData, Cat("the sheet of rank ", rank, " is null"));
    converted.emplace_back(sheets[rank]);
  }
  return converted;
}

Result<exporter::LocalTensor> ConvertLocal(const lockstep_local_tensor& local, size_t position) {
  LS_ASSIGN_OR_RETURN(const model::DType dtype, abi::CheckTensor(local, "local tensor", position));
  exporter::LocalTensor converted{.name = local.name,
                                  .dtype = dtype,
                                  .shape = {local.shape, local.shape + local.rank},
                                  .address = local.address,
                                  .convert = local.convert != 0};
  converted.strides = local.strides == nullptr ? layout::ContiguousStrides(converted.shape)
                                               : layout::Extents(local.strides, local.strides + local.rank);
  return converted;
}

Result<std::vector<exporter::LocalTensor>> ConvertLocals(const lockstep_local_tensor* locals, size_t count) {
  if (locals == nullptr && count > 0) return Status(ErrorCode::kBadData, "the local tensors must be given");
  std::vector<exporter::LocalTensor> converted;
  for (size_t i = 0; i < count; ++i) {
    LS_ASSIGN_OR_RETURN(exporter::LocalTensor local, ConvertLocal(locals[i], i));
    converted.push_back(std::move(local));
  }
  return converted;
}

Result<exporter::ExporterOptions> ConvertOptions(const lockstep_exporter_options& options) {
  LS_RETURN_IF_ERROR(abi::CheckAbiVersion(options.abi_version));
  if (options.socket_path == nullptr || options.model == nullptr) {
    return Status(ErrorCode::kBadData, "socket_path and model must be given");
  }
  exporter::ExporterOptions converted{
      .socket_path = options.socket_path,
      .model = options.model,
      .rank = options.rank,
      .bucket_bytes = options.bucket_bytes == 0 ? exporter::kDefaultBucketBytes : options.bucket_bytes,
      .threads = options.threads,
      .connect_timeout = abi::Timeout(options.connect_timeout_ms, 10'000),
      .reconnect_timeout = abi::Timeout(options.reconnect_timeout_ms, 60'000),
      .call_timeout = abi::Timeout(options.call_timeout_ms, 600'000),
      .interrupted = abi::ConvertInterrupted(options.interrupted, options.context)};
  LS_ASSIGN_OR_RETURN(converted.sheets, ConvertSheets(options.sheets, options.ranks));
  LS_ASSIGN_OR_RETURN(converted.attachments, model::ParseAttachments(abi::TextOrEmpty(options.attachments)));
  LS_ASSIGN_OR_RETURN(converted.locals, ConvertLocals(options.locals, options.local_count));
  LS_ASSIGN_OR_RETURN(converted.run, abi::ParseRun(options.run));
  return converted;
}

Status Open(const lockstep_exporter_options* options, lockstep_exporter** out) {
  if (options == nullptr || out == nullptr) return {ErrorCode::kBadData, "options and exporter must be given"};
  LS_ASSIGN_OR_RETURN(exporter::ExporterOptions converted, ConvertOptions(*options));
  auto exporter = std::make_unique<lockstep_exporter>();
  exporter->locals = options->local_count;
  if (options->exchange != nullptr) {
    LS_RETURN_IF_ERROR(CallbackExchange::Check(*options->exchange));
    exporter->exchange = std::make_unique<CallbackExchange>(*options->exchange);
    converted.exchange = exporter->exchange.get();
  }
  LS_ASSIGN_OR_RETURN(exporter->exporter, exporter::Exporter::Open(std::move(converted)));
  if (exporter->exporter->writes()) exporter->run = ToHex(exporter->exporter->run());
  *out = exporter.release();
  return OkStatus();
}

nlohmann::ordered_json DescribeTensors(const std::vector<model::TensorMeta>& tensors) {
  nlohmann::ordered_json described = nlohmann::ordered_json::array();
  for (const model::TensorMeta& tensor : tensors) {
    described.push_back({{"name", tensor.name},
                         {"dtype", model::FindDType(tensor.dtype)->name},
                         {"shape", tensor.shape},
                         {"offset", tensor.offset}});
  }
  return described;
}

std::string Describe(const exporter::Exporter& exporter) {
  return nlohmann::ordered_json{{"plan", ToHex(exporter.plan().digest)},
                                {"bytes", exporter.plan().bytes},
                                {"bucket_bytes", exporter.bucket_bytes()},
                                {"writes", exporter.writes()},
                                {"pinned", exporter.pinned()},
                                {"pin_trouble", exporter.pin_trouble().message()},
                                {"tensors", DescribeTensors(exporter.layout().tensors())}}
      .dump();
}

Status TensorsMeta(const char* const* sheets, uint32_t ranks, char** json) {
  if (json == nullptr) return {ErrorCode::kBadData, "json must be given"};
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ConvertSheets(sheets, ranks));
  LS_ASSIGN_OR_RETURN(const std::vector<plan::RankSheet> parsed, exporter::ParseSheets(texts));
  LS_ASSIGN_OR_RETURN(const layout::TrainingModel model, plan::BuildTrainingModel(parsed));
  *json = ::strdup(DescribeTensors(model.tensors).dump().c_str());
  return *json != nullptr ? OkStatus() : Status(ErrorCode::kResourceExhausted, "out of memory");
}

}  // namespace

extern "C" {

int lockstep_exporter_open(const lockstep_exporter_options* options, lockstep_exporter** exporter) {
  if (exporter != nullptr) *exporter = nullptr;
  return abi::Guarded(abi::ThreadError(), [&] { return Open(options, exporter); });
}

int lockstep_exporter_publish(lockstep_exporter* exporter, uint64_t version, const void* const* addresses) {
  return abi::OnHandle(exporter, "exporter", [&] {
    const std::span<const void* const> given(addresses, addresses == nullptr ? 0 : exporter->locals);
    return exporter->exporter->Publish(version, given);
  });
}

int lockstep_exporter_set_label(lockstep_exporter* exporter, const char* label) {
  return abi::OnHandle(exporter, "exporter", [&] { return exporter->exporter->SetLabel(abi::TextOrEmpty(label)); });
}

int lockstep_exporter_give_up(lockstep_exporter* exporter, uint64_t version, const char* reason) {
  return abi::OnHandle(exporter, "exporter", [&] {
    const std::string sentence = CleanText(abi::TextOrEmpty(reason));
    return exporter->exporter->Abort(version, {ErrorCode::kAborted, sentence.empty() ? "no reason given" : sentence});
  });
}

int lockstep_exporter_fill(lockstep_exporter* exporter, const void* const* addresses, uint64_t offset, uint64_t bytes,
                           void* target) {
  return abi::OnHandle(exporter, "exporter", [&]() -> Status {
    if (target == nullptr) return {ErrorCode::kBadData, "the memory to fill must be given"};
    const std::span<const void* const> given(addresses, addresses == nullptr ? 0 : exporter->locals);
    return exporter->exporter->Fill({offset, bytes}, static_cast<std::byte*>(target), given);
  });
}

const char* lockstep_exporter_run(const lockstep_exporter* exporter) {
  return exporter == nullptr ? "" : exporter->run.c_str();
}

uint64_t lockstep_exporter_committed_version(const lockstep_exporter* exporter) {
  return exporter == nullptr ? 0 : exporter->exporter->committed_version();
}

int lockstep_exporter_stats(const lockstep_exporter* exporter, lockstep_publish_stats* stats) {
  if (exporter == nullptr || stats == nullptr) return LOCKSTEP_BAD_DATA;
  const exporter::PublishStats& last = exporter->exporter->stats();
  *stats = {.bytes_copied = last.bytes_copied,
            .bytes_frozen = last.bytes_frozen,
            .bytes_sent = last.bytes_sent,
            .bytes_received = last.bytes_received,
            .buckets_sent = last.buckets_sent,
            .buckets_received = last.buckets_received,
            .exchange_memory_bytes = last.exchange_memory_bytes,
            .begin_us = static_cast<uint64_t>(last.begin_seconds * 1e6),
            .total_us = static_cast<uint64_t>(last.total_seconds * 1e6)};
  return LOCKSTEP_OK;
}

const char* lockstep_exporter_describe(lockstep_exporter* exporter) {
  const int code = abi::OnHandle(exporter, "exporter", [&] {
    exporter->description = Describe(*exporter->exporter);
    return OkStatus();
  });
  return code == LOCKSTEP_OK ? exporter->description.c_str() : "";
}

void lockstep_exporter_close(lockstep_exporter* exporter) {
  delete exporter;
}

const char* lockstep_exporter_error(const lockstep_exporter* exporter) {
  return exporter == nullptr ? abi::ThreadError().c_str() : exporter->error.c_str();
}

int lockstep_import(const char* directory, const char* sheet, const lockstep_local_tensor* locals, size_t local_count,
                    uint32_t threads) {
  return abi::Guarded(abi::ThreadError(), [&]() -> Status {
    if (directory == nullptr || sheet == nullptr) return {ErrorCode::kBadData, "directory and sheet must be given"};
    LS_ASSIGN_OR_RETURN(const std::vector<exporter::LocalTensor> converted, ConvertLocals(locals, local_count));
    LS_RETURN_IF_ERROR(exporter::ImportCheckpoint(directory, sheet, converted, threads == 0 ? 1 : threads));
    return OkStatus();
  });
}

int lockstep_tensors_meta(const char* const* sheets, uint32_t ranks, char** json) {
  if (json != nullptr) *json = nullptr;
  return abi::Guarded(abi::ThreadError(), [&] { return TensorsMeta(sheets, ranks, json); });
}

void lockstep_free(void* memory) {
  std::free(memory);
}

int lockstep_has_cuda(void) {
  return exporter::kBuiltWithCuda ? 1 : 0;
}

int lockstep_check_gpu(void) {
  return abi::Guarded(abi::ThreadError(), [] { return exporter::GpuTrouble(); });
}

}  // extern "C"
