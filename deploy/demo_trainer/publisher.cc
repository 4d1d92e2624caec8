#include "deploy/demo_trainer/publisher.h"

#include <vector>

#include "common/base/text.h"

namespace lockstep::demo {
namespace {

Status FromAbi(int code, std::string_view what, const lockstep_model* model) {
  if (code == LOCKSTEP_OK) return OkStatus();
  return Status(static_cast<ErrorCode>(code), lockstep_last_error(model)).WithContext(what);
}

}  // namespace

Result<Publisher> Publisher::Open(const std::string& socket, const std::string& model,
                                  const model::ModelLayout& layout) {
  std::vector<lockstep_tensor> tensors;
  for (const model::TensorMeta& tensor : layout.tensors()) {
    tensors.push_back({.name = tensor.name.c_str(),
                       .dtype = model::FindDType(tensor.dtype)->name.data(),  // literals, so terminated
                       .shape = tensor.shape.data(),
                       .rank = static_cast<uint32_t>(tensor.shape.size()),
                       .offset = tensor.offset});
  }
  const lockstep_open_options options = {.abi_version = LOCKSTEP_ABI_VERSION,
                                         .socket_path = socket.c_str(),
                                         .model = model.c_str(),
                                         .tensors = tensors.data(),
                                         .tensor_count = tensors.size(),
                                         .rank = 0,
                                         .ranks = 1};
  lockstep_model* handle = nullptr;
  LS_RETURN_IF_ERROR(FromAbi(lockstep_open(&options, &handle), Cat("opening ", model, " at ", socket), nullptr));
  return Publisher(handle);
}

template <typename Call>
Status Publisher::Timed(std::string_view what, const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  const int code = call();
  blocked_ += std::chrono::steady_clock::now() - start;
  return FromAbi(code, what, model_);
}

Result<std::byte*> Publisher::Begin(Version version) {
  void* data = nullptr;
  LS_RETURN_IF_ERROR(Timed("beginning a version", [&] { return lockstep_begin(model_, version, &data); }));
  return static_cast<std::byte*>(data);
}

Status Publisher::RangeDone(ByteRange range) {
  const lockstep_range done = {.offset = range.offset, .bytes = range.bytes};
  return Timed("reporting a finished range", [&] { return lockstep_ranges_done(model_, &done, 1); });
}

Status Publisher::Commit() {
  return Timed("committing a version", [&] { return lockstep_commit(model_); });
}

double Publisher::TakeBlockedMs() {
  return std::chrono::duration<double, std::milli>(std::exchange(blocked_, {})).count();
}

}  // namespace lockstep::demo
