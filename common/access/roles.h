// Roles, and which of them a call of the control plane takes: one table for all of lockstep.v1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::access {

enum class Role : uint8_t {
  kReceiver = 1,  // reads the weights
  kOperator = 2,  // pulls, rolls back, verifies
  kObserver = 4,  // sees status, and when what happened
};

// A set of roles.
class Roles {
 public:
  constexpr Roles(Role role) : bits_(static_cast<uint8_t>(role)) {}  // NOLINT: implicit, a set of one
  constexpr Roles operator|(Roles other) const { return Roles(static_cast<uint8_t>(bits_ | other.bits_)); }
  constexpr bool Has(Role role) const { return (bits_ & static_cast<uint8_t>(role)) != 0; }
  std::string ToString() const;  // "receiver or operator"

 private:
  constexpr explicit Roles(uint8_t bits) : bits_(bits) {}
  uint8_t bits_;
};

// "receiver", "operator", "observer".
std::string_view NameOf(Role role);
std::optional<Role> ParseRole(std::string_view name);

// The roles each of which may make the call, by the method's full name as in "lockstep.v1.TrainerAgent.OpenPull";
// nothing for one that is not in the table, which no role may make.
std::optional<Roles> RolesFor(std::string_view method);

}  // namespace lockstep::access
