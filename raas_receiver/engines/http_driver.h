// The driver of a server that is steered over HTTP. What every such server needs is here, once: the order of the steps,
// attempts, and what becomes of it when a step fails. What a step is for one kind of server is an EngineSteps.
//
//   Load:     Stop -> Read(version) -> DropCaches -> Name -> GoOn
//                |        |                             |
//                |        +-(perhaps half read)-> Stop -> Read(last good) -> DropCaches -> Name -> GoOn
//                +-(nothing changed)-> GoOn
//
// A server that may hold parts of two versions stays stopped: nothing but a whole load, or a Resume by him who has
// written its memory, makes it go on. A step that lets one go on with a whole version is taken after Cancel, too.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "raas_receiver/engines/driver.h"
#include "raas_receiver/engines/engine_server.h"
#include "raas_receiver/engines/process.h"

namespace lockstep {

// OK, or why not; and whether the server may have changed some of its weights.
struct ReadOutcome {
  Status status;
  bool touched = false;
};

// Each step may be repeated after it failed, and leaves the server stopped but for GoOn. Called by one thread.
class EngineSteps {
 public:
  virtual ~EngineSteps() = default;

  // Whether it makes tokens: nobody has stopped it. An error also while it is still starting.
  virtual Result<bool> Runs() = 0;
  // OK: nothing runs on the device, nothing is left of what was computed, and what is asked next comes after it.
  virtual Status Stop() = 0;
  // All weights from `directory`. `name` is the version's name.
  virtual ReadOutcome Read(const std::string& directory, const std::string& name) = 0;
  virtual Status DropCaches() = 0;
  // Whether the server keeps the name; that it cannot is no error.
  virtual Result<bool> Name(const std::string& name) = 0;
  // The name that it keeps; nothing where it cannot tell, or one answer says nothing of the next. Within 5 s.
  virtual Result<std::optional<std::string>> TellName() = 0;
  virtual Status GoOn() = 0;
};

class HttpDriver final : public EngineDriver {
 public:
  // `steps` are taken with `server`.
  HttpDriver(EngineOptions options, std::unique_ptr<EngineServer> server, std::unique_ptr<EngineSteps> steps);

  std::string_view kind() const override { return options_.kind; }
  LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) override;
  Status Pause(const EngineVersion& version) override;
  Status Resume(const EngineVersion& serving) override;
  Result<bool> StillServes(const EngineVersion& version) override;
  void Cancel() override;
  uint64_t failures() const override { return failures_; }

 private:
  // Whether the server may go on as it is: with the weights of one version, and nothing computed with another's.
  enum class Fit { kUnknown, kYes, kNo };

  LoadOutcome LoadOnce(const EngineVersion& version, const std::optional<EngineVersion>& last_good);
  LoadOutcome GoBack(const Status& cause, const std::optional<EngineVersion>& last_good);
  LoadOutcome Release(const EngineVersion& version, const Status& cause);
  Status LearnFit();
  ReadOutcome Read(const EngineVersion& version);
  Status Finish(const EngineVersion& version);
  using Step = std::function<Status()>;
  Status Tried(const EngineVersion& version, std::string_view what, const Step& step);
  Status TriedToTheEnd(const EngineVersion& version, std::string_view what, const Step& step);
  Status WithNames(const Status& status, const EngineVersion& version) const;

  const EngineOptions options_;
  const std::unique_ptr<EngineServer> server_;
  const std::unique_ptr<EngineSteps> steps_;
  StopSignal stop_;
  Fit fit_ = Fit::kUnknown;
  bool keeps_names_ = true;
  std::atomic<uint64_t> failures_ = 0;
};

// "0a1b2c3d-7": the first digits of the run and the version, what a server is told to call it.
std::string VersionName(const Held& held);

}  // namespace lockstep
