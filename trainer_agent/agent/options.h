// How a trainer_agent is configured.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/net/host_port.h"
#include "common/payload/codec_level.h"
#include "common/rpc/tls_config.h"

namespace lockstep::agent {

inline constexpr uint16_t kLanePort = 7701;

struct AgentOptions {
  std::string socket = "auto";  // a path once it is parsed, as those below
  std::string trainer_group;
  std::string local_socket = "auto";
  std::string control_socket = "auto";
  std::string listen;
  std::string health_listen;
  std::string metrics_listen;
  std::string lane_listen;  // empty: the host of `listen` and kLanePort, or any port of loopback
  std::string lane_advertise;
  std::string address_file;
  std::string owners;
  std::string segment_dir = "auto";  // a path once it is parsed
  std::string segments = "tmpfs";
  uint64_t block_bytes = 256 * 1024;
  uint64_t retain_bytes = 2ull << 30;
  std::chrono::milliseconds scrub_round{3'600'000};
  std::string codec = "fast";
  uint64_t threads = 0;
  uint64_t max_pulls = 256;
  uint64_t max_lanes = 16;
  uint64_t lane_rate_limit = 0;
  uint64_t receiver_rate_limit = 0;
  rpc::DaemonTls tls;
  std::string log_level = "info";
  std::string log_format = "auto";
  std::chrono::milliseconds drain_timeout{10'000};

  // Filled by ParseAgentOptions().
  std::optional<gid_t> trainer_gid;             // nothing: ranks of our user and root's alone
  std::optional<net::HostPort> listen_address;  // nothing: no TCP
  std::optional<net::HostPort> health_address;  // nothing: none
  std::optional<net::HostPort> metrics_address;
  net::HostPort lane_address;
  payload::CodecLevel codec_level = payload::CodecLevel::kFast;
};

// kUsage, kConfig: what is wrong with the command line, the environment or the file.
Result<config::ParseOutcome> ParseAgentOptions(int argc, const char* const* argv, AgentOptions* options);

}  // namespace lockstep::agent
