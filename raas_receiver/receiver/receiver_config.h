// How raas_receiver is configured: flags, environment, file.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/net/host_port.h"
#include "common/objects/object_store.h"
#include "common/rpc/tls_config.h"
#include "common/versionlog/keys.h"
#include "common/versionlog/log_reader.h"
#include "raas_receiver/engine/engines.h"
#include "raas_receiver/receiver/engine_settings.h"

namespace lockstep::receiver {

// Where versions come from: an agent, several that have a part each, or a log.
struct Source {
  std::string text;                           // as it was given
  std::vector<net::ControlAddress> agents;    // none: it is a log; several: each has a part
  std::shared_ptr<objects::ObjectStore> log;  // null: it is no log
};

// The log that is written; without a store: none.
struct ArchiveConfig {
  std::shared_ptr<objects::ObjectStore> store;
  std::optional<versionlog::SigningKey> key;
  uint64_t keep_bytes = 0;
  std::chrono::milliseconds keep_age{0};
  std::chrono::milliseconds grace{15 * 60'000};
  uint64_t bytes_per_s = 0;
};

struct ReceiverConfig {
  std::string name;
  std::vector<Source> sources;       // one at least, in order of preference
  bool some_parts = false;           // their agents have some parts of the models, and no others are followed
  versionlog::TrustedKeys log_keys;  // of logs among them
  std::chrono::milliseconds log_poll{1000};
  uint64_t log_memory_bytes = versionlog::kLogMemoryBytes;
  std::chrono::milliseconds log_max_age{0};
  ArchiveConfig archive;
  std::vector<std::string> models;
  std::string root = "auto";                    // absolute once it is parsed, as other paths
  std::string state_dir;                        // what outlives a reboot; empty: nothing does
  std::string assets;                           // empty: none
  std::optional<net::HostPort> listen;          // nothing: no TCP
  std::string control_socket;                   // empty: none
  std::optional<net::HostPort> health_listen;   // nothing: none
  std::optional<net::HostPort> metrics_listen;  // nothing: none
  rpc::DaemonTls tls;
  std::string address_file;  // empty: none
  std::string owners;        // empty: it has none
  uint64_t lanes = 4;
  uint64_t threads = 0;
  bool follow = true;
  bool streaming = true;
  std::vector<EngineSettings> engines;  // one at least
  engine::EngineAdmission admission;    // of others
  std::string engine_socket;            // empty: no rank can attach
  uint64_t keep_delta_bytes = 512ull << 20;
  std::chrono::milliseconds scrub_round{3'600'000};
  std::chrono::milliseconds reader_grace{0};
  std::chrono::milliseconds unready_after{0};
  std::chrono::milliseconds drain_timeout{10'000};
  std::string log_level = "info";
  std::string log_format = "auto";
};

// Returns no value when --help or the like was answered: exit with 0. kUsage or kConfig names the setting.
Result<std::optional<ReceiverConfig>> ParseReceiverConfig(int argc, const char* const* argv);

}  // namespace lockstep::receiver
