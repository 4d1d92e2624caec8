// The driver of a server that is controlled over HTTP. What every such server needs is here, once: the order of the
// steps, attempts, and what becomes of it when a step fails. What a step is for one kind of server is an EngineSteps.
//
//   Load:     Pause -> Read(version) [-> Digests] -> DropCaches -> Name -> Resume
//                |        |
//                |        +-(perhaps half read)-> Pause -> Read(last good) -> DropCaches -> Name -> Resume
//                +-(nothing changed)-> Resume
//
// A server that may hold parts of two versions stays paused: only a whole load, or a Resume after its
// memory was written, makes it run. A step that resumes a server with a whole version is taken after Cancel, too.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/os/shell.h"
#include "raas_receiver/engine/drivers/driver.h"
#include "raas_receiver/engine/drivers/engine_server.h"
#include "raas_receiver/engine/drivers/weight_check.h"

namespace lockstep::engine {

// OK, or why not; and whether the server may have changed some of its weights.
struct ReadOutcome {
  Status status;
  bool touched = false;
};

// Each step may be repeated after it failed, and leaves the server paused but for Resume. Called by one thread.
class EngineSteps {
 public:
  virtual ~EngineSteps() = default;

  // Whether it makes tokens: it is not paused. An error also while it is still starting.
  virtual Result<bool> Runs() = 0;
  // OK: nothing runs on the device, nothing is left of what was computed, and what is asked next comes after it.
  virtual Status Pause() = 0;
  // The memory of a paused server is written by others from here on, until Resume.
  virtual Status BeginWrites() { return OkStatus(); }
  // All weights from `directory`. `name` is the version's name.
  virtual ReadOutcome Read(const std::string& directory, const std::string& name) = 0;
  // The digests of its parameters as the server has them now, of every rank that it answers for.
  virtual Result<std::vector<RankDigests>> Digests() { return std::vector<RankDigests>(); }
  // What it may say of a parameter of these bytes.
  virtual std::vector<std::string> DigestsOf(ByteView) const { return {}; }
  virtual Status DropCaches() = 0;
  // Whether the server keeps the name; that it cannot is no error.
  virtual Result<bool> Name(const std::string& name) = 0;
  // As EngineDriver's.
  virtual Status Answers() = 0;
  // The name that it keeps; nothing where it cannot say, or one answer says nothing of the next. Within 5 s.
  virtual Result<std::optional<std::string>> ServedName() = 0;
  virtual Status Resume() = 0;
  // As EngineDriver's.
  virtual Result<std::vector<std::string>> Incarnations() = 0;
};

class HttpDriver final : public EngineDriver {
 public:
  // `steps` are taken with `server`.
  HttpDriver(const DriverKind& kind, EngineOptions options, std::unique_ptr<EngineServer> server,
             std::unique_ptr<EngineSteps> steps);

  LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) override;
  Status Pause(const EngineVersion& version) override;
  Status Resume(const EngineVersion& serving) override;
  Result<std::optional<bool>> StillServes(const EngineVersion& version) override;
  Status Answers() override { return steps_->Answers(); }
  Result<std::vector<std::string>> Incarnations() override { return steps_->Incarnations(); }
  void Cancel() override;
  void CancelAtHangUp(std::vector<int> sockets) override { server_->CancelAtHangUp(std::move(sockets)); }
  void Reset() override;
  uint64_t failures() const override { return failures_; }

 private:
  // Whether the server may run as it is: with the weights of one version, and nothing computed with another's.
  enum class Resumable { kUnknown, kYes, kNo };

  LoadOutcome LoadOnce(const EngineVersion& version, const std::optional<EngineVersion>& last_good);
  LoadOutcome Revert(const Status& cause, const std::optional<EngineVersion>& last_good);
  LoadOutcome Release(const EngineVersion& version, const Status& cause);
  Status FindResumable();
  ReadOutcome Read(const EngineVersion& version);
  Status Check(const EngineVersion& version);
  Status Finish(const EngineVersion& version);
  using Step = std::function<Status()>;
  Status Retry(const EngineVersion& version, std::string_view what, const Step& step);
  Status RetryAfterCancel(const EngineVersion& version, std::string_view what, const Step& step);
  Status WithNames(const Status& status, const EngineVersion& version) const;

  const EngineOptions options_;
  const std::unique_ptr<EngineServer> server_;
  const std::unique_ptr<EngineSteps> steps_;
  os::Event stop_;
  Resumable resumable_ = Resumable::kUnknown;
  bool keeps_names_ = true;
  WeightCheck check_;
  std::atomic<uint64_t> failures_ = 0;
};

// "0a1b2c3d-7", the first digits of the run and the version, or with a label "0a1b2c3d-7/step 120": the name that a
// server is given for it, and stamps its answers with.
std::string VersionName(const EngineVersion& version);

}  // namespace lockstep::engine
