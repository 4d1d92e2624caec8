// The driver of an engine that a command steers, whatever it is.
#pragma once

#include "raas_receiver/engines/driver.h"
#include "raas_receiver/engines/hook.h"

namespace lockstep {

// Load and Resume run the command (hook.h); Pause is nothing, because a command says nothing before a version is there.
// When every attempt ended with an error status of its own, the engine serves what it served; after one that was killed
// nobody knows. Nobody tells a command's engine apart from one that was started again: StillServes is always true.
class HookDriver final : public EngineDriver {
 public:
  explicit HookDriver(HookOptions options) : hook_(std::move(options)) {}

  std::string_view kind() const override { return "hook"; }
  LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) override;
  Status Pause(const EngineVersion& version) override;
  Status Resume(const EngineVersion& serving) override;
  Result<bool> StillServes(const EngineVersion&) override { return true; }
  void Cancel() override { hook_.Cancel(); }
  uint64_t failures() const override { return hook_.failures(); }

 private:
  Hook hook_;
};

}  // namespace lockstep
