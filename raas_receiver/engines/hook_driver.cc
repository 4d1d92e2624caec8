#include "raas_receiver/engines/hook_driver.h"

namespace lockstep {

LoadOutcome HookDriver::Load(const EngineVersion& version, const std::optional<EngineVersion>&) {
  const Status status = hook_.Notify({version.model, version.held, version.path, version.mode});
  if (status.ok()) return {status, Serving::kNew};
  return {status, status.code() == ErrorCode::kAborted ? Serving::kOld : Serving::kUnknown};
}

Status HookDriver::Pause(const EngineVersion&) {
  return OkStatus();
}

Status HookDriver::Resume(const EngineVersion& serving) {
  return Load(serving, std::nullopt).status;
}

}  // namespace lockstep
