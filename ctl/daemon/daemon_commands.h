// Internal to the package: what the commands of both daemons share.
#pragma once

#include <string>

#include "ctl/daemon/client.h"
#include "ctl/daemon/commands.h"
#include "ctl/daemon/health_client.h"
#include "ctl/daemon/views.h"

namespace lockstep::ctl {

Status RunAgentCommand(const DaemonOptions& options, const Output& output);
Status RunReceiverCommand(const DaemonOptions& options, const Output& output);

// The model that `options` name, or the only one of `models`. kUsage, listing them, when there are several.
template <typename Models>
Result<std::string> ChooseModel(const DaemonOptions& options, const std::string& daemon, const Models& models) {
  if (!options.model.empty()) return options.model;
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

  DaemonCommands(std::string_view daemon, const DaemonOptions& options, const Output& output)
      : options_(options), output_(output), client_(daemon, options.address) {}

  std::chrono::milliseconds Timeout(std::chrono::milliseconds usual) const { return options_.timeout.value_or(usual); }

  Result<StatusResponse> GetStatus() const {
    return client_.Call(&Stub::GetStatus, StatusRequest(), Timeout(kQuickTimeout));
  }

  Result<std::string> Model() const {
    if (!options_.model.empty()) return options_.model;
    LS_ASSIGN_OR_RETURN(const StatusResponse status, GetStatus());
    return ChooseModel(options_, client_.name(), status.models());
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

  Status CheckHealth() const {
    const std::string& service = options_.health_service;
    const Result<bool> serving = IsServing(client_.channel(), service, Timeout(kQuickTimeout));
    const std::string what = service.empty() ? client_.name() : Cat(client_.name(), " ", service);
    if (!serving.ok()) return serving.status().WithContext(what);
    output_.Print({{"service", service}, {"serving", *serving}},
                  Cat(what, *serving ? " is serving\n" : " is not serving\n"));
    return *serving ? OkStatus() : Status(ErrorCode::kUnavailable, Cat(what, ": not serving"));
  }

  // `method` is the Stub's for the layout, `Request` its request.
  template <typename Request, typename Method>
  Status ShowLayout(Method method) const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    Request request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(const v1::Layout layout, client_.Call(method, request, Timeout(kQuickTimeout)));
    LS_ASSIGN_OR_RETURN(const auto decoded, model::ModelLayout::Decode(std::as_bytes(std::span(layout.encoded()))));
    output_.Print(ToJson(*decoded), LayoutText(*decoded));
    return OkStatus();
  }

  const DaemonOptions& options_;
  const Output& output_;
  DaemonClient client_;
};

// Counts down DaemonOptions::count: whether a watch continues after one more record.
class WatchCount {
 public:
  explicit WatchCount(uint64_t count) : left_(count) {}
  bool Another() { return left_ == 0 || --left_ > 0; }

 private:
  uint64_t left_;
};

}  // namespace lockstep::ctl
