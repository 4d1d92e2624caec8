#include "raas_receiver/engines/hook_driver.h"

namespace lockstep {

LoadOutcome HookDriver::Load(const EngineVersion& version, const std::optional<EngineVersion>&) {
  const HookOutcome told = hook_.Notify({version.model, version.held, version.path, version.mode});
  if (told.status.ok()) return {told.status, Serving::kNew};
  return {told.status, told.unchanged ? Serving::kOld : Serving::kUnknown};
}

Status HookDriver::Pause(const EngineVersion&) {
  return OkStatus();
}

Status HookDriver::Resume(const EngineVersion& serving) {
  if (serving.held.nothing()) return OkStatus();
  return Load(serving, std::nullopt).status;
}

}  // namespace lockstep
