#include "raas_receiver/session/sources.h"

#include <atomic>

#include "common/telemetry/log.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/local_source.h"

namespace lockstep::session {
namespace {

using Sources = std::vector<std::unique_ptr<pull::BlockSource>>;

// The agent's memory, when the plan names a way to it that leads somewhere from here.
void AddMemory(const SyncContext& context, const Plan& plan, const Layout& layout, Sources& sources) {
  if (plan.local_socket.empty()) return;
  const std::string& model = context.model;
  const auto log_failure = [model](const Status& why) {
    telemetry::LogWarn("local_path_failed", why, {{"model", model}});
  };
  auto source = pull::LocalSource::Connect({.path = plan.local_socket,
                                            .pull_id = plan.pull_id,
                                            .ticket = plan.local_ticket,
                                            .layout = layout,
                                            .on_failed = log_failure},
                                           context.replicas.pool());
  if (source.ok()) {
    sources.push_back(*std::move(source));
  } else {
    telemetry::Log(telemetry::LogLevel::kDebug, "local_path_unavailable",
                   {{"model", model}, {"message", source.status().ToString()}});
  }
}

// What the live link collected.
class LiveSource final : public pull::BlockSource {
 public:
  explicit LiveSource(LiveLink& link) : link_(link) {}

  std::string_view name() const override { return "live"; }
  Status FetchBlocks(const pull::FullRequest& request, pull::BlockSink&) override {
    if (request.blocks.empty()) return OkStatus();
    return {ErrorCode::kNotFound, "a live delta has no blocks in full"};
  }
  Status FetchDeltas(const pull::DeltaRequest& request, pull::DeltaSink& sink) override {
    if (request.steps.empty()) return OkStatus();
    if (request.steps.size() > 1) return {ErrorCode::kNotFound, "a live delta is one step"};
    const pull::DeltaStep& step = request.steps[0];
    LS_ASSIGN_OR_RETURN(std::vector<payload::DeltaBlock> entries, link_.Take(request.run, step));
    for (payload::DeltaBlock& entry : entries) LS_RETURN_IF_ERROR(sink.PutEntry(step.payload_id, std::move(entry)));
    bytes_ += step.data_bytes;
    if (link_.in_plaintext()) plain_bytes_ += step.data_bytes;
    return OkStatus();
  }
  void Cancel() override { link_.Cancel(); }
  pull::SourceCounters counters() const override {
    return {.payload_bytes = bytes_, .plain_bytes = plain_bytes_, .live_bytes = bytes_};
  }

 private:
  LiveLink& link_;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> plain_bytes_ = 0;
};

void AddLive(const SyncContext& context, Sources& sources) {
  if (context.live.following()) sources.push_back(std::make_unique<LiveSource>(context.live));
}

void AddLanes(const SyncContext& context, AgentClient& agent, const Plan& plan, Sources& sources) {
  pull::RenewTickets renew = [&agent, pull_id = plan.pull_id](size_t lanes) {
    return agent.RenewTickets(pull_id, lanes);
  };
  sources.push_back(
      std::make_unique<pull::LaneSet>(context.io, pull::LaneOptions{.peer = plan.lanes}, std::move(renew)));
}

}  // namespace

Sources OpenSources(const SyncContext& context, AgentClient& agent, const Plan& plan, const Layout& layout) {
  Sources sources;
  AddMemory(context, plan, layout, sources);
  AddLive(context, sources);
  AddLanes(context, agent, plan, sources);
  return sources;
}

}  // namespace lockstep::session
