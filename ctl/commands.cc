#include "ctl/commands.h"

#include "common/base/bytes.h"
#include "ctl/daemon_commands.h"
#include "ctl/health_client.h"
#include "ctl/plan_command.h"
#include "ctl/timeline_command.h"
#include "ctl/views.h"

namespace lockstep {

Status RunCommand(const Invocation& invocation, std::ostream& out) {
  const Output output{out, invocation.json, invocation.quiet};
  if (invocation.plan) return RunPlanCommand(*invocation.plan, output);
  if (invocation.timeline) return RunTimelineCommand(invocation, output);
  return invocation.daemon == Daemon::kAgent ? RunAgentCommand(invocation, output)
                                             : RunReceiverCommand(invocation, output);
}

Status CheckHealthCommand(const std::string& daemon, const std::shared_ptr<grpc::Channel>& channel,
                          const Invocation& invocation, const Output& output) {
  const std::string& service = invocation.health_service;
  const Result<bool> serving = CheckHealth(channel, service, invocation.timeout.value_or(kQuickTimeout));
  const std::string what = service.empty() ? daemon : Cat(daemon, " ", service);
  if (!serving.ok()) return serving.status().WithContext(what);
  output.Print({{"service", service}, {"serving", *serving}},
               Cat(what, *serving ? " is serving\n" : " is not serving\n"));
  return *serving ? OkStatus() : Status(ErrorCode::kUnavailable, Cat(what, ": not serving"));
}

Status PrintLayout(const v1::Layout& layout, const Output& output) {
  LS_ASSIGN_OR_RETURN(const auto decoded, ModelLayout::Decode(std::as_bytes(std::span(layout.encoded()))));
  output.Print(ToJson(*decoded), LayoutText(*decoded));
  return OkStatus();
}

}  // namespace lockstep
