#include "trainer_agent/agent/options.h"

#include <filesystem>

#include "common/base/text.h"
#include "common/base/version.h"
#include "common/model/layout.h"
#include "common/os/places.h"
#include "common/os/unix_server.h"
#include "common/payload/payload.h"
#include "common/telemetry/build_info.h"
#include "common/wire/frame.h"
#include "trainer_agent/run/control_segment.h"

namespace lockstep::agent {
namespace {

using config::ConfigParser;

// Slower, a lane would take longer for a block than its receiver waits.
constexpr uint64_t kLeastRate = 1 << 20;

Status CheckRate(const ConfigParser& parser, const char* name, uint64_t bytes_per_s) {
  if (bytes_per_s == 0 || bytes_per_s >= kLeastRate) return OkStatus();
  return {ErrorCode::kConfig, Cat(parser.WrittenAs(name), " is ", bytes_per_s, "; give bytes a second, at least ",
                                  kLeastRate, ", or 0 for no limit")};
}

// `path` as it was given, to what it means: `usual` is its name next to the trainers' socket.
Status CheckSocket(const ConfigParser& parser, const char* name, const char* usual, const AgentOptions& options,
                   std::string& path) {
  if (path == "none") path.clear();
  // Receivers have another working directory.
  if (path == "auto") path = std::filesystem::absolute(options.socket).parent_path() / usual;
  if (path.empty() || path.starts_with('/')) return OkStatus();
  return {ErrorCode::kConfig, Cat(parser.WrittenAs(name), " is ", path, "; give an absolute path, auto or none")};
}

Status CheckCodec(const ConfigParser& parser, AgentOptions& options) {
  std::string names;
  for (const payload::CodecLevel level : payload::CodecLevel::All()) {
    if (level->name == options.codec) {
      options.codec_level = level;
      return OkStatus();
    }
    names += Cat(names.empty() ? "" : " or ", level->name);
  }
  return {ErrorCode::kConfig, Cat(parser.WrittenAs("codec"), " is ", options.codec, "; give ", names)};
}

Status Check(const ConfigParser& parser, AgentOptions& options) {
  const os::Directories usual = os::PlaceToServe(os::kAgentPlace);
  if (options.socket == "auto") options.socket = usual.sockets + "/export.sock";
  if (options.segment_dir == "auto") options.segment_dir = usual.memory;
  LS_RETURN_IF_ERROR(CheckSocket(parser, "local-socket", "pull.sock", options, options.local_socket));
  LS_RETURN_IF_ERROR(CheckSocket(parser, "control-socket", "control.sock", options, options.control_socket));
  if (!options.trainer_group.empty()) {
    const Result<gid_t> group = os::FindGroup(options.trainer_group);
    if (!group.ok()) return group.status().WithContext(parser.WrittenAs("trainer-group"));
    options.trainer_gid = *group;
    // A descriptor of a file on a tmpfs is enough to cut it off below all processes that map it.
    if (options.segments != "memfd") {
      return {ErrorCode::kConfig,
              Cat(parser.WrittenAs("trainer-group"), " needs segments = memfd: memory that trainers of ",
                  "other users cannot take away from the agent")};
    }
  }
  LS_RETURN_IF_ERROR(rpc::PrepareDaemonTls(parser, options.tls, !options.listen.empty()));
  const bool anywhere = options.tls.files.configured() || !options.tls.plain.empty();
  if (!options.listen.empty()) {
    LS_ASSIGN_OR_RETURN(options.listen_address,
                        net::CheckListenAddress(parser.WrittenAs("listen"), options.listen, anywhere));
  }
  if (!options.health_listen.empty()) {
    LS_ASSIGN_OR_RETURN(options.health_address,
                        net::CheckListenAddress(parser.WrittenAs("health-listen"), options.health_listen, true));
  }
  if (!options.metrics_listen.empty()) {
    LS_ASSIGN_OR_RETURN(options.metrics_address,
                        net::CheckListenAddress(parser.WrittenAs("metrics-listen"), options.metrics_listen, true));
  }
  if (options.lane_listen.empty()) {
    const net::HostPort control = options.listen_address.value_or(net::HostPort{"127.0.0.1", 0});
    options.lane_address = {control.host, control.port == 0 ? uint16_t{0} : kLanePort};
  } else {
    LS_ASSIGN_OR_RETURN(options.lane_address,
                        net::CheckListenAddress(parser.WrittenAs("lane-listen"), options.lane_listen, anywhere));
  }
  if (!options.lane_advertise.empty()) {
    const auto advertised = net::ParseHostPort(options.lane_advertise);
    if (!advertised.ok()) {
      return {ErrorCode::kConfig, Cat(parser.WrittenAs("lane-advertise"), ": ", advertised.status().message())};
    }
  }
  if (options.segments != "tmpfs" && options.segments != "memfd") {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("segments"), " is ", options.segments, "; give tmpfs or memfd")};
  }
  LS_RETURN_IF_ERROR(CheckCodec(parser, options));
  const uint64_t block = options.block_bytes;
  if (block < model::kMinBlockBytes || block > model::kMaxBlockBytes || (block & (block - 1)) != 0) {
    return {ErrorCode::kConfig, Cat(parser.WrittenAs("block-bytes"), " is ", block, "; give a power of two from ",
                                    model::kMinBlockBytes, " to ", model::kMaxBlockBytes)};
  }
  LS_RETURN_IF_ERROR(CheckRate(parser, "lane-rate-limit", options.lane_rate_limit));
  return CheckRate(parser, "receiver-rate-limit", options.receiver_rate_limit);
}

}  // namespace

