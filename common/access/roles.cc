#include "common/access/roles.h"

#include <algorithm>
#include <iterator>

namespace lockstep::access {
namespace {

struct NamedRole {
  Role role;
  std::string_view name;
};
constexpr NamedRole kRoles[] = {
    {Role::kReceiver, "receiver"}, {Role::kOperator, "operator"}, {Role::kObserver, "observer"}};

struct Row {
  std::string_view method;
  Roles roles;
};

// What weights are read by, what is only seen, and what changes or costs something.
constexpr Roles kReads = Role::kReceiver;
constexpr Roles kSees = Roles(Role::kObserver) | Role::kOperator;
constexpr Roles kSteers = Role::kOperator;

constexpr Row kRows[] = {
    {"lockstep.v1.TrainerAgent.GetStatus", kSees},
    {"lockstep.v1.TrainerAgent.GetLayout", kReads | kSees},
    {"lockstep.v1.TrainerAgent.WatchVersions", kReads | kSees},
    {"lockstep.v1.TrainerAgent.OpenPull", kReads},
    {"lockstep.v1.TrainerAgent.CatchUp", kReads},
    {"lockstep.v1.TrainerAgent.RenewTickets", kReads},
    {"lockstep.v1.TrainerAgent.ClosePull", kReads},
    {"lockstep.v1.TrainerAgent.GetManifest", kReads | kSteers},
    {"lockstep.v1.TrainerAgent.Verify", kSteers},
    {"lockstep.v1.TrainerAgent.DropModel", kSteers},
    {"lockstep.v1.TrainerAgent.Report", kReads},
    {"lockstep.v1.TrainerAgent.AwaitServed", kSees},
    {"lockstep.v1.TrainerAgent.AwaitChanges", kSees},
    {"lockstep.v1.TrainerAgent.GetTimeline", kSees},
    {"lockstep.v1.RaasReceiver.GetStatus", kSees},
    {"lockstep.v1.RaasReceiver.Pull", kSteers},
    {"lockstep.v1.RaasReceiver.WatchSyncs", kSees},
    {"lockstep.v1.RaasReceiver.Rollback", kSteers},
    {"lockstep.v1.RaasReceiver.Verify", kSteers},
    {"lockstep.v1.RaasReceiver.GetReceiverLayout", kSees},
    {"lockstep.v1.RaasReceiver.GetReceipts", kSees},
    {"lockstep.v1.RaasReceiver.GetTimeline", kSees},
};

}  // namespace

std::string Roles::ToString() const {
  std::string text;
  for (const auto& [role, name] : kRoles) {
    if (!Has(role)) continue;
    if (!text.empty()) text += " or ";
    text += name;
  }
  return text;
}

std::string_view NameOf(Role role) {
  return std::ranges::find(kRoles, role, &NamedRole::role)->name;
}

std::optional<Role> ParseRole(std::string_view name) {
  const auto found = std::ranges::find(kRoles, name, &NamedRole::name);
  return found == std::end(kRoles) ? std::nullopt : std::optional(found->role);
}

std::optional<Roles> RolesFor(std::string_view method) {
  const auto found = std::ranges::find(kRows, method, &Row::method);
  return found == std::end(kRows) ? std::nullopt : std::optional(found->roles);
}

}  // namespace lockstep::access
