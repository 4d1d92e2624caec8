// Internal to ctl: the commands of each daemon, and what they share.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"
#include "ctl/client.h"
#include "ctl/invocation.h"
#include "ctl/output.h"
#include "ctl/views.h"

namespace lockstep {

inline constexpr std::chrono::milliseconds kQuickTimeout{10'000};  // for what a daemon knows
inline constexpr std::chrono::milliseconds kWorkTimeout{600'000};  // for what it has to do first

Status RunAgentCommand(const Invocation& invocation, const Output& output);
Status RunReceiverCommand(const Invocation& invocation, const Output& output);

Status CheckHealthCommand(const std::string& daemon, const std::shared_ptr<grpc::Channel>& channel,
                          const Invocation& invocation, const Output& output);
Status PrintLayout(const v1::Layout& layout, const Output& output);

// The model that the invocation names, or the only one of `models`. kUsage, listing them, when there are several.
template <typename Models>
Result<std::string> ChooseModel(const Invocation& invocation, const std::string& daemon, const Models& models) {
  if (!invocation.model.empty()) return invocation.model;
  if (models.size() == 1) return models.begin()->name();
  if (models.empty()) return Status(ErrorCode::kNotFound, Cat(daemon, ": has no model yet"));
  std::string names;
  for (const auto& model : models) names += " " + model.name();
  return Status(ErrorCode::kUsage, Cat(daemon, ": has several models, name one of:", names));
}

// What both daemons are asked in the same way. `DaemonClient` is AgentClient or ReceiverClient; the other two are the
// messages of its GetStatus.
template <typename DaemonClient, typename StatusRequest, typename StatusResponse>
class DaemonCommands {
 protected:
  using Stub = typename DaemonClient::Stub;

  DaemonCommands(std::string_view daemon, const Invocation& invocation, const Output& output)
      : invocation_(invocation), output_(output), client_(daemon, invocation.address) {}

  std::chrono::milliseconds Timeout(std::chrono::milliseconds usual) const {
    return invocation_.timeout.value_or(usual);
  }

  Result<StatusResponse> GetStatus() const {
    return client_.Call(&Stub::GetStatus, StatusRequest(), Timeout(kQuickTimeout));
  }

  Result<std::string> Model() const {
    if (!invocation_.model.empty()) return invocation_.model;
    LS_ASSIGN_OR_RETURN(const StatusResponse status, GetStatus());
    return ChooseModel(invocation_, client_.name(), status.models());
  }

  Status ShowStatus() const {
    LS_ASSIGN_OR_RETURN(const StatusResponse status, GetStatus());
    output_.Print(ToJson(status), StatusText(status));
    return OkStatus();
  }

  Status Versions() const {
    LS_ASSIGN_OR_RETURN(const StatusResponse status, GetStatus());
    output_.Print(VersionsJson(status), VersionsText(status));
    return OkStatus();
  }

  const Invocation& invocation_;
  const Output& output_;
  DaemonClient client_;
};

// Counts down Invocation::count: whether a watch goes on after one more record.
class WatchCount {
 public:
  explicit WatchCount(uint64_t count) : left_(count) {}
  bool Another() { return left_ == 0 || --left_ > 0; }

 private:
  uint64_t left_;
};

}  // namespace lockstep
