// How a receiver's engines are configured: by one [[engine]] table each, and by defaults for what a table does not set.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/config.h"
#include "raas_receiver/engine/drivers/driver_kind.h"
#include "raas_receiver/engine/engine.h"

namespace lockstep::receiver {

// The settings of one engine.
struct EngineSettings {
  std::string model;  // that it gets; empty: every one
  engine::EngineConfig engine;
  engine::EngineOptions driver;
};

// Reads the engines' settings from flags and [[engine]] tables.
class EngineSettingsReader {
 public:
  // Adds the flags --engine and --engine-*.
  void AddTo(config::ConfigParser& parser);
  // Returns the settings of each engine; of one engine of kind "none" when no engine is configured. `models`: the
  // models that the receiver follows. kConfig names the setting and what it must be. REQUIRES `parser` to have parsed.
  Result<std::vector<EngineSettings>> Read(const config::ConfigParser& parser, const std::vector<std::string>& models);
  // Returns the settings of an engine without a table; its URL means nothing. Errors as Read().
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
