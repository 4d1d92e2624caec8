#include "raas_receiver/receiver/receiver_config.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <set>
#include <thread>

#include "common/base/text.h"
#include "common/config/config.h"
#include "common/model/model_name.h"
#include "common/payload/payload.h"
#include "common/telemetry/build_info.h"
#include "common/wire/frame.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::receiver {
namespace {

namespace fs = std::filesystem;
using config::ConfigParser;

// The settings as they are written, before they are checked.
struct Written {
  std::string name;
  std::string agent = "127.0.0.1:7700";
  std::vector<std::string> models;
  std::string root = "/dev/shm/lockstep-receiver";
  std::string listen = "127.0.0.1:7710";
  std::string address_file;
  uint64_t lanes = 4;
  uint64_t threads = 0;
  bool follow = true;
  bool live = true;
  std::string assets;
  std::string hook;
  std::string engine = "none";
  std::string engine_url;
  std::string engine_key_file;
  std::string engine_pause_mode;
  uint64_t engine_timeout_ms = 60'000;
  uint64_t engine_load_timeout_ms = 600'000;
  uint64_t engine_attempts = 3;
  std::string engine_load = "directory";
  std::string engine_socket;
  uint64_t engine_hold_timeout_ms = 30'000;
  uint64_t engine_stage_bytes = 1ull << 30;
  uint64_t keep_delta_bytes = 512ull << 20;
  uint64_t reader_grace_ms = 0;
  bool allow_insecure_network = false;
  std::string log_level = "info";
  std::string log_format = "auto";
  uint64_t drain_timeout_ms = 10'000;
};

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "receiver";
}

std::string VersionText() {
  return Cat("raas_receiver ", telemetry::kProjectVersion, " (", telemetry::BuildRevision(),
             ") proto lockstep.v1, wire format ", wire::kWireFormat, ", payload format ", payload::kPayloadFormat,
             ", replica state format ", replica::kReplicaStateFormat);
}

void AddEngineOptions(ConfigParser& parser, Written& to) {
  const auto add = [&](const char* name, std::string* target, engines::EngineOption option, const char* help) {
    parser.Add(name, target, Cat("engine ", engines::DriverKindNames(option), ": ", help));
  };
  parser.Add("engine", &to.engine, Cat("who is notified of every version: ", engines::DriverKindNames()));
  add("hook", &to.hook, &engines::EngineOptions::command,
      "command run by /bin/sh after every commit, with LOCKSTEP_* variables");
  add("engine-url", &to.engine_url, &engines::EngineOptions::url, "the server, http://HOST:PORT");
  add("engine-key-file", &to.engine_key_file, &engines::EngineOptions::key_file,
      "file with the server's (admin) API key");
  add("engine-pause-mode", &to.engine_pause_mode, &engines::EngineOptions::pause_mode,
      "how requests in progress are paused");
  parser.Add("engine-timeout-ms", &to.engine_timeout_ms, "time after which a call to the engine has failed");
  parser.Add("engine-load-timeout-ms", &to.engine_load_timeout_ms, "the same, of the call that reads a whole model");
  parser.Add("engine-attempts", &to.engine_attempts, "how often an engine is made to take one version");
  parser.Add("engine-load", &to.engine_load,
             "directory: the engine loads what is published; in-place: its ranks lend the memory of their parameters");
  parser.Add("engine-socket", &to.engine_socket, "unix socket where ranks lend their memory");
  parser.Add("engine-hold-timeout-ms", &to.engine_hold_timeout_ms, "time for a rank to stop, or to resume");
  parser.Add("engine-stage-bytes", &to.engine_stage_bytes, "memory for writes worked out before the engine is paused");
}

