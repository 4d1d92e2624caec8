// Where daemons are when the command line does not say.
#pragma once

#include <cstdlib>
#include <string>

namespace lockstep::ctl {

inline constexpr const char* kAgentVariable = "LOCKSTEP_AGENT";
inline constexpr const char* kReceiverVariable = "LOCKSTEP_RECEIVER";
inline constexpr const char* kDefaultAgent = "127.0.0.1:7700";
inline constexpr const char* kDefaultReceiver = "127.0.0.1:7710";

inline std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace lockstep::ctl
