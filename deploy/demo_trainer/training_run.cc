#include "deploy/demo_trainer/training_run.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/text.h"
#include "common/os/file.h"
#include "deploy/demo_trainer/initial_model.h"
#include "deploy/demo_trainer/publisher.h"
#include "deploy/demo_trainer/shapes.h"
#include "deploy/demo_trainer/trainer.h"

namespace lockstep::demo {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Where the lines go: stdout, and the file when one is named.
class Journal {
 public:
  static Result<Journal> Create(const std::string& path) {
    Journal journal;
    if (path.empty()) return journal;
    journal.file_.open(path, std::ios::trunc);
    if (!journal.file_) return ErrnoStatus(errno, Cat("opening ", path, " for the digests"));
    return journal;
  }
  void Write(const Json& line) {
    std::cout << line.dump() << std::endl;
    if (file_.is_open()) file_ << line.dump() << std::endl;
  }

 private:
  std::ofstream file_;
};

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

// Publishes version 1 with the initial weights, and version n + 1 with the weights after step n.
class TrainingRun {
 public:
  TrainingRun(const Options& options, Trainer& trainer, Publisher& publisher, Journal& journal)
      : options_(options), trainer_(trainer), publisher_(publisher), journal_(journal) {}

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
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.step_delay_ms));
    std::string line;
    return !options_.paced || std::getline(std::cin, line);
  }

  void WaitForEndOfInput() const {
    for (std::string line; std::getline(std::cin, line);) continue;
  }

  Status Publish(uint64_t step) {
    const Version version = step + 1;
    const auto start = Clock::now();
    uint64_t changed = 0;
    LS_ASSIGN_OR_RETURN(std::byte * data, publisher_.Begin(version));
    const auto done = [this](ByteRange range) { return publisher_.RangeDone(range); };
    if (step == 0) {
      LS_RETURN_IF_ERROR(trainer_.PublishInitial(data, done));
    } else {
      LS_ASSIGN_OR_RETURN(changed, trainer_.StepAndPublish(data, done));
    }
    LS_RETURN_IF_ERROR(publisher_.Commit());
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    const bool last = step == options_.steps;
    const bool digest_due = last || (options_.digest_every > 0 && version % options_.digest_every == 0);
    Json line = {
        {"version", version},
        {"step", step},
        {"changed_elements", changed},
        {"density", static_cast<double>(changed) / static_cast<double>(std::max<uint64_t>(trainer_.elements(), 1))},
        {"step_ms", took.count()},
        {"blocked_ms", publisher_.TakeBlockedMs()}};
    if (digest_due) line["sha256"] = trainer_.Digest();
    journal_.Write(line);
    return OkStatus();
  }

  const Options& options_;
  Trainer& trainer_;
  Publisher& publisher_;
  Journal& journal_;
};

}  // namespace

Status Run(const Options& options) {
  if (!options.write_assets.empty()) return WriteAssets(options);
  LS_ASSIGN_OR_RETURN(InitialModel model, LoadModel(options));
  if (options.describe) {
    PrintSizes(model, Trainer::StateBytes(model, options.seed));
    return OkStatus();
  }
  LS_ASSIGN_OR_RETURN(Journal journal, Journal::Create(options.digests));
  LS_ASSIGN_OR_RETURN(Publisher publisher, Publisher::Open(options.socket, options.model, *model.layout));
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                      Trainer::Create(std::move(model), {.learning_rate = options.learning_rate,
                                                         .seed = options.seed,
                                                         .threads = options.threads == 0 ? cores : options.threads}));
  return TrainingRun(options, *trainer, publisher, journal).Train();
}

}  // namespace lockstep::demo
