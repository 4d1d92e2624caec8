#include "raas_receiver/receiver/engine_health.h"

#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/origin/version_ref_proto.h"

namespace lockstep::receiver {

namespace {

VersionRef ReadVersionRef(const v1::VersionRef& proto) {
  const Result<VersionRef> held = origin::FromProto(proto);
  return held.ok() ? *held : VersionRef();
}

}  // namespace

// Whether the engine of this service has one.
bool EngineHealth::Named(const std::string& service) {
  if (known_.contains(service) || known_.size() < kMostServices) return true;
  if (!std::exchange(full_, true)) {
    telemetry::Log(telemetry::LogLevel::kWarn, "engine_health_full",
                   {{"service", service},
                    {"services", kMostServices},
                    {"message",
                     "so many engines had a health service since the start that further ones get none; give engines "
                     "that start again the names that they had, and restart the receiver"}});
  }
  return false;
}

// A version of the run that is held, and not behind it for too long.
bool EngineHealth::Serves(const std::string& service, const v1::ReceiverModel& model, const VersionRef& serving) {
  const bool held_back = model.state() == v1::SESSION_STATE_HELD || model.skipped_version() == model.newest_version();
  const bool behind = follows_ && !held_back && serving.version < model.newest_version();
  const bool fresh = known_.try_emplace(service, unready_after_).first->second.Update(serving, behind);
  return fresh && !model.log_stale() && !serving.nothing() && serving.run == ReadVersionRef(model.held()).run;
}

EngineHealth::Serving EngineHealth::Update(const v1::ReceiverModel& model) {
  Serving serving;
  const std::string notified = Cat("raas-receiver-engine/", model.name());
  for (const auto& [service, _] : known_) {
    if (service == notified || service.starts_with(notified + "/")) serving[service] = false;
  }
  std::map<std::string, bool> whole;  // what ranks say of their engine: all there, awake, and reading
  for (const v1::RankGroup& group : model.rank_groups()) {
    const bool all = group.attached() == group.world() && group.waiting() == 0 && group.asleep() == 0;
    const bool written = group.comparing() == 0;
    if (written) whole.emplace(group.engine(), true).first->second &= all;
    if (!written || group.name() == group.engine()) continue;
    const std::string service = Cat(notified, "/", group.name());
    if (Named(service)) serving[service] = Serves(service, model, ReadVersionRef(group.serving())) && all;
  }
  bool any = false;
  for (const v1::Engine& engine : model.engines()) {
    const auto ranks = whole.find(engine.name());
    if (engine.kind() == "none" && ranks == whole.end()) continue;  // no engine is notified
    const std::string service = Cat(notified, "/", engine.name());
    any = true;
    if (!Named(service)) continue;
    serving[service] =
        Serves(service, model, ReadVersionRef(engine.served())) && (ranks == whole.end() || ranks->second);
  }
  v1::VersionRef served;
  served.set_run(model.served_run());
  served.set_version(model.served_version());
  if (any) serving[notified] = Serves(notified, model, ReadVersionRef(served));
  return serving;
}

}  // namespace lockstep::receiver
