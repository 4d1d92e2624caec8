#include "ctl/daemon_commands.h"
#include "ctl/verify.h"
#include "ctl/views.h"

namespace lockstep {
namespace {

using Stub = AgentClient::Stub;

class AgentCommands {
 public:
  AgentCommands(const Invocation& invocation, const Output& output)
      : invocation_(invocation), output_(output), agent_("trainer_agent", invocation.address) {}

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
        return CheckHealthCommand(agent_.name(), agent_.channel(), invocation_, output_);
      case Command::kPull:
      case Command::kRollback:
        break;
    }
    return {ErrorCode::kUsage, "only receivers can do that: use --receiver HOST:PORT"};
  }

 private:
  std::chrono::milliseconds Timeout(std::chrono::milliseconds usual) const {
    return invocation_.timeout.value_or(usual);
  }

  Result<v1::AgentStatus> GetStatus() const {
    return agent_.Call(&Stub::GetStatus, v1::AgentStatusRequest(), Timeout(kQuickTimeout));
  }

  Result<std::string> Model() const {
    if (!invocation_.model.empty()) return invocation_.model;
    LS_ASSIGN_OR_RETURN(const v1::AgentStatus status, GetStatus());
    return ChooseModel(invocation_, agent_.name(), status.models());
  }

  Status ShowStatus() const {
    LS_ASSIGN_OR_RETURN(const v1::AgentStatus status, GetStatus());
    output_.Print(ToJson(status), StatusText(status));
    return OkStatus();
  }

  Status Versions() const {
    LS_ASSIGN_OR_RETURN(const v1::AgentStatus status, GetStatus());
    output_.Print(VersionsJson(status), VersionsText(status));
    return OkStatus();
  }

  Status Verify() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::AgentVerifyRequest request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(v1::VerifyResult result, agent_.Call(&Stub::Verify, request, Timeout(kWorkTimeout)));
    const Verification verification{.daemon = agent_.name(), .model = model, .result = std::move(result), .agent = {}};
    output_.Print(ToJson(verification), VerificationText(verification));
    return Judge(verification);
  }

  Status Watch() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::WatchVersionsRequest request;
    request.set_model(model);
    WatchCount count(invocation_.count);
    return agent_.Stream(&Stub::WatchVersions, request, invocation_.timeout, [&](const v1::VersionEvent& event) {
      output_.Print(ToJson(event), LineOf(event));
      return count.Another();
    });
  }

  Status Layout() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::GetLayoutRequest request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(const v1::Layout layout, agent_.Call(&Stub::GetLayout, request, Timeout(kQuickTimeout)));
    return PrintLayout(layout, output_);
  }

  const Invocation& invocation_;
  const Output& output_;
  AgentClient agent_;
};

}  // namespace

Status RunAgentCommand(const Invocation& invocation, const Output& output) {
  return AgentCommands(invocation, output).Run();
}

}  // namespace lockstep
