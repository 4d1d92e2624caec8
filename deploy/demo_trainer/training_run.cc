#include "deploy/demo_trainer/training_run.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "common/base/text.h"
#include "common/os/file.h"
#include "deploy/demo_trainer/initial_model.h"
#include "deploy/demo_trainer/trainer.h"
#include "export_plugin/lockstep.h"

namespace lockstep::demo {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

Result<InitialModel> LoadModel(const Options& options) {
  if (!options.checkpoint.empty()) return OpenCheckpoint(options.checkpoint);
  LS_ASSIGN_OR_RETURN(const Qwen3Shape shape, FindShape(options.shape));
  return ModelOfShape(shape);
}

Status WriteAssets(const Options& options) {
  LS_ASSIGN_OR_RETURN(const Qwen3Shape shape, FindShape(options.shape));
  LS_RETURN_IF_ERROR(os::MakeDirs(options.write_assets));
  return os::WriteFileAtomic(options.write_assets + "/config.json", ConfigJson(shape));
}

void PrintSizes(const InitialModel& model, uint64_t state_bytes) {
  std::cout << Json{{"tensors", model.layout->tensors().size()},
                    {"elements", ElementCount(*model.layout)},
                    {"model_bytes", model.layout->data_bytes()},
                    {"trainer_bytes", state_bytes}}
                   .dump()
            << std::endl;
}

// Closed with its owner; a version being written is then aborted.
struct Close {
  void operator()(lockstep_model* model) const { lockstep_close(model); }
};
using OpenModel = std::unique_ptr<lockstep_model, Close>;

Status FromAbi(int code, std::string_view what, const lockstep_model* model) {
  if (code == LOCKSTEP_OK) return OkStatus();
  return Status(static_cast<ErrorCode>(code), lockstep_last_error(model)).WithContext(what);
}

// As the only rank of its model.
Result<OpenModel> Open(const std::string& socket, const std::string& model, const model::ModelLayout& layout) {
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
  return OpenModel(handle);
}

// Publishes version 1 with the initial weights, and version n + 1 with the weights after step n.
class TrainingRun {
 public:
  TrainingRun(const Options& options, Trainer& trainer, lockstep_model* model)
      : options_(options), trainer_(trainer), model_(model) {}

  Status Train() {
    for (uint64_t step = 0; step <= options_.steps; ++step) {
      if (step > 0 && !MayStep()) return OkStatus();
      LS_RETURN_IF_ERROR(Publish(step));
    }
    if (options_.paced) WaitForEndOfInput();
    return OkStatus();
  }

 private:
  // False when stdin has ended, from which a paced run takes its pace.
  bool MayStep() const {
    std::string line;
    return !options_.paced || std::getline(std::cin, line);
  }

  void WaitForEndOfInput() const {
    for (std::string line; std::getline(std::cin, line);) continue;
  }

  Status Publish(uint64_t step) {
    const Version version = step + 1;
    const auto start = Clock::now();
    blocked_ = {};
    void* memory = nullptr;
    LS_RETURN_IF_ERROR(Call("beginning a version", [&] { return lockstep_begin(model_, version, &memory); }));
    auto* const data = static_cast<std::byte*>(memory);  // the data section, until the commit
    const auto done = [this](ByteRange range) {
      const lockstep_range written = {.offset = range.offset, .bytes = range.bytes};
      return Call("reporting a finished range", [&] { return lockstep_ranges_done(model_, &written, 1); });
    };
    uint64_t changed = 0;
    if (step == 0) {
      LS_RETURN_IF_ERROR(trainer_.PublishInitial(data, done));
    } else {
      LS_ASSIGN_OR_RETURN(changed, trainer_.StepAndPublish(data, done));
    }
    LS_RETURN_IF_ERROR(Call("committing a version", [&] { return lockstep_commit(model_); }));
    const auto elements = static_cast<double>(std::max<uint64_t>(trainer_.elements(), 1));
    Json line = {{"version", version},
                 {"step", step},
                 {"changed_elements", changed},
                 {"density", static_cast<double>(changed) / elements},
                 {"step_ms", Milliseconds(Clock::now() - start).count()},
                 {"blocked_ms", Milliseconds(blocked_).count()}};
    if (step == options_.steps) line["sha256"] = trainer_.Digest();
    std::cout << line.dump() << std::endl;
    return OkStatus();
  }

  // A call of the plugin, and the time it took.
  template <typename Function>
  Status Call(std::string_view what, const Function& function) {
    const auto start = Clock::now();
    const int code = function();
    blocked_ += Clock::now() - start;
    return FromAbi(code, what, model_);
  }

  const Options& options_;
  Trainer& trainer_;
  lockstep_model* const model_;
  Clock::duration blocked_{};  // in calls of the plugin, for this version
};

}  // namespace

Status Run(const Options& options) {
  if (!options.write_assets.empty()) return WriteAssets(options);
  LS_ASSIGN_OR_RETURN(InitialModel model, LoadModel(options));
  if (options.describe) {
    PrintSizes(model, Trainer::StateBytes(model, options.seed));
    return OkStatus();
  }
  LS_ASSIGN_OR_RETURN(const OpenModel opened, Open(options.socket, options.model, *model.layout));
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                      Trainer::Create(std::move(model), {.learning_rate = options.learning_rate,
                                                         .seed = options.seed,
                                                         .threads = options.threads == 0 ? cores : options.threads}));
  return TrainingRun(options, *trainer, opened.get()).Train();
}

}  // namespace lockstep::demo
