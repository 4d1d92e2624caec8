#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "common/os/owners.h"
#include "common/os/signals.h"
#include "common/telemetry/log.h"
#include "trainer_agent/agent/agent.h"

namespace lockstep::agent {
namespace {

// Health follows the state of the models within this time.
constexpr std::chrono::milliseconds kTick{500};

// A second TERM or INT while draining ends the process at once: a human is pressing again.
void ExitOnNextSignal(os::SignalWaiter& signals) {
  signals.Wait();
  std::_Exit(0);
}

Status Serve(const AgentOptions& options, os::SignalWaiter& signals) {
  LS_ASSIGN_OR_RETURN(const auto owners, os::Owners::Open(options.owners));
  LS_ASSIGN_OR_RETURN(const auto agent, Agent::Start(options));
  while (true) {
    if (signals.Wait(kTick)) break;
    if (owners.Gone()) {
      telemetry::Log(telemetry::LogLevel::kInfo, "owners_gone");
      break;
    }
    agent->Tick();
  }
  std::thread([&signals] { ExitOnNextSignal(signals); }).detach();
  agent->Drain();
  return OkStatus();
}

int Main(int argc, char** argv) {
  auto signals = os::SignalWaiter::Create([](const std::string& signal) {
    telemetry::Log(telemetry::LogLevel::kInfo, "signal_ignored", {{"signal", signal}});
  });
  AgentOptions options;
  const auto outcome = ParseAgentOptions(argc, argv, &options);
  Status status = signals.ok() ? outcome.status() : signals.status();
  if (status.ok() && *outcome == config::ParseOutcome::kExit) return 0;
  if (status.ok()) status = telemetry::InitLogging("trainer_agent", options.log_level, options.log_format);
  if (!status.ok()) {
    std::fprintf(stderr, "trainer_agent: %s\n", status.message().c_str());
    return ExitCode(status.code());
  }
  status = Serve(options, *signals);
  if (!status.ok()) telemetry::LogError("agent_failed", status);
  telemetry::FlushLog();
  std::_Exit(ExitCode(status.code()));  // the detached signal thread still uses `signals`
}

}  // namespace
}  // namespace lockstep::agent

int main(int argc, char** argv) {
  return lockstep::agent::Main(argc, argv);
}
