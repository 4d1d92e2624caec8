#include "raas_receiver/receiver/receiver_config.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "common/base/text.h"
#include "common/base/version.h"
#include "common/config/config.h"
#include "common/model/model_name.h"
#include "common/os/places.h"
#include "common/payload/payload.h"
#include "common/telemetry/build_info.h"
#include "common/wire/frame.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::receiver {
namespace {

namespace fs = std::filesystem;
using config::ConfigParser;
using std::chrono::milliseconds;

// Settings that are not kept as they are written.
struct RawSettings {
  std::vector<std::string> sources = {"auto"};
  std::string log_keys;
  std::string archive;
  std::string archive_key;
  std::string listen;
  std::string health_listen;
  std::string metrics_listen;
  std::string control_socket = "auto";
  EngineSettingsReader engines;
  std::vector<std::string> allow_engines;
};

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "receiver";
}

std::string Absolute(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

bool IsBelow(const std::string& path, const std::string& directory) {
  std::error_code error;
  const std::string relative = fs::weakly_canonical(path, error).lexically_relative(fs::canonical(directory, error));
  return !relative.empty() && !relative.starts_with("..");
}

std::string VersionText() {
  return Cat("raas_receiver ", kVersion, " (", telemetry::BuildRevision(), ") proto lockstep.v1, wire format ",
             wire::kWireFormat, ", payload format ", payload::kPayloadFormat, ", replica state format ",
             replica::kReplicaStateFormat);
}

void AddOptions(ConfigParser& parser, RawSettings& to, ReceiverConfig& config) {
  constexpr std::chrono::days kDay{1};
  constexpr std::chrono::minutes kMostReaderGrace{5};  // a session that waits for longer counts as stuck
  parser.Add("name", &config.name, "this receiver's name, shown by the agent (default: the host's)");
  parser.Add("source", &to.sources,
             "where versions come from: an agent's control plane, HOST:PORT or unix:PATH, or a log, file:///DIRECTORY "
             "or s3://BUCKET/PREFIX; A+B+C: agents that have a part of each model; "
             "repeat for several, the preferred one first; auto: the agent of this host, at its usual place");
  parser.Add("some-parts", &config.some_parts,
             "agents of a source may have some parts of each model: these are followed without the others, for an "
             "engine whose other hosts have them");
  parser.Add("log-keys", &to.log_keys,
             "PEM file of Ed25519 public keys: only a log that one of them has signed is read; empty: any");
  parser.Add("log-poll", &config.log_poll, "how often a log is looked at for a newer version", milliseconds(10), kDay);
  parser.Add("log-memory-bytes", &config.log_memory_bytes,
             "memory for deltas of a log, for each model: more of them come in several steps, a larger one alone");
  parser.Add("log-max-age", &config.log_max_age,
             "not ready when the log's writer wrote its head so long ago, by its clock and this host's; a writer does "
             "it every 5 minutes at least; 0: ready whatever its age",
             {}, 365 * kDay);
  parser.Add("archive", &to.archive,
             "log that versions are written to, for other receivers to read: file:///DIRECTORY or s3://BUCKET/PREFIX; "
             "empty: none");
  parser.Add("archive-key", &to.archive_key,
             "PEM file of the Ed25519 private key that signs the log, and receipts; empty: unsigned");
  parser.Add("archive-keep-bytes", &config.archive.keep_bytes,
             "how long the log may be, for each model: old versions go first; 0: twice the model");
  parser.Add("archive-keep-age", &config.archive.keep_age, "older versions go from the log, too; 0: whatever their age",
             {}, 3650 * kDay);
  parser.Add("archive-grace", &config.archive.grace,
             "how long what has gone from the log stays in the store, for readers that have begun", {}, kDay);
  parser.Add("archive-bytes-per-s", &config.archive.bytes_per_s, "how fast the log is written; 0: as fast as it goes");
  parser.Add("model", &config.models, "a model to follow; repeat for several");
  parser.Add("root", &config.root,
             "directory, best on a tmpfs, where versions are published as <root>/<model>/current; auto: "
             "/dev/shm/lockstep-receiver, or for a user who may not write to /run/raas-receiver "
             "/dev/shm/lockstep-<uid>/receiver/replicas");
  parser.Add("state-dir", &config.state_dir,
             "directory on a disk, for what is remembered of logs and of what engines served; empty: $STATE_DIRECTORY "
             "(systemd), "
             "else $XDG_STATE_HOME/lockstep, else ~/.local/state/lockstep");
  parser.Add("listen", &to.listen, "own gRPC address, HOST:PORT; port 0: the system chooses; empty: no TCP");
  parser.Add("control-socket", &to.control_socket,
             "unix socket of the own control plane, for processes of this user and root; auto: control.sock in "
             "/run/raas-receiver, or for a user who may not write there in /dev/shm/lockstep-<uid>/receiver; none");
  parser.Add("health-listen", &to.health_listen,
             "HOST:PORT that answers questions about health, from any peer, in plaintext; empty: none");
  parser.Add("metrics-listen", &to.metrics_listen,
             "HOST:PORT that answers GET /metrics, from any peer, in plaintext, for Prometheus; empty: none");
  parser.Add("address-file", &config.address_file,
             "file that holds, as JSON, where the receiver listens, while it does");
  parser.Add("owners", &config.owners, "file; the receiver ends once no process holds a lock (flock) on it");
  parser.Add("lanes", &config.lanes, "TCP connections per pull", 1, 64);
  parser.Add("threads", &config.threads, "threads that apply and hash; 0: one per core", 0, 1024);
  parser.Add("follow", &config.follow, "take every new version by itself; false: only when asked to pull");
  parser.Add("streaming", &config.streaming, "take its changes while the trainer still writes it");
  parser.Add("assets", &config.assets,
             "directory whose files (config, tokenizer), in directories too, are linked into every published version");
  to.engines.AddTo(parser);
  parser.Add("allow-engines", &to.allow_engines,
             "ports of this host, PORT or FIRST-LAST, whose servers' ranks make an engine by themselves");
  parser.Add(
      "engine-socket", &config.engine_socket,
      "unix socket where ranks attach, to be written in place, or to compare what they loaded; empty: engine.sock "
      "next to --control-socket where an engine is written in place or may come by itself, else none");
  parser.Add("keep-delta-bytes", &config.keep_delta_bytes,
             "memory for applied deltas, kept to bring the other replica and engines forward");
  parser.Add("scrub-round", &config.scrub_round,
             "time in which all that is held is hashed again once, to find memory that lost bits; 0: never", {},
             30 * kDay);
  parser.Add("reader-grace", &config.reader_grace,
             "how long to wait for a reader of an old version before its file is replaced; 5 minutes at most", {},
             kMostReaderGrace);
  parser.Add("unready-after", &config.unready_after,
             "not ready when the agent has had a newer version for so long; 0: ready all the same", {}, 365 * kDay);
  rpc::AddTlsOptions(parser, config.tls);
  parser.Add("tls-server-name", &config.tls.files.server_name,
             "DNS name, IP or URI (spiffe://...) that the agent's certificate must have; empty: the host in --source");
  parser.Add("log-level", &config.log_level, "debug, info, warn or error");
  parser.Add("log-format", &config.log_format, "auto, text or json");
  parser.Add("drain-timeout", &config.drain_timeout, "time to end in after SIGTERM", {}, kDay);
  parser.Hide("reader-grace");
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

// "30000", "30000-30100"
Result<std::vector<std::pair<uint16_t, uint16_t>>> ReadPorts(const ConfigParser& parser,
                                                             const std::vector<std::string>& texts) {
  std::vector<std::pair<uint16_t, uint16_t>> ports;
  for (const std::string& text : texts) {
    const size_t dash = std::min(text.find('-'), text.size());
    const auto read = [&](std::string_view digits) {
      const auto at = net::ParseHostPort(Cat("localhost:", digits));
      return at.ok() ? at->port : uint16_t{0};
    };
    const uint16_t first = read(text.substr(0, dash));
    const uint16_t last = dash == text.size() ? first : read(text.substr(dash + 1));
    if (first == 0 || last < first) {
      return Status(ErrorCode::kConfig,
                    Cat(parser.WrittenAs("allow-engines"), ": \"", CleanText(text, 40), "\" is no PORT or FIRST-LAST"));
    }
    ports.emplace_back(first, last);
  }
  return ports;
}

Status CheckEngines(const ConfigParser& parser, RawSettings& raw, ReceiverConfig& config) {
  LS_ASSIGN_OR_RETURN(config.engines, raw.engines.Read(parser, config.models));
  const EngineSettings& first = config.engines.front();
  config.admission.open = config.engines.size() == 1 && first.engine.in_place && first.driver.kind == "none";
  LS_ASSIGN_OR_RETURN(config.admission.ports, ReadPorts(parser, raw.allow_engines));
  const bool in_place = std::ranges::any_of(config.engines, [](const auto& each) { return each.engine.in_place; });
  if (config.engine_socket.empty() && (in_place || !config.admission.ports.empty())) {
    if (config.control_socket.empty()) {
      return {ErrorCode::kConfig,
              "engine-load in-place and allow-engines need engine-socket, where ranks attach, since there is no "
              "control-socket"};
    }
    config.engine_socket = fs::path(config.control_socket).parent_path() / "engine.sock";
  }
  LS_ASSIGN_OR_RETURN(const EngineSettings others, raw.engines.Others(parser));
  config.admission.config = others.engine;
  config.admission.driver = others.driver;
  if (!config.engine_socket.empty()) config.engine_socket = Absolute(config.engine_socket);
  return OkStatus();
}

// What a name stands for is seen when it is called.
bool MayBePlain(const ReceiverConfig& config, const std::string& host) {
  if (net::HostPort{host}.IsLoopback()) return true;
  asio::error_code is_name;
  const auto address = asio::ip::make_address(host, is_name);
  const net::Networks& plain = config.tls.files.plain;
  return is_name ? !plain.empty() : plain.Contain(address);
}

Status CheckPlaintext(const ConfigParser& parser, const ReceiverConfig& config, const net::ControlAddress& agent) {
  if (config.tls.files.configured() || agent.IsSocket() || MayBePlain(config, agent.host)) return OkStatus();
  return {ErrorCode::kConfig,
          Cat(parser.WrittenAs("source"), ": ", agent.text, " is beyond loopback, where weights and versions would ",
              "come in plaintext; give --tls-cert, --tls-key and --tls-ca, or name its network with ",
              "--allow-insecure-network CIDR")};
}

Result<std::shared_ptr<objects::ObjectStore>> OpenLog(const ConfigParser& parser, const char* option,
                                                      const std::string& url, const ReceiverConfig& config) {
  auto store = objects::OpenObjectStore(url, config.tls.files.plain);
  if (!store.ok()) return Status(ErrorCode::kConfig, Cat(parser.WrittenAs(option), ": ", store.status().message()));
  const std::string host = (*store)->plain_host();
  if (host.empty() || MayBePlain(config, host)) return store;
  return Status(ErrorCode::kConfig,
                Cat(parser.WrittenAs(option), ": ", host, " is beyond loopback, where weights would ",
                    "travel in plaintext; give an https:// endpoint, or name its network with ",
                    "--allow-insecure-network CIDR"));
}

// Nothing: the environment names none.
std::string DefaultStateDir() {
  const auto below = [](const char* variable, std::string_view rest) {
    const char* value = std::getenv(variable);
    return value == nullptr || value[0] != '/' ? std::string() : Cat(value, rest);
  };
  for (const auto& [variable, rest] : {std::pair("STATE_DIRECTORY", ""), std::pair("XDG_STATE_HOME", "/lockstep"),
                                       std::pair("HOME", "/.local/state/lockstep")}) {
    if (std::string found = below(variable, rest); !found.empty()) return found;
  }
  return "";
}

Status CheckStateDir(const ConfigParser& parser, ReceiverConfig& config) {
  const bool reads = std::ranges::any_of(config.sources, [](const Source& each) { return each.log != nullptr; });
  if (config.state_dir.empty()) config.state_dir = DefaultStateDir();
  if (config.state_dir.empty()) {
    if (!reads && config.archive.store == nullptr) return OkStatus();  // receipts are in memory
    return {ErrorCode::kConfig,
            Cat(parser.WrittenAs("state-dir"), " is empty, and there is no $HOME; name a directory ",
                "on a disk, for what is remembered of the log")};
  }
  config.state_dir = Absolute(config.state_dir);
  return OkStatus();
}

Status CheckSources(const ConfigParser& parser, const RawSettings& raw, ReceiverConfig& config) {
  for (const std::string& given : raw.sources) {
    const std::string text = given == "auto" ? Cat("unix:", os::FindSocket(os::kAgentPlace, "control.sock")) : given;
    Source source{.text = text};
    if (text.find("://") != std::string::npos) {
      LS_ASSIGN_OR_RETURN(source.log, OpenLog(parser, "source", text, config));
    } else {
      for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find('+', at), text.size());
        const Result<net::ControlAddress> agent = net::ParseControlAddress(text.substr(at, end - at));
        if (!agent.ok()) return {ErrorCode::kConfig, Cat(parser.WrittenAs("source"), ": ", agent.status().message())};
        LS_RETURN_IF_ERROR(CheckPlaintext(parser, config, *agent));
        source.agents.push_back(*agent);
        at = end + 1;
      }
    }
    config.sources.push_back(std::move(source));
  }
  if (config.sources.empty()) return {ErrorCode::kUsage, "no source; give one with --source HOST:PORT"};
  const bool has_log = std::ranges::any_of(config.sources, [](const Source& each) { return each.log != nullptr; });
  if (config.some_parts && has_log) {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("some-parts"), ": a log has one model, and not parts of it")};
  }
  if (raw.log_keys.empty()) return OkStatus();
  auto keys = versionlog::TrustedKeys::Read(raw.log_keys);
  if (!keys.ok()) return keys.status().WithContext(parser.WrittenAs("log-keys"));
  config.log_keys = *std::move(keys);
  return OkStatus();
}

