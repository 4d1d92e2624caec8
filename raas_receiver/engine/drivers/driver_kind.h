// DriverKind: what all code but its driver knows of one kind of engine. All kinds are the rows of one table
// (driver_kind.cc); what the receiver's options say and refuse, and how a session treats the engine, follows from it.
//
// A new kind is a driver and a row of the table, and for tests a stand-in for its server:
// docs/walkthroughs/engine_driver.md.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::engine {

class EngineDriver;

inline constexpr std::string_view kCheckChecksums = "checksums";

struct EngineOptions {
  std::string kind = "none";  // a DriverKind's name
  // Each of these is for the kinds that list it in DriverKind::options.
  std::string command;
  std::string url;         // http:// or https://, HOST:PORT
  std::string key_file;    // a file with the bearer token; empty: none
  std::string user;        // of a server on this host, called by http://; empty: ours, where there is a key
  std::string pause_mode;  // of DriverKind::pause_modes; empty: the first
  std::string check;       // kCheckChecksums: what a server has loaded is compared; empty: it is not
  // Of one call, and of the call with which a server reads a whole model, or a hook.
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds load_timeout{600'000};
  int attempts = 3;
  std::chrono::milliseconds first_backoff{200};  // doubled after every failed attempt, up to 10 s
};

using EngineOption = std::string EngineOptions::*;

// An option that only some kinds use.
struct DriverOption {
  EngineOption option;
  std::string_view name;         // as users write it
  std::string_view needed = {};  // what these kinds need, for the error where it is left out; empty: it may be
};

struct DriverKind {
  std::string_view name;
  // The engine is notified of versions. False: engines open the published directory whenever they like, or their memory
  // is all there is.
  bool notifies = true;
  // The driver pauses and resumes one server, which holds one model, and can ask it what it serves. After a load that
  // failed half-way, the driver makes the server load the previous version again. That version's directory stays.
  bool controls_server = false;
  std::span<const DriverOption> options;          // in addition to those that every kind uses
  std::span<const std::string_view> pause_modes;  // how requests in progress are paused; the first is the default
  std::string_view pause_modes_note;              // for the error where another one is given
  // `options` are checked, and have a pause mode where there is one.
  Result<std::unique_ptr<EngineDriver>> (*create)(const DriverKind& kind, EngineOptions options);
};

// All kinds, "none" first.
std::span<const DriverKind> DriverKinds();

// Null: there is none of this name.
const DriverKind* FindDriverKind(std::string_view name);

// "none, hook, sglang or vllm": all kinds, or those that use `option`.
std::string DriverKindNames(EngineOption option = nullptr);

// kConfig names the option that is missing, not of this kind, or wrong.
Result<std::unique_ptr<EngineDriver>> NewEngineDriver(EngineOptions options);

}  // namespace lockstep::engine
