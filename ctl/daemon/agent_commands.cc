#include <algorithm>
#include <chrono>
#include <thread>

#include "common/peer/peer.h"
#include "ctl/daemon/daemon_commands.h"

namespace lockstep::ctl {
namespace {

constexpr std::chrono::milliseconds kAgentsWait{10'000};  // the longest (AwaitServedRequest)
constexpr std::chrono::milliseconds kPause{200};

class AgentCommands : DaemonCommands<AgentClient, v1::AgentStatusRequest, v1::AgentStatus> {
 public:
  AgentCommands(const DaemonOptions& options, const Output& output)
      : DaemonCommands("trainer_agent", options, output) {}

  Status Run() const {
    if (options_.command == Command::kVerify) return Verify();
    if (options_.command == Command::kDrop) return Drop();
    if (options_.command == Command::kWatch) return Watch();
    if (options_.command == Command::kServed) return WaitServed();
    if (options_.command == Command::kDiff) return Diff();
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

  // Asks again, since the agent answers after kAgentsWait.
  Status WaitServed() const {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout.value_or(std::chrono::milliseconds(0));
    v1::AwaitServedRequest request;
    request.set_model(options_.model);
    if (options_.model.empty()) {
      LS_ASSIGN_OR_RETURN(const v1::AgentStatus status,
                          client_.Call(&Stub::GetStatus, v1::AgentStatusRequest(), kQuickTimeout));
      LS_ASSIGN_OR_RETURN(*request.mutable_model(), ChooseModel(options_, client_.name(), status.models()));
    }
    request.set_version(options_.served_version);
    request.set_label(options_.label);
    request.set_receivers(options_.receivers);
    request.set_engines(options_.engines);
    request.mutable_names()->Assign(options_.names.begin(), options_.names.end());
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      const std::chrono::milliseconds agents_wait =
          options_.timeout.has_value() ? std::clamp(left, std::chrono::milliseconds(0), kAgentsWait) : kAgentsWait;
      request.set_timeout_ms(static_cast<uint64_t>(agents_wait.count()));
      const Result<v1::AwaitServedResponse> answer =
          client_.Call(&Stub::AwaitServed, request, agents_wait + kQuickTimeout);
      const bool late = options_.timeout.has_value() && std::chrono::steady_clock::now() >= deadline;
      if (!answer.ok()) {
        // Too many wait, or an agent that answered before is away for a moment.
        const ErrorCode code = answer.status().code();
        const bool passing =
            code == ErrorCode::kResourceExhausted || (code == ErrorCode::kUnavailable && !request.run().empty());
        if (late || !passing) return answer.status();
        std::this_thread::sleep_for(kPause);
        continue;
      }
      if (answer->served() || late) {
        output_.Print(ToJson(*answer), ServedText(request.model(), *answer));
        return answer->served() ? OkStatus() : Status(ErrorCode::kDeadline, answer->text());
      }
      // The first answer's run and version are kept: a newer version must not move the goal.
      request.set_run(answer->run());
      if (request.label().empty()) request.set_version(answer->version());
    }
  }

  // Backwards: each version says which was before it.
  Status Diff() const {
    LS_RETURN_IF_ERROR(CheckDiff(options_.diff));
    v1::AwaitChangesRequest request;
    LS_ASSIGN_OR_RETURN(*request.mutable_model(), Model());
    request.set_version(Last(options_.diff));
    std::vector<v1::VersionChanges> versions;
    do {
      LS_ASSIGN_OR_RETURN(v1::VersionChanges changes,
                          client_.Call(&Stub::AwaitChanges, request, Timeout(kQuickTimeout)));
      request.set_run(Hex(changes.version().run()));
      request.set_version(changes.base());
      versions.insert(versions.begin(), std::move(changes));
    } while (request.version() > After(options_.diff) && After(options_.diff) != 0);
    if (request.version() == 0 && After(options_.diff) != 0) {
      return {
          ErrorCode::kNotFound,
          Cat(client_.name(), ": model ", request.model(), ": version ", versions[0].version().version(),
              " was compared with none: the agent began there, or what was before it was damaged; name a later V1")};
    }
    return PrintChanges(request.model(), versions, options_.diff, output_);
  }

  static std::string ServedText(const std::string& model, const v1::AwaitServedResponse& answer) {
    if (!answer.served()) return "";
    return Cat(model, ": version ", answer.version(), " or a newer one is served by ", answer.serving(), " of ",
               answer.receivers(), " connected receivers\n");
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
