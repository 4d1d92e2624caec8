#include "raas_receiver/origin/agent_origin.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/model/parts.h"
#include "common/telemetry/log.h"
#include "raas_receiver/origin/agent_client.h"
#include "raas_receiver/origin/agent_plan.h"
#include "raas_receiver/origin/subscription.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/local_source.h"

namespace lockstep::origin {
namespace {

constexpr size_t kMaxReason = 1024;

// What all pulls of one agent share.
struct Agent {
  Agent(AgentOriginOptions given, net::IoThreads& io, WorkerPool& pool)
      : options(std::move(given)), io(io), pool(pool), client(options.agent, options.tls) {}

  const AgentOriginOptions options;
  net::IoThreads& io;
  WorkerPool& pool;
  AgentClient client;
  const std::shared_ptr<Subscription> subscription = std::make_shared<Subscription>(options, client, io);
  // Whether bytes come out of the agent's memory: then there is nothing to gain by having them sent early. Not known
  // before something was pulled.
  std::optional<bool> by_memory;
};

// Gets the bytes from its sources in order, each asked for what those before it did not bring.
class AgentPull final : public Pull {
 public:
  AgentPull(Agent& agent, AgentPlan plan, Layout layout, std::stop_token stop)
      : agent_(agent),
        plan_(std::move(plan)),
        layout_(std::move(layout)),
        stop_(std::move(stop)),
        on_stop_(stop_, [this] { Cancel(); }) {}

  const Plan& plan() const override { return plan_.plan; }

  Status FetchBlocks(pull::FullRequest request, FullStaging& staging) override {
    staging.Expect(request.blocks);
    const auto complete = [&] {
      request.blocks = staging.Missing();
      return request.blocks.empty();
    };
    return Fetch([&](pull::BlockSource& source) { return source.FetchBlocks(request, staging); }, complete);
  }

  Status FetchDeltas(DeltaStaging& staging) override {
    pull::DeltaRequest request = staging.TakeMissing();
    const auto complete = [&] {
      request = staging.TakeMissing();
      return request.steps.empty();
    };
    return Fetch([&](pull::BlockSource& source) { return source.FetchDeltas(request, staging); }, complete);
  }

  Result<Plan> CatchUp(std::span<const Version> by_block) override {
    const Version oldest = *std::min_element(by_block.begin(), by_block.end());
    LS_ASSIGN_OR_RETURN(const v1::PullPlan answer, agent_.client.CatchUp(plan().transfer, oldest, stop_));
    return ReadCatchUp(answer, *layout_, plan(), oldest);
  }

  void Close(const VersionRef& held, const Status& outcome) override {
    const pull::SourceCounters sum = counters();
    if (sum.payload_bytes > 0) agent_.by_memory = sum.local_bytes > 0;
    Use({});
    if (plan().transfer == 0) return;  // there was nothing to open
    const Status closed = agent_.client.ClosePull(plan().transfer, held, outcome);
    if (closed.ok()) return;
    telemetry::LogWarn("pull_close_failed", closed, {{"model", agent_.options.model}, {"pull", plan().transfer}});
  }

  void Touch() override {
    if (plan().transfer != 0) (void)agent_.client.RenewTickets(plan().transfer, 1, stop_);
  }

  pull::SourceCounters counters() const override {
    MutexLock lock(mutex_);
    pull::SourceCounters sum;
    for (const auto& source : sources_) sum += source->counters();
    return sum;
  }

 private:
  // `fetch` asks one source for what is missing. After a failure `complete` finds out what still is; true: nothing.
  // Returns the last source's error.
  Status Fetch(const std::function<Status(pull::BlockSource&)>& fetch, const std::function<bool()>& complete) {
    Connect();
    Status status;
    for (const auto& source : sources_) {
      status = fetch(*source);
      if (status.ok()) break;
      if (stop_.stop_requested()) return {ErrorCode::kCancelled, "the pull was cancelled"};
      // The last source's failure is the caller's error, and is logged there.
      if (source != sources_.back()) {
        telemetry::Log(telemetry::LogLevel::kDebug, "source_fetch_failed",
                       {{"model", agent_.options.model}, {"source", source->name()}, {"message", status.ToString()}});
      }
      if (complete()) return OkStatus();
    }
    return status;
  }

