#include "raas_receiver/session/sources.h"

#include "common/telemetry/log.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/local_source.h"

namespace lockstep::session {
namespace {

using Sources = std::vector<std::unique_ptr<pull::BlockSource>>;
using Layout = std::shared_ptr<const model::ModelLayout>;

// The agent's memory, when the plan names a way to it that leads somewhere from here.
void AddMemory(const SyncContext& context, const Plan& plan, const Layout& layout, Sources& sources) {
  if (plan.local_socket.empty()) return;
  const std::string& model = context.model;
  auto source = pull::LocalSource::Connect({.path = plan.local_socket,
                                            .pull_id = plan.pull_id,
                                            .ticket = plan.local_ticket,
                                            .layout = layout,
                                            .on_failed =
                                                [model](const Status& why) {
                                                  telemetry::LogWarn("local_path_failed", why, {{"model", model}});
                                                }},
                                           context.replicas.pool());
  if (source.ok()) {
    sources.push_back(*std::move(source));
  } else {
    telemetry::Log(telemetry::LogLevel::kDebug, "local_path_unavailable",
                   {{"model", model}, {"message", source.status().ToString()}});
  }
}

void AddLive(const SyncContext& context, Sources& sources) {
  if (context.live.following()) sources.push_back(std::make_unique<LiveSource>(context.live));
}

void AddLanes(const SyncContext& context, const Plan& plan, const Layout& layout, Sources& sources) {
  pull::LaneOptions options{
      .peer = {.agent = plan.lanes.agent, .pull_id = plan.pull_id, .layout = layout, .tickets = plan.lanes.tickets}};
  pull::RenewTickets renew = [&agent = context.agent, pull_id = plan.pull_id](size_t lanes) {
    return agent.RenewTickets(pull_id, lanes);
  };
  sources.push_back(std::make_unique<pull::LaneSet>(context.io, std::move(options), std::move(renew)));
}

}  // namespace

Sources OpenSources(const SyncContext& context, const Plan& plan, const Layout& layout) {
  Sources sources;
  AddMemory(context, plan, layout, sources);
  AddLive(context, sources);
  AddLanes(context, plan, layout, sources);
  return sources;
}

}  // namespace lockstep::session
