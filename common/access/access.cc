#include "common/access/access.h"

#include <chrono>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::access {
namespace {

constexpr size_t kMaxModelName = 200;

std::string WhatOf(std::string_view method, const Scope& scope) {
  switch (scope.kind) {
    case Scope::Kind::kModel:
      return Cat(method, " for model ", CleanText(scope.model, kMaxModelName));
    case Scope::Kind::kEveryModel:
      return Cat(method, " for every model");
    case Scope::Kind::kOwnPull:
      break;
  }
  return std::string(method);
}

}  // namespace

Result<std::unique_ptr<AccessControl>> AccessControl::Create(std::string policy_path) {
  std::unique_ptr<AccessControl> control(new AccessControl(std::move(policy_path)));
  if (control->path_.empty()) return control;
  MutexLock lock(control->mutex_);
  control->stamp_ = os::StampOf(control->path_);
  LS_ASSIGN_OR_RETURN(control->policy_, Policy::Read(control->path_));
  return control;
}

bool AccessControl::IsDenied(const Identity& caller) const {
  return caller.valid_until <= std::chrono::system_clock::now() || policy_->Denies(caller.names, caller.serial);
}

bool AccessControl::Allows(const Identity& caller, std::string_view method, const Scope& scope) {
  if (path_.empty() || caller.of_host) return true;
  const std::optional<Roles> roles = RolesFor(method);
  MutexLock lock(mutex_);
  return !IsDenied(caller) && roles && policy_->Allows(caller.names, *roles, scope);
}

Status AccessControl::Check(const Identity& caller, std::string_view method, const Scope& scope) {
  if (Allows(caller, method, scope)) return OkStatus();
  const std::optional<Roles> roles = RolesFor(method);
  return Refuse(caller, Cat("call ", WhatOf(method, scope)), roles ? roles->ToString() : "that no role is");
}

Status AccessControl::Admit(const Identity& caller) {
  if (path_.empty()) return OkStatus();
  {
    MutexLock lock(mutex_);
    if (!IsDenied(caller) && policy_->KnowsOneOf(caller.names)) return OkStatus();
  }
  return Refuse(caller, "connect", "receiver, operator or observer");
}

Status AccessControl::Refuse(const Identity& caller, std::string_view what, std::string_view role) {
  const Status refusal(ErrorCode::kPermission, Cat(caller.name, " may not ", what, "; ", WhyNot(caller, role)));
  if (const uint64_t times = limit_.Count(caller.name); times > 0) {
    telemetry::LogWarn("access_refused", refusal, {{"peer", caller.name}, {"times", times}});
  }
  return refusal;
}

std::string AccessControl::WhyNot(const Identity& caller, std::string_view role) {
  if (caller.valid_until <= std::chrono::system_clock::now()) return "its certificate has expired";
  MutexLock lock(mutex_);
  if (policy_->Denies(caller.names, caller.serial)) return "this daemon's --tls-policy denies it everything";
  return Cat("it takes the role ", role, ", given by this daemon's --tls-policy");
}

Result<Caller> AccessControl::Begin(const Identity& caller) {
  const std::string name = caller.names.empty() ? "" : caller.name;
  LS_ASSIGN_OR_RETURN(Quota::Lease call, calls_.Take(name));
  return Caller{name, std::move(call)};
}

void AccessControl::Reload() {
  if (path_.empty()) return;
  const os::FileStamp now = os::StampOf(path_);
  MutexLock lock(mutex_);
  if (now == stamp_) return;
  stamp_ = now;
  Result<Policy> policy = Policy::Read(path_);
  if (!policy.ok()) return telemetry::LogWarn("tls_policy_refused", policy.status());
  policy_ = *std::move(policy);
  telemetry::Log(telemetry::LogLevel::kInfo, "tls_policy_reloaded", {{"path", path_}});
}

}  // namespace lockstep::access
