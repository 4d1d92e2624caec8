#include "raas_receiver/receiver/engine_health.h"

#include "common/base/text.h"
#include "raas_receiver/session/agent_client.h"

namespace lockstep::receiver {

namespace {

Held ReadHeld(const v1::Held& proto) {
  const Result<Held> held = session::FromProto(proto);
  return held.ok() ? *held : Held();
}

}  // namespace

// A version of the run that is held, and not behind it for too long.
bool EngineHealth::Serves(const std::string& service, const v1::ReceiverModel& model, const Held& serving) {
  const bool held_back = model.state() == v1::SESSION_STATE_HELD || model.skipped_version() == model.newest_version();
  const bool behind = follows_ && !held_back && serving.version < model.newest_version();
  const bool fresh = known_.try_emplace(service, unready_after_).first->second.Update(serving, behind);
  return fresh && !serving.nothing() && serving.run == ReadHeld(model.held()).run;
}

EngineHealth::Serving EngineHealth::Update(const v1::ReceiverModel& model) {
  Serving serving;
  const std::string notified = Cat("raas-receiver-engine/", model.name());
  for (const auto& [service, _] : known_) {
    if (service == notified || service.starts_with(notified + "/")) serving[service] = false;
  }
  if (model.engine() != "none") {
    v1::Held served;
    served.set_run(model.served_run());
    served.set_version(model.served_version());
    serving[notified] = Serves(notified, model, ReadHeld(served));
  }
  for (const v1::EngineTargets& engine : model.engines()) {
    if (engine.comparing() > 0) continue;  // it is the one that is notified
    const std::string service = Cat(notified, "/", engine.name());
    const bool whole = engine.attached() == engine.world() && engine.waiting() == 0 && engine.asleep() == 0;
    serving[service] = Serves(service, model, ReadHeld(engine.serving())) && whole;
  }
  return serving;
}

}  // namespace lockstep::receiver
