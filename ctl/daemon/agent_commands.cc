#include "ctl/daemon/daemon_commands.h"
#include "ctl/daemon/verify.h"
#include "ctl/daemon/views.h"

namespace lockstep::ctl {
namespace {

class AgentCommands : DaemonCommands<AgentClient, v1::AgentStatusRequest, v1::AgentStatus> {
 public:
  AgentCommands(const DaemonOptions& options, const Output& output)
      : DaemonCommands("trainer_agent", options, output) {}

  Status Run() const {
    switch (options_.command) {
      case Command::kStatus:
        return ShowStatus();
      case Command::kVersions:
        return Versions();
      case Command::kVerify:
        return Verify();
      case Command::kWatch:
        return Watch();
      case Command::kLayout:
        return ShowLayout<v1::GetLayoutRequest>(&Stub::GetLayout);
      case Command::kHealth:
        return CheckHealth();
      case Command::kPull:
      case Command::kRollback:
        break;
    }
    return {ErrorCode::kUsage, "only receivers can do that: use --receiver HOST:PORT"};
  }

 private:
  Status Verify() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::AgentVerifyRequest request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(v1::VerifyResult result, client_.Call(&Stub::Verify, request, Timeout(kWorkTimeout)));
    const Verification verification{.daemon = client_.name(), .model = model, .result = std::move(result), .agent = {}};
    output_.Print(ToJson(verification), VerificationText(verification));
    return Judge(verification);
  }

  Status Watch() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::WatchVersionsRequest request;
    request.set_model(model);
    WatchCount count(options_.count);
    return client_.Stream(&Stub::WatchVersions, request, options_.timeout, [&](const v1::VersionEvent& event) {
      output_.Print(ToJson(event), LineOf(event));
      return count.Another();
    });
  }
};

}  // namespace

Status RunAgentCommand(const DaemonOptions& options, const Output& output) {
  return AgentCommands(options, output).Run();
}

}  // namespace lockstep::ctl
