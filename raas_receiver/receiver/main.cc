// raas_receiver: keeps an inference server's replicas in lock step with a trainer agent.

#include <iostream>
#include <string>

#include "common/os/owners.h"
#include "common/os/signals.h"
#include "common/telemetry/log.h"
#include "raas_receiver/receiver/receiver.h"

namespace lockstep::receiver {
namespace {

Status Serve(ReceiverConfig config, os::SignalWaiter& signals) {
  LS_ASSIGN_OR_RETURN(const os::Owners owners, os::Owners::Open(config.owners));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Receiver> receiver, Receiver::Create(std::move(config)));
  receiver->Run(signals, owners);
  return OkStatus();
}

int Main(int argc, char** argv) {
  Result<std::optional<ReceiverConfig>> config = ParseReceiverConfig(argc, argv);
  if (config.ok() && !config->has_value()) return 0;
  Result<os::SignalWaiter> signals = os::SignalWaiter::Create([](const std::string& signal) {
    telemetry::Log(telemetry::LogLevel::kInfo, "signal_ignored", {{"signal", signal}});
  });
  Status status = config.ok() ? signals.status() : config.status();
  if (status.ok()) status = telemetry::InitLogging("raas_receiver", (*config)->log_level, (*config)->log_format);
  if (!status.ok()) {
    std::cerr << "raas_receiver: " << status.message() << "\n";
    return ExitCode(status.code());
  }
  status = Serve(**std::move(config), *signals);
  if (!status.ok()) telemetry::LogError("receiver_failed", status);
  telemetry::FlushLog();
  return ExitCode(status.code());
}

}  // namespace
}  // namespace lockstep::receiver

int main(int argc, char** argv) {
  return lockstep::receiver::Main(argc, argv);
}
