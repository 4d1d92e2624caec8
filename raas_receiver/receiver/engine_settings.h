// How a receiver's engines are configured: what each says, and what holds for those that say nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/config.h"
#include "raas_receiver/engines/driver_kind.h"
#include "raas_receiver/session/engine_route.h"

namespace lockstep::receiver {

// One engine.
struct EngineSettings {
  std::string model;  // that it gets; empty: every one
  session::EngineConfig engine;
  engines::EngineOptions driver;
};

// As they are written.
class WrittenEngines {
 public:
  // Adds the flags --engine and --engine-*.
  void AddTo(config::ConfigParser& parser);
  // What they come to, one for each; without any, one of kind "none". `models`: that are followed. kConfig names
  // the setting and what it wants.
  Result<std::vector<EngineSettings>> Read(const config::ConfigParser& parser, const std::vector<std::string>& models);
  // Of a server of which nothing is written; its URL is anything. Errors as above.
  Result<EngineSettings> Others(const config::ConfigParser& parser) const;

 private:
  struct Values {
    std::string load = "directory";
    std::string key_file;
    std::string user;
    std::string pause_mode;
    std::string check;
    std::chrono::milliseconds timeout{60'000};
    std::chrono::milliseconds load_timeout{600'000};
    std::chrono::milliseconds late_after{120'000};
    std::chrono::milliseconds pause_timeout{30'000};
    uint64_t attempts = 3;
    uint64_t stage_bytes = 1ull << 30;
  };
  // The flags of `defaults_` and the keys of an engine's table are these options, with `prefix` before their names and
  // `where` behind their help.
  static void AddValues(config::ConfigParser& parser, Values& to, const std::string& prefix, const std::string& where);
  static Status CheckModel(const std::string& where, const EngineSettings& settings,
                           const std::vector<std::string>& models);
  Result<EngineSettings> ReadOne(const config::ConfigTable& table) const;
  Result<EngineSettings> Check(const std::string& where, const Values& values, EngineSettings settings) const;

  std::vector<config::ConfigTable> engines_;
  Values defaults_;
};

}  // namespace lockstep::receiver