void AddOptions(ConfigParser& parser, Written& to) {
  parser.Add("name", &to.name, "this receiver's name, shown by the agent (default: the host's)");
  parser.Add("agent", &to.agent, "the trainer agent's gRPC address, HOST:PORT");
  parser.Add("model", &to.models, "a model to follow; repeat for several");
  parser.Add("root", &to.root, "directory, best on a tmpfs, where versions are published as <root>/<model>/current");
  parser.Add("listen", &to.listen, "own gRPC address, HOST:PORT; port 0: the system chooses");
  parser.Add("address-file", &to.address_file, "file that holds, as JSON, where the receiver listens, while it does");
  parser.Add("lanes", &to.lanes, "TCP connections per pull");
  parser.Add("threads", &to.threads, "threads that apply and hash; 0: one per core");
  parser.Add("follow", &to.follow, "take every new version by itself; false: only when asked to pull");
  parser.Add("live", &to.live, "take its changes while the trainer still writes it");
  parser.Add("assets", &to.assets, "directory whose files (config, tokenizer) are linked into every published version");
  AddEngineOptions(parser, to);
  parser.Add("keep-delta-bytes", &to.keep_delta_bytes,
             "memory for applied deltas, kept to bring the other replica and engines forward");
  parser.Add("reader-grace-ms", &to.reader_grace_ms,
             "how long to wait for a reader of an old version before its file is replaced");
  parser.Add("allow-insecure-network", &to.allow_insecure_network, "listen beyond loopback without authentication");
  parser.Add("log-level", &to.log_level, "debug, info, warn or error");
  parser.Add("log-format", &to.log_format, "auto, text or json");
  parser.Add("drain-timeout-ms", &to.drain_timeout_ms, "time to end in after SIGTERM");
}

// kConfig unless `value` lies in [least, most].
Status CheckRange(const ConfigParser& parser, const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return OkStatus();
  return {ErrorCode::kConfig, Cat(parser.WrittenAs(name), " is ", value, "; it must be ", least, " to ", most)};
}

Status CheckModels(const ConfigParser& parser, const std::vector<std::string>& models) {
  if (models.empty()) return {ErrorCode::kUsage, "no model to follow; name at least one with --model NAME"};
  std::set<std::string> seen;
  for (const std::string& model : models) {
    Status status = model::CheckModelName(model);
    if (status.ok() && !seen.insert(model).second) status = {ErrorCode::kConfig, Cat(model, " is named twice")};
    if (!status.ok()) return {ErrorCode::kConfig, Cat(parser.WrittenAs("model"), ": ", status.message())};
  }
  return OkStatus();
}

Status CheckRanges(const ConfigParser& parser, const Written& written) {
  constexpr uint64_t kDayMs = 24 * 3600 * 1000;
  LS_RETURN_IF_ERROR(CheckRange(parser, "lanes", written.lanes, 1, 64));
  LS_RETURN_IF_ERROR(CheckRange(parser, "threads", written.threads, 0, 1024));
  LS_RETURN_IF_ERROR(CheckRange(parser, "engine-timeout-ms", written.engine_timeout_ms, 1, kDayMs));
  LS_RETURN_IF_ERROR(CheckRange(parser, "engine-load-timeout-ms", written.engine_load_timeout_ms, 1, kDayMs));
  LS_RETURN_IF_ERROR(CheckRange(parser, "engine-attempts", written.engine_attempts, 1, 100));
  LS_RETURN_IF_ERROR(CheckRange(parser, "engine-hold-timeout-ms", written.engine_hold_timeout_ms, 1, kDayMs));
  LS_RETURN_IF_ERROR(CheckRange(parser, "reader-grace-ms", written.reader_grace_ms, 0, kDayMs));
  return CheckRange(parser, "drain-timeout-ms", written.drain_timeout_ms, 0, kDayMs);
}

