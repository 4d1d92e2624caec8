// The driver of a server that says itself of which kind it is: the first time that it is called for, it is asked.
#include <atomic>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "raas_receiver/engine/drivers/drivers.h"
#include "raas_receiver/engine/drivers/engine_server.h"

namespace lockstep::engine {
namespace {

// A question that servers of a kind answer with a value of this name, and others with 404.
struct Sign {
  std::string_view kind;
  const char* target;
  const char* name;
};

constexpr Sign kSigns[] = {{"sglang", "/model_info", "model_path"}, {"vllm", "/is_paused", "is_paused"}};

class AskedDriver final : public EngineDriver {
 public:
  AskedDriver(const DriverKind& kind, EngineOptions options, std::unique_ptr<EngineServer> server)
      : EngineDriver(kind, server->url()), options_(std::move(options)), server_(std::move(server)) {}

  std::string_view kind() const override {
    const EngineDriver* const found = found_;
    return found == nullptr ? EngineDriver::kind() : found->kind();
  }

  LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) override {
    const Status status = Find();
    if (!status.ok()) ++failures_;
    if (!status.ok()) return {status, Serving::kUnknown};  // a receiver before this one may have left it amid a load
    return driver_->Load(version, last_good);
  }
  Status Pause(const EngineVersion& version) override {
    const Status status = Find();
    if (!status.ok()) ++failures_;
    LS_RETURN_IF_ERROR(status);
    return driver_->Pause(version);
  }
  Status Resume(const EngineVersion& serving) override {
    LS_RETURN_IF_ERROR(Find());
    return driver_->Resume(serving);
  }
  Result<std::optional<bool>> StillServes(const EngineVersion& version) override {
    LS_RETURN_IF_ERROR(Find());
    return driver_->StillServes(version);
  }
  Status Answers() override {
    LS_RETURN_IF_ERROR(Find());
    return driver_->Answers();
  }
  Result<std::vector<std::string>> Incarnations() override {
    LS_RETURN_IF_ERROR(Find());
    return driver_->Incarnations();
  }
  void Cancel() override {
    MutexLock lock(mutex_);
    server_->Cancel();
    if (driver_ != nullptr) driver_->Cancel();
  }
  void CancelAtHangUp(std::vector<int> sockets) override {
    if (driver_ != nullptr) driver_->CancelAtHangUp(sockets);
    hang_ups_ = std::move(sockets);
  }
  void Reset() override {
    MutexLock lock(mutex_);
    server_->Reset();
    if (driver_ != nullptr) driver_->Reset();
  }
  uint64_t failures() const override {
    const EngineDriver* const found = found_;
    return failures_ + (found == nullptr ? 0 : found->failures());
  }

 private:
  Status Find() {
    if (driver_ != nullptr) return OkStatus();
    for (const Sign& sign : kSigns) {
      LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_->Ask(sign.target));
      if (!answer.ok() || !answer.json.contains(sign.name)) continue;
      EngineOptions options = options_;
      options.kind = sign.kind;
      LS_ASSIGN_OR_RETURN(auto driver, NewEngineDriver(std::move(options)));
      MutexLock lock(mutex_);
      if (server_->cancelled()) driver->Cancel();
      driver->CancelAtHangUp(hang_ups_);
      driver_ = std::move(driver);
      found_ = driver_.get();
      return OkStatus();
    }
    return {ErrorCode::kUnavailable,
            Cat(where(), " answers neither as SGLang nor as vLLM with VLLM_SERVER_DEV_MODE=1 in its environment does")};
  }

  const EngineOptions options_;
  const std::unique_ptr<EngineServer> server_;
  std::vector<int> hang_ups_;
  Mutex mutex_;  // held while driver_ is set, by the engine's thread, and while another thread uses it
  std::unique_ptr<EngineDriver> driver_;
  std::atomic<const EngineDriver*> found_ = nullptr;  // the same, for other threads
  std::atomic<uint64_t> failures_ = 0;
};

}  // namespace

Result<std::unique_ptr<EngineDriver>> NewAskedDriver(const DriverKind& kind, EngineOptions options) {
  LS_ASSIGN_OR_RETURN(auto server, EngineServer::Create(options, ""));
  return std::unique_ptr<EngineDriver>(std::make_unique<AskedDriver>(kind, std::move(options), std::move(server)));
}

}  // namespace lockstep::engine
