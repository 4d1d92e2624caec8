#include "export_plugin/convert.h"

#include <chrono>
#include <optional>

#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/model/layout.h"
#include "export_plugin/abi.h"

namespace lockstep::abi {
namespace {

// The dtype of a lockstep_tensor or lockstep_local_tensor. kBadData calls it `what` and says what is wrong.
template <typename Tensor>
Result<model::DType> CheckTensor(const Tensor& tensor, std::string_view what, size_t position) {
  if (tensor.name == nullptr || tensor.dtype == nullptr || (tensor.rank > 0 && tensor.shape == nullptr)) {
    return Status(ErrorCode::kBadData, Cat(what, " ", position, ": its name, dtype or shape is null"));
  }
  const model::DTypeInfo* dtype = model::FindDType(tensor.dtype);
  if (dtype == nullptr) {
    return Status(ErrorCode::kBadData, Cat(what, " \"", tensor.name, "\": unknown dtype \"", tensor.dtype,
                                           "\"; use the names of safetensors, such as BF16"));
  }
  if (tensor.rank <= model::kMaxTensorRank) return dtype->dtype;
  return Status(ErrorCode::kBadData, Cat(what, " \"", tensor.name, "\": rank ", tensor.rank, " is over the limit of ",
                                         model::kMaxTensorRank));
}

std::chrono::milliseconds Timeout(uint32_t given_ms, std::chrono::milliseconds usual) {
  return given_ms == 0 ? usual : std::chrono::milliseconds(given_ms);
}

// Without layout, rank and ranks.
Result<client::RankOptions> AgentOptions(const lockstep_options& given) {
  if (given.socket_path == nullptr || given.model == nullptr) {
    return Status(ErrorCode::kBadData, "socket_path and model must be given");
  }
  client::RankOptions to{.socket_path = given.socket_path, .model = given.model};
  to.guard = TextOrEmpty(given.guard);
  to.connect_timeout = Timeout(given.connect_timeout_ms, to.connect_timeout);
  to.reconnect_timeout = Timeout(given.reconnect_timeout_ms, to.reconnect_timeout);
  to.call_timeout = Timeout(given.call_timeout_ms, to.call_timeout);
  if (given.interrupted != nullptr) {
    to.interrupted = [interrupted = given.interrupted, context = given.context] { return interrupted(context); };
  }
  if (given.run == nullptr) return to;
  LS_ASSIGN_OR_RETURN(to.run.bytes, HexDecode16(given.run));
  return to;
}

class CallbackExchange : public exporter::Exchange {
 public:
  explicit CallbackExchange(const lockstep_exchange& callbacks) : callbacks_(callbacks) {}

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

  // Every error code becomes kUnavailable: after an error it is unknown which message would come next.
  Status Outcome(int code) {
    if (code == LOCKSTEP_OK) return OkStatus();
    const char* sentence = callbacks_.error(callbacks_.context);
    const bool silent = sentence == nullptr || *sentence == '\0';
    return {ErrorCode::kUnavailable, silent ? Cat("the exchange failed with code ", code) : CleanText(sentence)};
  }

  const lockstep_exchange callbacks_;
};

}  // namespace

Result<client::RankOptions> ToRankOptions(const lockstep_options& options) {
  LS_ASSIGN_OR_RETURN(client::RankOptions converted, AgentOptions(options));
  if (options.tensors == nullptr) return Status(ErrorCode::kBadData, "tensors, or descriptions, must be given");
  if (options.ranks == 0 || options.ranks > wire::kMaxRanks || options.rank >= options.ranks) {
    return Status(ErrorCode::kBadData, Cat("rank ", options.rank, " of ", options.ranks,
                                           ": ranks count from 0 and are at most ", wire::kMaxRanks));
  }
  converted.rank = options.rank;
  converted.ranks = options.ranks;
  std::vector<model::TensorMeta> tensors;
  for (size_t i = 0; i < options.tensor_count; ++i) {
    const lockstep_tensor& tensor = options.tensors[i];
    LS_ASSIGN_OR_RETURN(const model::DType dtype, CheckTensor(tensor, "tensor", i));
    tensors.push_back({.name = tensor.name,
                       .dtype = dtype,
                       .shape = {tensor.shape, tensor.shape + tensor.rank},
                       .offset = tensor.offset});
  }
  LS_ASSIGN_OR_RETURN(model::Attachments attachments, model::ParseAttachments(TextOrEmpty(options.attachments)));
  LS_ASSIGN_OR_RETURN(converted.layout, model::ModelLayout::Create(std::move(tensors), model::kDefaultBlockBytes,
                                                                   std::move(attachments)));
  return converted;
}

Result<exporter::ExporterOptions> ToExporterOptions(const lockstep_options& options) {
  exporter::ExporterOptions converted{.rank = options.rank, .threads = options.threads};
  LS_ASSIGN_OR_RETURN(converted.agent, AgentOptions(options));
  if (options.tensors != nullptr) return Status(ErrorCode::kBadData, "tensors or descriptions must be given, not both");
  if (options.bucket_bytes != 0) converted.bucket_bytes = options.bucket_bytes;
  LS_ASSIGN_OR_RETURN(converted.descriptions, ToDescriptions(options.descriptions, options.ranks));
  LS_ASSIGN_OR_RETURN(converted.attachments, model::ParseAttachments(TextOrEmpty(options.attachments)));
  LS_ASSIGN_OR_RETURN(converted.locals, ToLocals(options.locals, options.local_count));
  if (options.hosts != nullptr) converted.hosts.assign(options.hosts, options.hosts + options.ranks);
  converted.part = options.part;
  return converted;
}

Result<std::vector<std::string>> ToDescriptions(const char* const* descriptions, uint32_t ranks) {
  if (descriptions == nullptr || ranks == 0)
    return Status(ErrorCode::kBadData, "the descriptions of all ranks must be given");
  std::vector<std::string> converted;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (descriptions[rank] == nullptr)
      return Status(ErrorCode::kBadData, Cat("the description of rank ", rank, " is null"));
    converted.emplace_back(descriptions[rank]);
  }
  return converted;
}

Result<std::vector<exporter::LocalTensor>> ToLocals(const lockstep_local_tensor* locals, size_t count) {
  if (locals == nullptr && count > 0) return Status(ErrorCode::kBadData, "the local tensors must be given");
  std::vector<exporter::LocalTensor> converted;
  for (size_t i = 0; i < count; ++i) {
    const lockstep_local_tensor& local = locals[i];
    LS_ASSIGN_OR_RETURN(const model::DType dtype, CheckTensor(local, "local tensor", i));
    exporter::LocalTensor& tensor = converted.emplace_back(exporter::LocalTensor{
        .name = local.name, .dtype = dtype, .address = local.address, .convert = local.convert != 0});
    tensor.shape = {local.shape, local.shape + local.rank};
    tensor.strides = local.strides == nullptr ? layout::ContiguousStrides(tensor.shape)
                                              : layout::Extents(local.strides, local.strides + local.rank);
  }
  return converted;
}

Result<std::unique_ptr<exporter::Exchange>> ToExchange(const lockstep_exchange& callbacks) {
  const bool whole = callbacks.start_send != nullptr && callbacks.start_receive != nullptr &&
                     callbacks.wait != nullptr && callbacks.error != nullptr;
  if (!whole) return Status(ErrorCode::kBadData, "the exchange lacks one of its functions");
  return std::unique_ptr<exporter::Exchange>(std::make_unique<CallbackExchange>(callbacks));
}

}  // namespace lockstep::abi