Status CheckArchive(const ConfigParser& parser, const RawSettings& raw, ReceiverConfig& config) {
  if (!raw.archive_key.empty()) {
    auto key = versionlog::SigningKey::Read(raw.archive_key);
    if (!key.ok()) return key.status().WithContext(parser.WrittenAs("archive-key"));
    config.archive.key = *std::move(key);
  }
  if (raw.archive.empty()) return OkStatus();
  LS_ASSIGN_OR_RETURN(config.archive.store, OpenLog(parser, "archive", raw.archive, config));
  const bool reads_it = std::ranges::any_of(config.sources, [&](const Source& source) {
    return source.log != nullptr && source.log->url() == config.archive.store->url();
  });
  if (config.some_parts) {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("archive"), ": a log of some parts cannot be written; leave out ",
                                    "some-parts for a log of one agent's part")};
  }
  const auto is_parted = [](const Source& source) { return source.agents.size() > 1; };
  if (std::ranges::any_of(config.sources, is_parted)) {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("archive"), ": a log of a model in parts cannot be written; give ",
                                    "each agent's part a receiver, with a log, of its own")};
  }
  if (reads_it) {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("archive"), ": ", raw.archive, " is a source, too")};
  }
  const auto log = std::ranges::find_if(config.sources, [](const Source& each) { return each.log != nullptr; });
  if (raw.archive_key.empty() || log == config.sources.end() || !config.log_keys.empty()) return OkStatus();
  return {ErrorCode::kConfig, Cat(parser.WrittenAs("archive-key"), ": without --log-keys whoever can write ", log->text,
                                  " decides what this receiver signs; name the keys that have signed it")};
}