Result<config::ParseOutcome> ParseAgentOptions(int argc, const char* const* argv, AgentOptions* options) {
  ConfigParser parser(
      {.program = "trainer_agent",
       .about = "Holds a trainer's weights in shared memory and serves each version to inference receivers.",
       .version = Cat("trainer_agent ", kVersion, " (", telemetry::BuildRevision(), ") wire ", wire::kWireFormat,
                      " payload ", payload::kPayloadFormat, " segment ", run::kSegmentFormat, " proto v1")});
  parser.Add(
      "socket", &options->socket,
      "unix socket for the trainer's ranks; auto: export.sock in /run/trainer-agent, or for a user who may not write "
      "there in /dev/shm/lockstep-<uid>/agent");
  parser.Add(
      "trainer-group", &options->trainer_group,
      "group, by name or number, whose members' trainers may export; needs --segments memfd; empty: those of this user "
      "and root alone");
  parser.Add("local-socket", &options->local_socket,
             "unix socket where receivers on this host take bytes from memory; auto: pull.sock next to --socket; none");
  parser.Add("control-socket", &options->control_socket,
             "unix socket of the control plane, for processes of this user and root; auto: control.sock next to "
             "--socket; none");
  parser.Add("listen", &options->listen, "gRPC address, HOST:PORT; port 0: the system chooses; empty: no TCP");
  parser.Add("health-listen", &options->health_listen,
             "HOST:PORT that answers questions about health, from any peer, in plaintext; empty: none");
  parser.Add("metrics-listen", &options->metrics_listen,
             "HOST:PORT that answers GET /metrics, from any peer, in plaintext, for Prometheus; empty: none");
  parser.Add("lane-listen", &options->lane_listen,
             Cat("address of the data lanes, HOST:PORT; port 0: the system chooses; empty: port ", kLanePort,
                 " of the host of --listen; without --listen any port of loopback"));
  parser.Add("lane-advertise", &options->lane_advertise,
             "HOST:PORT named to receivers for lanes; empty: the host they called; port 0 or empty: the lane port");
  parser.Add("address-file", &options->address_file,
             "file that holds, as JSON, where the agent listens, while it does");
  parser.Add("owners", &options->owners, "file; the agent ends once no process holds a lock (flock) on it");
  parser.Add("segment-dir", &options->segment_dir,
             "tmpfs directory for the double buffers and retained deltas; auto: /dev/shm/lockstep, or for a "
             "user who may not write to /run/trainer-agent /dev/shm/lockstep-<uid>/agent/segments");
  parser.Add("segments", &options->segments, "tmpfs (survives the agent by name) or memfd (ranks hand it back)");
  parser.Add("block-bytes", &options->block_bytes, "unit of diffing and hashing, a power of two");
  parser.Add("retain-bytes", &options->retain_bytes, "memory for retained deltas, per model");
  parser.Add(
      "scrub-round", &options->scrub_round,
      "time in which the newest version of a model is hashed again once; 0: only when a receiver found it damaged", {},
      std::chrono::days(30));
  parser.Add("codec", &options->codec, "how hard deltas are compressed: fast, or compact for links below 100 MB/s");
  parser.Add("threads", &options->threads, "worker threads; 0: one per core", 0, 1024);
  parser.Add("max-pulls", &options->max_pulls,
             "pulls open at a time, and as many standing ones; a quarter for each identity", 1, 65536);
  parser.Add("max-lanes", &options->max_lanes, "lanes of one pull", 1, 64);
  parser.Add("lane-rate-limit", &options->lane_rate_limit, "bytes a second of all lanes together; 0: no limit");
  parser.Add("receiver-rate-limit", &options->receiver_rate_limit,
             "bytes a second of the lanes of one receiver together; 0: no limit");
  rpc::AddTlsOptions(parser, options->tls);
  parser.Add("log-level", &options->log_level, "debug, info, warn or error");
  parser.Add("log-format", &options->log_format, "auto, text or json");
  parser.Add("drain-timeout", &options->drain_timeout, "how long calls may take to end after SIGTERM", {},
             std::chrono::days(1));
  parser.Hide("block-bytes");
  LS_ASSIGN_OR_RETURN(const config::ParseOutcome outcome, parser.Parse(argc, argv));
  if (outcome == config::ParseOutcome::kRun) LS_RETURN_IF_ERROR(Check(parser, *options));
  return outcome;
}

}  // namespace lockstep::agent