Status CheckEngine(const ConfigParser& parser, const Written& written, ReceiverConfig& config) {
  config.engine = {.kind = written.engine,
                   .command = written.hook,
                   .url = written.engine_url,
                   .key_file = written.engine_key_file,
                   .pause_mode = written.engine_pause_mode,
                   .timeout = std::chrono::milliseconds(written.engine_timeout_ms),
                   .load_timeout = std::chrono::milliseconds(written.engine_load_timeout_ms),
                   .attempts = static_cast<int>(written.engine_attempts)};
  config.engine.kind = engines::MeantDriverKind(config.engine);
  LS_ASSIGN_OR_RETURN(const auto driver, engines::NewEngineDriver(config.engine));
  if (driver->controls_server() && written.models.size() > 1) {
    return {ErrorCode::kConfig,
            Cat("a ", driver->kind(), " server holds one model: run a receiver for each model that has one")};
  }
  if (written.engine_load != "directory" && written.engine_load != "in-place") {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("engine-load"), " is \"", written.engine_load,
                                    "\"; it must be directory or in-place")};
  }
  config.engine_in_place = written.engine_load == "in-place";
  if (config.engine_in_place == written.engine_socket.empty()) {
    return {ErrorCode::kConfig, "engine-load in-place and engine-socket go together: give both or neither"};
  }
  if (config.engine_in_place) config.engine_socket = fs::absolute(written.engine_socket).lexically_normal().string();
  config.engine_hold_timeout = std::chrono::milliseconds(written.engine_hold_timeout_ms);
  config.engine_stage_bytes = written.engine_stage_bytes;
  return OkStatus();
}

Result<ReceiverConfig> Check(const ConfigParser& parser, const Written& written) {
  ReceiverConfig config;
  LS_RETURN_IF_ERROR(CheckModels(parser, written.models));
  LS_RETURN_IF_ERROR(CheckRanges(parser, written));
  const Result<net::HostPort> agent = net::ParseHostPort(written.agent);
  if (!agent.ok()) return Status(ErrorCode::kConfig, Cat(parser.WrittenAs("agent"), ": ", agent.status().message()));
  config.agent = *agent;
  LS_ASSIGN_OR_RETURN(config.listen, net::CheckListenAddress(parser.WrittenAs("listen"), written.listen,
                                                             written.allow_insecure_network));
  config.address_file = written.address_file;
  if (!written.assets.empty() && !fs::is_directory(written.assets)) {
    return Status(ErrorCode::kConfig, Cat(parser.WrittenAs("assets"), ": ", written.assets, " is not a directory"));
  }
  config.name = written.name.empty() ? HostName() : written.name;
  config.models = written.models;
  config.root = fs::absolute(written.root).lexically_normal().string();
  config.assets = written.assets.empty() ? "" : fs::absolute(written.assets).lexically_normal().string();
  config.lanes = written.lanes;
  config.threads = written.threads > 0 ? written.threads : std::max(1u, std::thread::hardware_concurrency());
  config.follow = written.follow;
  config.live = written.live;
  LS_RETURN_IF_ERROR(CheckEngine(parser, written, config));
  config.keep_delta_bytes = written.keep_delta_bytes;
  config.reader_grace = std::chrono::milliseconds(written.reader_grace_ms);
  config.drain_timeout = std::chrono::milliseconds(written.drain_timeout_ms);
  config.log_level = written.log_level;
  config.log_format = written.log_format;
  return config;
}

}  // namespace

Result<std::optional<ReceiverConfig>> ParseReceiverConfig(int argc, const char* const* argv) {
  Written written;
  ConfigParser parser({.program = "raas_receiver",
                       .about = "Keeps the replicas of an inference server in lock step with a trainer agent.",
                       .version = VersionText()});
  AddOptions(parser, written);
  LS_ASSIGN_OR_RETURN(const config::ParseOutcome outcome, parser.Parse(argc, argv));
  if (outcome == config::ParseOutcome::kExit) return std::optional<ReceiverConfig>();
  LS_ASSIGN_OR_RETURN(ReceiverConfig config, Check(parser, written));
  return std::optional(std::move(config));
}

}  // namespace lockstep::receiver
