// raas_receiver: keeps an inference server's replicas in lock step with a trainer agent.

#include <iostream>

#include "common/os/signals.h"
#include "common/telemetry/log.h"
#include "raas_receiver/receiver/receiver.h"

namespace lockstep {
namespace {

Status RunReceiver(int argc, char** argv) {
  LS_ASSIGN_OR_RETURN(std::optional<ReceiverConfig> config, ParseReceiverConfig(argc, argv));
  if (!config) return OkStatus();
  LS_RETURN_IF_ERROR(InitLogging("raas_receiver", config->log_level, config->log_format));
  LS_ASSIGN_OR_RETURN(SignalWaiter signals, SignalWaiter::Create());
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Receiver> receiver, Receiver::Create(*std::move(config)));
  return receiver->Run(signals);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const lockstep::Status status = lockstep::RunReceiver(argc, argv);
  if (!status.ok()) std::cerr << "raas_receiver: " << status.ToString() << "\n";
  return lockstep::ExitCode(status.code());
}
