#include "common/peer/peer.h"
#include "ctl/daemon/daemon_commands.h"

namespace lockstep::ctl {
namespace {

class AgentCommands : DaemonCommands<AgentClient, v1::AgentStatusRequest, v1::AgentStatus> {
 public:
  AgentCommands(const DaemonOptions& options, const Output& output)
      : DaemonCommands("trainer_agent", options, output) {}

  Status Run() const {
    if (options_.command == Command::kVerify) return Verify();
    if (options_.command == Command::kDrop) return Drop();
    if (options_.command == Command::kWatch) return Watch();
    if (options_.command == Command::kLayout) return ShowLayout<v1::GetLayoutRequest>(&Stub::GetLayout);
    return DaemonCommands::Run();
  }

 private:
  Status Verify() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    LS_ASSIGN_OR_RETURN(const Verification verification, VerifyItself<v1::AgentVerifyRequest>(model));
    output_.Print(ToJson(verification), VerificationText(verification));
    return Judge(verification);
  }

  Status Drop() const {
    v1::DropModelRequest request;
    request.set_model(options_.model);
    LS_ASSIGN_OR_RETURN(const v1::DropModelResponse dropped,
                        client_.Call(&Stub::DropModel, request, Timeout(kWorkTimeout)));
    output_.Print(ToJson(dropped), Cat(options_.model, " is dropped: ", HumanBytes(dropped.freed_bytes()),
                                       " are free once open pulls end; receivers keep what they hold\n"));
    return OkStatus();
  }

  Status Watch() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::WatchVersionsRequest request;
    request.set_model(model);
    request.set_peer(peer::SelfLine("lockstepctl"));
    return DaemonCommands::Watch(&Stub::WatchVersions, request);
  }
};

}  // namespace

Status RunAgentCommand(const DaemonOptions& options, const Output& output) {
  return AgentCommands(options, output).Run();
}

}  // namespace lockstep::ctl