  // To all ways that the plan grants and that can be reached, in the order in which they are to be asked.
  void Connect() {
    if (std::exchange(connected_, true)) return;
    std::vector<std::shared_ptr<pull::BlockSource>> sources;
    if (auto memory = ConnectMemory()) sources.push_back(std::move(memory));
    if (agent_.subscription->asked()) sources.push_back(agent_.subscription);
    pull::RenewTickets renew = [this](size_t lanes) {
      return agent_.client.RenewTickets(plan().transfer, lanes, stop_);
    };
    sources.push_back(
        std::make_shared<pull::LaneSet>(agent_.io, pull::LaneOptions{.peer = plan_.lanes}, std::move(renew)));
    Use(std::move(sources));
    if (stop_.stop_requested()) Cancel();  // which may have been before they were there
  }

  void Use(std::vector<std::shared_ptr<pull::BlockSource>> sources) {
    MutexLock lock(mutex_);
    sources_.swap(sources);  // those before end after the lock does
  }

  void Cancel() {
    MutexLock lock(mutex_);
    for (const auto& source : sources_) source->Cancel();
  }

  // Null: it is not on this host.
  std::shared_ptr<pull::BlockSource> ConnectMemory() const {
    if (plan_.local_socket.empty()) return nullptr;
    const std::string& model = agent_.options.model;
    const auto log_failure = [model](const Status& why) {
      telemetry::LogWarn("local_path_failed", why, {{"model", model}});
    };
    auto source = pull::LocalSource::Connect({.path = plan_.local_socket,
                                              .pull_id = plan().transfer,
                                              .ticket = plan_.local_ticket,
                                              .layout = layout_,
                                              .on_failed = log_failure},
                                             agent_.pool);
    if (source.ok()) return *std::move(source);
    telemetry::Log(telemetry::LogLevel::kDebug, "local_path_unavailable",
                   {{"model", model}, {"message", source.status().ToString()}});
    return nullptr;
  }

  Agent& agent_;
  const AgentPlan plan_;
  const Layout layout_;
  const std::stop_token stop_;
  bool connected_ = false;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<pull::BlockSource>> sources_;  // the fetching thread changes it, under mutex_
  const std::stop_callback<std::function<void()>> on_stop_;
};

// kProtocol: it makes no sense.
Result<Head> ReadHead(const v1::VersionEvent& event) {
  Head head{.committed_unix_ns = event.committed_unix_ns(), .withdrawn = CleanText(event.withdrawn(), kMaxReason)};
  LS_ASSIGN_OR_RETURN(head.held, FromProto(event.newest()));
  LS_ASSIGN_OR_RETURN(const auto layout, Bytes16(event.layout_digest()));
  head.layout = {layout};
  const auto digest = Bytes16(event.manifest_digest());  // empty before the first version
  if (digest.ok()) head.digest = {*digest};
  return head;
}

class AgentOrigin final : public Origin {
 public:
  AgentOrigin(AgentOriginOptions options, net::IoThreads& io, WorkerPool& pool)
      : agent_(std::move(options), io, pool) {}

  std::string name() const override { return options().agent.text; }
  Abilities can() const override { return {.follow = options().streaming, .report = true}; }

  Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) override {
    v1::WatchVersionsRequest request;
    request.set_model(options().model);
    request.set_receiver(options().receiver);
    request.set_instance(options().instance);
    std::stop_source senseless;
    const std::stop_callback also(stop, [&senseless] { senseless.request_stop(); });
    Status sense;
    const Status ended =
        agent_.client.WatchVersions(request, senseless.get_token(), [&](const v1::VersionEvent& event) {
          const Result<Head> head = ReadHead(event);
          if (head.ok()) return on_head(*head);
          sense = head.status();
          senseless.request_stop();
        });
    return sense.ok() ? ended : sense.WithContext(Cat("agent ", name()));
  }

