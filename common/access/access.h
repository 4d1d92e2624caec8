// AccessControl: whether a peer may make a call. Every handler of a gRPC service asks it first:
//
//   LS_GRPC_ASSIGN_OR_RETURN(const access::Caller caller, gate_.Admit(*context, __func__, *request));
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/access/identity.h"
#include "common/access/policy.h"
#include "common/access/quota.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/os/file.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::access {

// The caller of a call. The call is one of its caller's, which may make so many at a time, while this lives.
struct Caller {
  std::string name;  // the names in its certificate; empty where peers have none
  Quota::Lease call;
};

// Thread-safe.
class AccessControl {
 public:
  // By the policy at `policy_path`; without one (empty) no peer is asked for a name: plaintext. kConfig as
  // Policy::Read.
  static Result<std::unique_ptr<AccessControl>> Create(std::string policy_path);

  // OK when `caller` has a role that `method` takes, for what `scope` says. kPermission names the caller, the method
  // and the remedy, and is logged, once a minute for each identity.
  Status Check(const Identity& caller, std::string_view method, const Scope& scope);
  // Whether Check() is OK. Logs nothing.
  bool Allows(const Identity& caller, std::string_view method, const Scope& scope);

  // OK when `caller` has a role, for whatever it may be. kPermission says why not, and is logged as Check()'s.
  Status Admit(const Identity& caller);

  // kResourceExhausted when `caller` makes too many calls at a time, or all together do.
  Result<Caller> Begin(const Identity& caller);

  // Reads the policy again when its file has changed. A bad one is logged, and the one before stays. To be called now
  // and then.
  void Reload();

 private:
  explicit AccessControl(std::string policy_path) : path_(std::move(policy_path)) {}
  bool IsDenied(const Identity& caller) const LS_REQUIRES(mutex_);
  Status Refuse(const Identity& caller, std::string_view what, std::string_view role);
  std::string WhyNot(const Identity& caller, std::string_view role);

  const std::string path_;
  Quota calls_{"calls", {.all = 512, .each = 128}};  // of as many as there are threads for (rpc_server.cc)
  Mutex mutex_;
  std::optional<Policy> policy_ LS_GUARDED_BY(mutex_);
  os::FileStamp stamp_ LS_GUARDED_BY(mutex_);  // of the policy's file, when it was read
  telemetry::LogLimit limit_;                  // of refusals, by identity
};

// The calls of one service.
class Gate {
 public:
  // `service`: "lockstep.v1.TrainerAgent". REQUIRES the control to outlive this.
  Gate(std::string service, AccessControl* control) : service_(std::move(service)), control_(control) {}

  // The caller of `call` (the handler's name), when it may. The model is the request's own.
  template <typename Request>
  Result<Caller> Admit(const grpc::ServerContextBase& context, std::string_view call, const Request& request) const {
    const Identity caller = IdentityOf(context);
    LS_RETURN_IF_ERROR(control_->Check(caller, service_ + "." + std::string(call), ScopeOf(request)));
    return control_->Begin(caller);
  }

  // Whether the caller of this call may make it for `model`, too.
  bool AdmitsFor(const grpc::ServerContextBase& context, std::string_view call, std::string_view model) const {
    return control_->Allows(IdentityOf(context), service_ + "." + std::string(call),
                            {.kind = Scope::Kind::kModel, .model = model});
  }

 private:
  template <typename Request>
  static Scope ScopeOf(const Request& request) {
    if constexpr (requires { request.pull_id(); }) {
      return {.kind = Scope::Kind::kOwnPull, .model = ""};
    } else if constexpr (requires { request.model(); }) {
      if (!request.model().empty()) return {.kind = Scope::Kind::kModel, .model = request.model()};
    }
    return {.kind = Scope::Kind::kEveryModel, .model = ""};
  }

  const std::string service_;
  AccessControl* const control_;
};

}  // namespace lockstep::access
