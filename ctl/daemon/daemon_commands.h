// Internal to the package: what the commands of both daemons share.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "ctl/daemon/client.h"
#include "ctl/daemon/commands.h"
#include "ctl/daemon/verify.h"
#include "ctl/daemon/views.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"

namespace lockstep::ctl {

Status RunAgentCommand(const DaemonOptions& options, const Output& output);
Status RunReceiverCommand(const DaemonOptions& options, const Output& output);

inline constexpr std::chrono::milliseconds kBetweenChanges{50};

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

// The commands that are the same for both daemons. `DaemonClient` is AgentClient or ReceiverClient; the other two are
// the messages of its GetStatus.
template <typename DaemonClient, typename StatusRequest, typename StatusResponse>
class DaemonCommands {
 protected:
  using Stub = typename DaemonClient::Stub;

  DaemonCommands(std::string_view daemon, const DaemonOptions& options, const Output& output)
      : options_(options), output_(output), client_(daemon, options.address, options.tls) {}

  // The commands that are alike.
  Status Run() const {
    switch (options_.command) {
      case Command::kStatus:
        return ShowStatus();
      case Command::kTop:
        return Top();
      case Command::kVersions:
        return Versions();
      case Command::kHealth:
        return CheckHealth();
      default:
        return {ErrorCode::kUsage, "only receivers can do that: use --receiver HOST:PORT"};
    }
  }

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

  // On a terminal each look takes the place of the one before; a daemon that is away is waited for. Ends when nothing
  // reads what it prints.
  Status Top() const {
    const std::string clear = ::isatty(STDOUT_FILENO) != 0 ? "\033[H\033[2J" : "";
    const std::chrono::milliseconds every =
        options_.changes_only ? kBetweenChanges : std::chrono::seconds(options_.every_s);
    Json last;
    for (uint64_t printed = 0;;) {
      const Result<StatusResponse> status = GetStatus();
      const Json seen = status.ok() ? ToJson(*status) : ToJson(status.status());
      Json lasting = WithoutAges(seen);
      if (!options_.changes_only || lasting != last) {
        output_.Print(seen, clear + (status.ok() ? StatusText(*status) : status.status().ToString() + "\n"));
        if (++printed == options_.count) return status.status();
      }
      last = std::move(lasting);
      pollfd reader{STDOUT_FILENO, 0, 0};
      if (::poll(&reader, 1, static_cast<int>(every.count())) > 0) return OkStatus();
    }
  }

  Status Versions() const {
    LS_ASSIGN_OR_RETURN(const StatusResponse status, GetStatus());
    output_.Print(VersionsJson(status), VersionsText(status));
    return OkStatus();
  }

  // Prints the health of `health_service`, or of the whole server. kNotFound when the daemon does not know the service.
  Status CheckHealth() const {
    namespace health = grpc::health::v1;
    const std::string& service = options_.health_service;
    const std::string what = service.empty() ? client_.name() : Cat(client_.name(), " ", service);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + Timeout(kQuickTimeout));
    health::HealthCheckRequest request;
    request.set_service(service);
    health::HealthCheckResponse response;
    LS_ASSIGN_OR_RETURN(const auto channel, client_.Channel());
    const grpc::Status answer = health::Health::NewStub(channel)->Check(&context, request, &response);
    LS_RETURN_IF_ERROR(client_.Explain(answer).WithContext(what));
    const bool serving = response.status() == health::HealthCheckResponse::SERVING;
    output_.Print({{"service", service}, {"serving", serving}},
                  Cat(what, serving ? " is serving\n" : " is not serving\n"));
    return serving ? OkStatus() : Status(ErrorCode::kUnavailable, Cat(what, ": not serving"));
  }

  // `method` is the Stub's for the layout, `Request` its request.
  template <typename Request, typename Method>
  Status ShowLayout(Method method) const {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    Request request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(const v1::Layout layout, client_.Call(method, request, Timeout(kQuickTimeout)));
    const auto encoded = std::as_bytes(std::span(layout.encoded()));
    LS_ASSIGN_OR_RETURN(const auto decoded, model::ModelLayout::Decode(encoded, /*joined=*/true));
    output_.Print(ToJson(*decoded), LayoutText(*decoded));
    return OkStatus();
  }

  // Prints what `method` streams in answer to `request`, as it comes.
  template <typename Request, typename Method>
  Status Watch(Method method, const Request& request) const {
    uint64_t left = options_.count;
    return client_.Stream(method, request, options_.timeout, [&](const auto& record) {
      output_.Print(ToJson(record), LineOf(record));
      return left == 0 || --left > 0;
    });
  }

  // The daemon's own part of a verification.
  template <typename Request>
  Result<Verification> VerifyItself(const std::string& model) const {
    Request request;
    request.set_model(model);
    LS_ASSIGN_OR_RETURN(v1::VerifyResult result, client_.Call(&Stub::Verify, request, Timeout(kWorkTimeout)));
    return Verification{.daemon = client_.name(), .model = model, .result = std::move(result), .agent = {}};
  }

  const DaemonOptions& options_;
  const Output& output_;
  DaemonClient client_;
};

}  // namespace lockstep::ctl
