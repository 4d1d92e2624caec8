#include "ctl/daemon_commands.h"
#include "ctl/verify.h"
#include "ctl/views.h"

namespace lockstep {
namespace {

class AgentCommands : DaemonCommands<AgentClient, v1::AgentStatusRequest, v1::AgentStatus> {
 public:
  AgentCommands(const Invocation& invocation, const Output& output)
      : DaemonCommands("trainer_agent", invocation, output) {}

  Status Run() const {
    switch (invocation_.command) {
      case Command::kStatus:
        return ShowStatus();
      case Command::kVersions:
        return Versions();
      case Command::kVerify:
        return Verify();
      case Command::kWatch:
        return Watch();
      case Command::kLayout:
        return Layout();
      case Command::kHealth:
        return CheckHealthCommand(client_.name(), client_.channel(), invocation_, output_);
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
    WatchCount count(invocation_.count);
    return client_.Stream(&Stub::WatchVersions, request, invocation_.timeout, [&](const v1::VersionEvent& event) {
      output_.Print(ToJson(event), LineOf(event));
      return count.Another();
    });
  }

  Status Layout() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::GetLayoutRequest request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(const v1::Layout layout, client_.Call(&Stub::GetLayout, request, Timeout(kQuickTimeout)));
    return PrintLayout(layout, output_);
  }
};

}  // namespace

Status RunAgentCommand(const Invocation& invocation, const Output& output) {
  return AgentCommands(invocation, output).Run();
}

}  // namespace lockstep