Status Check(const ConfigParser& parser, RawSettings& raw, ReceiverConfig& config) {
  LS_RETURN_IF_ERROR(CheckModels(parser, config.models));
  LS_RETURN_IF_ERROR(rpc::PrepareDaemonTls(parser, config.tls, !raw.listen.empty()));
  LS_RETURN_IF_ERROR(CheckSources(parser, raw, config));
  LS_RETURN_IF_ERROR(CheckArchive(parser, raw, config));
  LS_RETURN_IF_ERROR(CheckStateDir(parser, config));
  if (!raw.listen.empty()) {
    LS_ASSIGN_OR_RETURN(config.listen,
                        net::CheckListenAddress(parser.WrittenAs("listen"), raw.listen,
                                                config.tls.files.configured() || !config.tls.plain.empty()));
  }
  if (!raw.health_listen.empty()) {
    LS_ASSIGN_OR_RETURN(config.health_listen,
                        net::CheckListenAddress(parser.WrittenAs("health-listen"), raw.health_listen, true));
  }
  if (!raw.metrics_listen.empty()) {
    LS_ASSIGN_OR_RETURN(config.metrics_listen,
                        net::CheckListenAddress(parser.WrittenAs("metrics-listen"), raw.metrics_listen, true));
  }
  const os::Directories usual = os::PlaceToServe(os::kReceiverPlace);
  if (raw.control_socket == "auto") raw.control_socket = usual.sockets + "/control.sock";
  if (raw.control_socket != "none") config.control_socket = Absolute(raw.control_socket);
  if (!config.assets.empty() && !fs::is_directory(config.assets)) {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("assets"), ": ", config.assets, " is not a directory")};
  }
  if (config.name.empty()) config.name = HostName();
  config.root = config.root == "auto" ? usual.memory : Absolute(config.root);
  if (!config.assets.empty()) config.assets = Absolute(config.assets);
  if (!config.assets.empty() && IsBelow(config.root, config.assets)) {
    return {ErrorCode::kConfig,
            Cat(parser.WrittenAs("assets"), ": ", config.root, ", where versions are written, is in ", config.assets,
                ", and each would have the others among its files; move one")};
  }
  if (config.threads == 0) config.threads = std::max(1u, std::thread::hardware_concurrency());
  return CheckEngines(parser, raw, config);
}

}  // namespace

Result<std::optional<ReceiverConfig>> ParseReceiverConfig(int argc, const char* const* argv) {
  RawSettings raw;
  ReceiverConfig config;
  ConfigParser parser({.program = "raas_receiver",
                       .about = "Keeps the replicas of an inference server in lock step with a trainer.",
                       .version = VersionText()});
  AddOptions(parser, raw, config);
  LS_ASSIGN_OR_RETURN(const config::ParseOutcome outcome, parser.Parse(argc, argv));
  if (outcome == config::ParseOutcome::kExit) return std::optional<ReceiverConfig>();
  LS_RETURN_IF_ERROR(Check(parser, raw, config));
  return std::optional(std::move(config));
}

}  // namespace lockstep::receiver
