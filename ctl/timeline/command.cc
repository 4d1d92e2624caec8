#include "ctl/timeline/command.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "common/base/ids.h"
#include "common/net/host_port.h"
#include "common/telemetry/timeline.h"
#include "ctl/daemon/client.h"
#include "ctl/daemon/commands.h"
#include "ctl/timeline/joined_timeline.h"

namespace lockstep::ctl {
namespace {

// A clock is read by the quickest of so many calls; the first one also connects.
constexpr int kClockCalls = 6;
constexpr Version kNoVersion = ~Version{0};  // no daemon has spans of it: the answer is its clock alone

// `DaemonClient` is AgentClient or ReceiverClient.
template <typename DaemonClient>
Result<ClockReading> ReadItsClock(const DaemonClient& client, std::chrono::milliseconds timeout) {
  v1::TimelineRequest request;
  request.set_version(kNoVersion);
  std::optional<ClockReading> best;
  for (int call = 0; call < kClockCalls; ++call) {
    const telemetry::Moment called;
    LS_ASSIGN_OR_RETURN(const v1::TimelineSpans answer,
                        client.Call(&DaemonClient::Stub::GetTimeline, request, timeout));
    const auto reading = ReadClock(called.unix_ns(), called.NanosSince(), answer.now_unix_ns());
    if (!reading.ok()) return reading.status().WithContext(client.name());
    if (!best || reading->uncertainty_ns < best->uncertainty_ns) best = *reading;
  }
  return *best;
}

template <typename DaemonClient>
Result<DaemonTimeline> Ask(std::string_view daemon, const std::string& address, const TimelineOptions& options,
                           std::chrono::milliseconds timeout) {
  const DaemonClient client(daemon, address, options.tls);
  DaemonTimeline timeline{.address = address, .clock = {}, .spans = {}};
  LS_ASSIGN_OR_RETURN(timeline.clock, ReadItsClock(client, timeout));
  v1::TimelineRequest request;
  request.set_model(options.model);
  request.set_version(options.version);
  LS_ASSIGN_OR_RETURN(timeline.spans, client.Call(&DaemonClient::Stub::GetTimeline, request, timeout));
  return timeline;
}

// The agent that the receiver at `address` follows.
Result<std::string> AgentFollowedBy(const std::string& address, const rpc::TlsOptions& tls,
                                    std::chrono::milliseconds timeout) {
  const ReceiverClient receiver("raas_receiver", address, tls);
  LS_ASSIGN_OR_RETURN(const v1::ReceiverStatus status,
                      receiver.Call(&ReceiverClient::Stub::GetStatus, v1::ReceiverStatusRequest(), timeout));
  for (const v1::ReceiverModel& model : status.models()) {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> agents, AgentsOfModel(model, receiver.name()));
    return agents[0];
  }
  return Status(ErrorCode::kNotFound, Cat(receiver.name(), ": follows no agent; name one with --agent"));
}

Result<std::vector<DaemonTimeline>> AskAll(const TimelineOptions& options, std::chrono::milliseconds timeout) {
  std::string agent = options.agent;
  if (agent.empty()) {
    LS_ASSIGN_OR_RETURN(agent, AgentFollowedBy(options.receivers.at(0), options.tls, timeout));
  }
  std::vector<DaemonTimeline> timelines;
  LS_ASSIGN_OR_RETURN(timelines.emplace_back(), Ask<AgentClient>("trainer_agent", agent, options, timeout));
  for (const std::string& address : options.receivers) {
    LS_ASSIGN_OR_RETURN(timelines.emplace_back(), Ask<ReceiverClient>("raas_receiver", address, options, timeout));
  }
  return timelines;
}

}  // namespace

void AddTimelineOptions(CLI::App& command, TimelineOptions& options) {
  command.add_option("model,--model", options.model, "Only this model");
  command.add_option("--version", options.version, "Only this version")
      ->type_name("N")
      ->check(CLI::Range(Version{1}, kMaxVersion).description(""));
  command.add_option("--last", options.last, "So many versions of each model, the newest; 0: all [3]")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{0}, kMaxVersion).description(""));
  command.add_option("--out", options.out, "Write a trace for Perfetto or chrome://tracing; - prints it instead")
      ->type_name("FILE");
  command.add_option("--format", options.format, "Of the trace: perfetto, or otlp for OpenTelemetry [perfetto]")
      ->type_name("NAME")
      ->check(CLI::IsMember({"perfetto", "otlp"}).description(""));
}

Status FinishTimelineOptions(const std::string& agent, const std::vector<std::string>& receivers, bool json,
                             TimelineOptions& options) {
  options.agent = agent.empty() ? Environment(kAgentVariable) : agent;
  options.receivers = receivers;
  const std::string receiver = Environment(kReceiverVariable);
  if (options.receivers.empty() && !receiver.empty()) options.receivers.push_back(receiver);
  if (options.agent.empty() && options.receivers.empty()) options.agent = UsualAgent();
  std::vector<std::string> addresses = options.receivers;
  if (!options.agent.empty()) addresses.push_back(options.agent);
  for (const std::string& address : addresses) {
    const Result<net::ControlAddress> parsed = net::ParseControlAddress(address);
    if (!parsed.ok()) return {ErrorCode::kUsage, parsed.status().message()};
  }
  if (options.out.empty() && options.format != "perfetto") {
    return {ErrorCode::kUsage, "--format is that of the trace: say where with --out"};
  }
  if (!json || options.out != "-") return OkStatus();
  return {ErrorCode::kUsage, "--out - prints the trace, which is JSON already: leave --json out"};
}

Status Run(const TimelineOptions& options, const Output& output) {
  LS_ASSIGN_OR_RETURN(std::vector<DaemonTimeline> timelines, AskAll(options, options.timeout.value_or(kQuickTimeout)));
  LS_ASSIGN_OR_RETURN(const JoinedTimeline timeline, Join(std::move(timelines), options));
  if (timeline.entries.empty()) {
    return {ErrorCode::kNotFound,
            Cat("no daemon remembers a span of ", options.model.empty() ? "any model" : options.model,
                options.version == 0 ? "" : Cat(" version ", options.version))};
  }
  if (!options.out.empty()) {
    const std::string trace = Dump(options.format == "otlp" ? OtlpOf(timeline) : TraceOf(timeline));
    if (options.out == "-") {
      if (!output.quiet) output.out << trace << std::endl;
      return OkStatus();
    }
    LS_RETURN_IF_ERROR(WriteTextFile(options.out, trace));
  }
  output.Print(TimelineJson(timeline), TimelineText(timeline));
  return OkStatus();
}

}  // namespace lockstep::ctl
