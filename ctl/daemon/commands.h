// The commands of lockstepctl that ask one daemon.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/os/places.h"
#include "common/rpc/tls.h"
#include "ctl/changes/changes.h"
#include "ctl/output/output.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::ctl {

enum class Command {
  kStatus,
  kTop,
  kVersions,
  kPull,
  kVerify,
  kWatch,
  kLayout,
  kRollback,
  kDrop,
  kHealth,
  kServed,
  kDiff,
  kReceipt
};
enum class Daemon { kAgent, kReceiver };

struct DaemonOptions {
  Command command = Command::kStatus;
  Daemon daemon = Daemon::kAgent;           // that the command goes to
  std::string address;                      // of that daemon
  rpc::TlsOptions tls;                      // that it is spoken to by
  std::optional<std::string> verify_agent;  // the agent to compare a receiver with; else the receiver's own
  std::string model;                        // empty: the only one there is
  std::string health_service;               // full name; empty: the server as a whole
  bool force_full = false;
  uint64_t to_version = 0;         // of a rollback; 0: the version before
  uint64_t not_version = 0;        // of a rollback; 0: none is skipped
  uint64_t served_version = 0;     // that wait-served waits for; 0: the newest, or the label's
  std::string label;               // of that version
  uint32_t receivers = 0;          // how many must serve it
  uint32_t engines = 0;            // how many engines must
  std::vector<std::string> names;  // of all that must
  bool needs_engines = false;      // verify fails where no engine's memory was compared
  uint64_t count = 0;              // of records to watch, or looks of top; 0: no end
  uint64_t every_s = 1;            // between two looks of top
  bool changes_only = false;       // top looks often, and prints what differs
  DiffOptions diff;
  v1::GetReceiptsRequest receipts;                   // but for the model
  std::string receipts_file;                         // to be read in place of asking; empty: a receiver is asked
  std::string keys;                                  // that are to have signed receipts; empty: any, or none
  std::optional<std::chrono::milliseconds> timeout;  // nothing: the command's default; watch and wait-served have none
};

inline constexpr std::chrono::milliseconds kQuickTimeout{10'000};  // for what a daemon knows
inline constexpr std::chrono::milliseconds kWorkTimeout{600'000};  // for what it has to do first

// Calls the daemon that `options` names and prints its answer. Errors are RunCommand's (ctl/invocation.h).
Status Run(const DaemonOptions& options, const Output& output);

// Where daemons are when the command line does not say.
inline constexpr const char* kAgentVariable = "LOCKSTEP_AGENT";
inline constexpr const char* kReceiverVariable = "LOCKSTEP_RECEIVER";
inline std::string UsualAgent() {
  return "unix:" + os::FindSocket(os::kAgentPlace, "control.sock");
}
inline std::string UsualReceiver() {
  return "unix:" + os::FindSocket(os::kReceiverPlace, "control.sock");
}

inline std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace lockstep::ctl