  Result<Layout> GetLayout(std::stop_token stop) override {
    LS_ASSIGN_OR_RETURN(Layout layout, agent_.client.GetLayout(options().model, std::move(stop)));
    LS_ASSIGN_OR_RETURN(const auto part, model::PartOf(*layout));
    if (options().takes_part || !part || part->parts == 1) return layout;
    return Status(ErrorCode::kBadData, Cat("agent ", name(), " has part ", part->part, " of ", part->parts,
                                           " of the model; name the agents of all parts in one source, as A+B+C"));
  }

  Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) override {
    v1::OpenPullRequest request;
    request.set_model(options().model);
    request.set_receiver(options().receiver);
    *request.mutable_held() = ToProto(want.held);
    request.set_layout_digest(ToBytes(want.layout->digest()));
    if (!want.held.nothing()) request.set_held_digest(ToBytes(want.digest));
    request.set_lanes_wanted(static_cast<uint32_t>(options().lanes));
    request.set_force_full(want.whole);
    LS_ASSIGN_OR_RETURN(const v1::PullPlan answer, agent_.client.OpenPull(request, stop));
    Result<AgentPlan> plan = ReadPlan(answer, want.layout, want.held, agent_.client.control());
    if (plan.ok() && want.whole && !plan->plan.full) {
      plan = Status(ErrorCode::kProtocol, Cat("agent ", name(), " was asked for a full pull, and plans ",
                                              plan->plan.mode(), "; upgrade the trainer_agent"));
    }
    if (!plan.ok()) {
      if (answer.pull_id() != 0) (void)agent_.client.ClosePull(answer.pull_id(), want.held, plan.status());
      return plan.status();
    }
    telemetry::Log(telemetry::LogLevel::kDebug, "pull_planned",
                   {{"model", options().model},
                    {"pull", plan->plan.transfer},
                    {"mode", plan->plan.mode()},
                    {"held", want.held.version},
                    {"version", plan->plan.target.version},
                    {"steps", plan->plan.steps.size()},
                    {"lanes", plan->lanes.tickets.size()}});
    return std::unique_ptr<Pull>(std::make_unique<AgentPull>(agent_, *std::move(plan), want.layout, std::move(stop)));
  }

  void Follow(const Want& from, std::stop_token stop) override {
    if (from.held.nothing() || agent_.by_memory.value_or(true)) {
      agent_.subscription->Close();
    } else {
      agent_.subscription->Ask(from, std::move(stop));
    }
  }

  Result<std::string> Report(v1::ReportRequest report, std::stop_token stop) override {
    report.set_model(options().model);
    report.set_receiver(options().receiver);
    report.set_instance(options().instance);
    LS_ASSIGN_OR_RETURN(const v1::ReportResponse answer, agent_.client.Report(report, std::move(stop)));
    if (answer.open()) return std::string();
    std::string others;
    for (const std::string& other : answer.models()) others += Cat(others.empty() ? "" : ", ", CleanText(other, 128));
    return Cat("agent ", name(), " has no ", options().model,
               others.empty() ? "; no trainer has opened it" : Cat("; it has ", others));
  }

 private:
  const AgentOriginOptions& options() const { return agent_.options; }

  Agent agent_;
};

}  // namespace

std::unique_ptr<Origin> NewAgentOrigin(AgentOriginOptions options, net::IoThreads& io, WorkerPool& pool) {
  return std::make_unique<AgentOrigin>(std::move(options), io, pool);
}

}  // namespace lockstep::origin
