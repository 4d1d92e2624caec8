#include <set>

#include "ctl/daemon/daemon_commands.h"
#include "ctl/daemon/receipts.h"

namespace lockstep::ctl {
namespace {

// What a receiver needs to say by itself that its time is up.
constexpr std::chrono::milliseconds kGrace{2'000};

// A sync that ended, but not with the engine on the new version.
Status Judge(const v1::SyncRecord& record, const std::string& receiver) {
  const std::string where = Cat(receiver, ": model ", record.model());
  if (!record.error().empty()) return {ErrorCode::kAborted, Cat(where, ": ", record.error())};
  if (record.engine_error().empty()) return OkStatus();
  return {ErrorCode::kAborted, Cat(where, ": version ", record.to().version(),
                                   " is committed, but the engine did not take it: ", record.engine_error())};
}

class ReceiverCommands : DaemonCommands<ReceiverClient, v1::ReceiverStatusRequest, v1::ReceiverStatus> {
 public:
  ReceiverCommands(const DaemonOptions& options, const Output& output)
      : DaemonCommands("raas_receiver", options, output) {}

  Status Run() const {
    if (options_.command == Command::kPull) return Pull();
    if (options_.command == Command::kVerify) return Verify();
    if (options_.command == Command::kWatch) {
      v1::WatchSyncsRequest request;
      request.set_model(options_.model);
      return Watch(&Stub::WatchSyncs, request);
    }
    if (options_.command == Command::kLayout) return ShowLayout<v1::GetReceiverLayoutRequest>(&Stub::GetReceiverLayout);
    if (options_.command == Command::kRollback) return Rollback();
    if (options_.command == Command::kReceipt) return Receipts();
    return DaemonCommands::Run();
  }

 private:
  Status Pull() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    const std::chrono::milliseconds timeout = Timeout(kWorkTimeout);
    v1::PullRequest request;
    request.set_model(model);
    request.set_force_full(options_.force_full);
    request.set_timeout_ms(static_cast<uint32_t>(timeout.count()));
    LS_ASSIGN_OR_RETURN(const v1::SyncRecord record, client_.Call(&Stub::Pull, request, timeout + kGrace));
    output_.Print(ToJson(record), LineOf(record));
    return Judge(record, client_.name());
  }

  Status Verify() const {
    LS_ASSIGN_OR_RETURN(const v1::ReceiverStatus status, GetStatus());
    LS_ASSIGN_OR_RETURN(const std::string model, ChooseModel(options_, client_.name(), status.models()));
    LS_ASSIGN_OR_RETURN(Verification verification, VerifyItself<v1::ReceiverVerifyRequest>(model));
    verification.needs_engines = options_.needs_engines;
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> agents, AgentsOf(status, model));
    Result<AgentProof> proof = AskAgents(agents, verification);
    // Damage found here is the answer, whether or not the agent can be asked.
    if (proof.ok()) verification.agent = *proof;
    output_.Print(ToJson(verification), VerificationText(verification));
    LS_RETURN_IF_ERROR(ctl::Judge(verification));
    return proof.status().WithContext("the replica is what its own manifest says, but the agent cannot confirm it");
  }

  // The agents to compare with: --agent, or those that the receiver follows.
  Result<std::vector<std::string>> AgentsOf(const v1::ReceiverStatus& status, const std::string& model) const {
    if (options_.verify_agent.has_value()) return std::vector<std::string>{*options_.verify_agent};
    for (const v1::ReceiverModel& known : status.models()) {
      if (known.name() == model) return AgentsOfModel(known, client_.name());
    }
    return Status(ErrorCode::kNotFound, Cat(client_.name(), ": has no model ", model));
  }

  // Of agents that have a part each: where their digests are those of the parts, the digest is that of the whole.
  Result<AgentProof> AskAgents(const std::vector<std::string>& addresses, const Verification& verification) const {
    if (addresses.size() == 1) return AskAgent(addresses[0], verification);
    const auto& wanted = verification.result.part_digests();
    std::multiset<std::string> parts(wanted.begin(), wanted.end());
    AgentProof whole{.address = "", .held = {}, .digest = verification.result.computed_digest()};
    for (const std::string& address : addresses) {
      LS_ASSIGN_OR_RETURN(AgentProof proof, AskAgent(address, verification));
      const auto part = parts.find(proof.digest);
      if (part == parts.end() || proof.held.run() != verification.result.held().run()) return proof;
      parts.erase(part);
      whole.address += (whole.address.empty() ? "" : "+") + address;
      whole.held = proof.held;
    }
    return whole;
  }

  Result<AgentProof> AskAgent(const std::string& address, const Verification& verification) const {
    const AgentClient agent("trainer_agent", address, options_.tls);
    v1::GetManifestRequest request;
    request.set_model(verification.model);
    request.set_version(verification.result.held().version());
    LS_ASSIGN_OR_RETURN(const v1::Manifest manifest,
                        agent.Call(&AgentClient::Stub::GetManifest, request, Timeout(kQuickTimeout)));
    return AgentProof{.address = address, .held = manifest.held(), .digest = manifest.digest()};
  }

  Status Receipts() const {
    if (!options_.receipts_file.empty()) {
      LS_ASSIGN_OR_RETURN(const auto read, ReadReceipts(options_.receipts_file));
      return PrintReceipts(read, options_.keys, output_);
    }
    v1::GetReceiptsRequest request = options_.receipts;
    LS_ASSIGN_OR_RETURN(*request.mutable_model(), Model());
    LS_ASSIGN_OR_RETURN(const v1::Receipts found, client_.Call(&Stub::GetReceipts, request, Timeout(kQuickTimeout)));
    return PrintReceipts({found.receipts().begin(), found.receipts().end()}, options_.keys, output_);
  }

  Status Rollback() const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    v1::RollbackRequest request;
    request.set_model(model);
    request.set_to_version(options_.to_version);
    request.set_not_version(options_.not_version);
    LS_ASSIGN_OR_RETURN(const v1::ReceiverModel now, client_.Call(&Stub::Rollback, request, Timeout(kWorkTimeout)));
    const std::string next = options_.not_version == 0 ? " and stays there until `pull`\n"
                                                       : Cat(" and follows again when there is a newer one than ",
                                                             options_.not_version, "\n");
    output_.Print(ToJson(now), Cat(now.name(), " is at version ", now.held().version(), next));
    return OkStatus();
  }
};

}  // namespace

Status RunReceiverCommand(const DaemonOptions& options, const Output& output) {
  return ReceiverCommands(options, output).Run();
}

Status Run(const DaemonOptions& options, const Output& output) {
  return options.daemon == Daemon::kAgent ? RunAgentCommand(options, output) : RunReceiverCommand(options, output);
}

}  // namespace lockstep::ctl
