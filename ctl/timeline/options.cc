#include <CLI/CLI.hpp>

#include "common/base/ids.h"
#include "common/net/host_port.h"
#include "ctl/daemon/commands.h"
#include "ctl/timeline/command.h"

namespace lockstep::ctl {

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

}  // namespace lockstep::ctl
