// What one daemon is asked: every command of lockstepctl but plan and timeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::ctl {

enum class Command { kStatus, kVersions, kPull, kVerify, kWatch, kLayout, kRollback, kHealth };
enum class Daemon { kAgent, kReceiver };

struct DaemonOptions {
  Command command = Command::kStatus;
  Daemon daemon = Daemon::kAgent;           // whom it goes to
  std::string address;                      // of that daemon
  std::optional<std::string> verify_agent;  // the agent to compare a receiver with; else the receiver's own
  std::string model;                        // empty: the only one there is
  std::string health_service;               // full name; empty: the server as a whole
  bool force_full = false;
  uint64_t count = 0;                                // of records to watch; 0: no end
  std::optional<std::chrono::milliseconds> timeout;  // nothing: the command's default; watch has none
};

}  // namespace lockstep::ctl
