#include "raas_receiver/receiver/receiver.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/filesystem.h"
#include "common/os/places.h"
#include "common/os/sd_notify.h"
#include "common/telemetry/log.h"
#include "kernels/hash.h"
#include "raas_receiver/archive/archiver.h"
#include "raas_receiver/origin/agent_origin.h"
#include "raas_receiver/origin/log_origin.h"
#include "raas_receiver/origin/ordered_origin.h"
#include "raas_receiver/origin/parted_origin.h"
#include "raas_receiver/receiver/receiver_metrics.h"

namespace lockstep::receiver {
namespace {

using std::chrono::milliseconds;

constexpr char kLiveness[] = "raas-receiver-liveness";
constexpr char kReadiness[] = "raas-receiver-readiness";
constexpr char kReplica[] = "raas-receiver-replica";
constexpr milliseconds kTick{500};
constexpr size_t kMostEngineThreads = 16;  // of one engine; more make no write faster

void LogException(std::string_view what) {
  telemetry::Log(telemetry::LogLevel::kError, "io_exception", {{"message", what}});
}

void WarnOfDisk(const std::string& root) {
  const auto found = os::FileSystemOf(root);
  if (!found.ok() || found->in_memory) return;
  telemetry::Log(telemetry::LogLevel::kWarn, "disk_directory_used",
                 {{"path", root},
                  {"file_system", found->name},
                  {"message",
                   "every version is written to a disk, too, which may make syncs and engines wait; give a "
                   "--root on a tmpfs, such as /dev/shm"}});
}

// What such an agent says may be another's word, and readers of the log trust it.
void WarnOfSigning(const ReceiverConfig& config) {
  if (!config.archive.key || config.tls.files.configured()) return;
  for (const Source& source : config.sources) {
    const auto is_here = [](const net::ControlAddress& agent) { return net::HostPort{agent.host}.IsLoopback(); };
    if (std::ranges::all_of(source.agents, is_here)) continue;
    telemetry::Log(telemetry::LogLevel::kWarn, "archive_source_in_plaintext",
                   {{"source", source.text},
                    {"message",
                     "any host on the way to this agent decides what is signed by --archive-key; give --tls-cert, "
                     "--tls-key and --tls-ca"}});
  }
}

// Where none gets it there is one that is not notified.
std::vector<EngineSettings> EnginesOf(const ReceiverConfig& config, const std::string& model) {
  std::vector<EngineSettings> engines;
  std::ranges::copy_if(config.engines, std::back_inserter(engines), [&](const EngineSettings& settings) {
    return settings.model.empty() || settings.model == model;
  });
  if (engines.empty()) engines.emplace_back();
  return engines;
}

bool AnyInPlace(const std::vector<EngineSettings>& engines) {
  return std::ranges::any_of(engines, [](const auto& settings) { return settings.engine.in_place; });
}

void WarnOfLeases(const std::string& root) {
  telemetry::Log(
      telemetry::LogLevel::kWarn, "lease_check_failed",
      {{"path", root},
       {"message",
        "this file system does not say whether an engine has a file mapped, so every version is written to a "
        "new one; give a --root on a tmpfs, such as /dev/shm"}});
}

}  // namespace

Receiver::Receiver(ReceiverConfig config, std::unique_ptr<access::AccessControl> access)
    : config_(std::move(config)),
      timeline_([this](const telemetry::Span& span) { metrics_.Observe(span); }),
      access_(std::move(access)),
      workers_(std::max<size_t>(1, config_.threads - 1)),  // the session's own thread works too
      io_(std::min(config_.threads, config_.lanes), LogException),
      instance_(ToBytes(RandomId<RunId>())),
      engine_health_(config_.follow, config_.unready_after),
      service_(config_.name, instance_, access_.get(), sessions_, feed_, timeline_, config_.archive.key) {}

Receiver::~Receiver() {
  metrics_port_.reset();
  server_.reset();
  engine_ranks_.reset();
  sessions_.clear();
}

Result<std::unique_ptr<Receiver>> Receiver::Create(ReceiverConfig config) {
  LS_ASSIGN_OR_RETURN(auto access, access::AccessControl::Create(config.tls.policy));
  std::unique_ptr<Receiver> receiver(new Receiver(std::move(config), std::move(access)));
  LS_ASSIGN_OR_RETURN(receiver->address_file_, telemetry::AddressFile::Create(receiver->config_.address_file));
  for (const std::string& path : {receiver->config_.control_socket, receiver->config_.root}) {
    LS_RETURN_IF_ERROR(os::MakeOwnPlace(path));
  }
  LS_RETURN_IF_ERROR(receiver->OpenModels());
  WarnOfDisk(receiver->config_.root);
  WarnOfSigning(receiver->config_);
  LS_RETURN_IF_ERROR(receiver->Listen());
  return receiver;
}

Status Receiver::OpenModels() {
  for (const std::string& model : config_.models) {
    LS_ASSIGN_OR_RETURN(auto replicas,
                        replica::ReplicaPair::Open({.root = config_.root,
                                                    .model = model,
                                                    .assets = config_.assets,
                                                    .keep_delta_bytes = config_.keep_delta_bytes,
                                                    .keep_older_deltas = AnyInPlace(EnginesOf(config_, model)),
                                                    .reader_grace = config_.reader_grace,
                                                    .at_edge = {}},
                                                   workers_));
    if (!replicas->rewrites_files()) WarnOfLeases(config_.root);
    const replica::PublishedVersion current = replicas->current();
    const VersionRef& held = current.held;
    telemetry::Log(telemetry::LogLevel::kInfo, "model_opened",
                   {{"model", model}, {"run", ToHex(held.run)}, {"version", held.version}});
    session::SessionOptions options{.model = model,
                                    .follow = config_.follow,
                                    .scrub_round = config_.scrub_round,
                                    .log_max_age = config_.log_max_age,
                                    .unready_after = config_.unready_after,
                                    .admission = config_.admission,
                                    .engine_threads = std::min(workers_.size(), kMostEngineThreads),
                                    .timeline = &timeline_,
                                    .receiver = config_.name,
                                    .ledger_path = LedgerPath(model)};
    std::vector<std::unique_ptr<origin::Origin>> origins;
    for (const Source& source : config_.sources) origins.push_back(OpenSource(source, model));
    LS_ASSIGN_OR_RETURN(auto archiver, OpenArchive(model, *replicas));
    std::vector<engine::EngineEntry> table;
    for (const EngineSettings& settings : EnginesOf(config_, model)) {
      LS_ASSIGN_OR_RETURN(auto driver, engine::NewEngineDriver(settings.driver));
      table.push_back({settings.engine, std::move(driver)});
    }
    sessions_[model] = std::make_unique<session::Session>(
        std::move(options), origin::NewOrderedOrigin(std::move(origins), current.committed_unix_ns),
        std::move(replicas), std::move(archiver), std::move(table), feed_);
  }
  return OkStatus();
}

// A receiver's own, also where several share the directory. Empty: there is no directory.
std::string Receiver::LedgerPath(const std::string& model) const {
  if (config_.state_dir.empty()) return {};
  const std::string of_receiver = HexEncode(Hash128(AsBytes(std::string_view(config_.name))));
  return Cat(config_.state_dir, "/served/", model, "-", of_receiver);
}

// The file of one log and model, which outlives the replicas' memory.
std::string Receiver::RememberedPath(std::string_view what, const std::string& model,
                                     const objects::ObjectStore& log) const {
  const std::string of_log = HexEncode(Hash128(AsBytes(std::string_view(log.url()))));
  return Cat(config_.state_dir, "/", what, "/", model, "-", of_log);
}

std::unique_ptr<origin::Origin> Receiver::OpenSource(const Source& source, const std::string& model) {
  if (source.log != nullptr) {
    return origin::NewLogOrigin({.model = model,
                                 .store = source.log,
                                 .trusted = config_.log_keys,
                                 .remembered_path = RememberedPath("logs-read", model, *source.log),
                                 .connections = config_.lanes,
                                 .memory_bytes = config_.log_memory_bytes,
                                 .poll = config_.log_poll},
                                workers_);
  }
  const bool is_parted = source.agents.size() > 1 || config_.some_parts;
  std::vector<std::unique_ptr<origin::Origin>> agents;
  for (const net::ControlAddress& agent : source.agents) {
    agents.push_back(origin::NewAgentOrigin({.model = model,
                                             .receiver = config_.name,
                                             .instance = instance_,
                                             .agent = agent,
                                             .tls = config_.tls.files,
                                             .lanes = config_.lanes,
                                             .streaming = config_.streaming,
                                             // The log of a part is of use, and an engine of one is not.
                                             .takes_part = is_parted || config_.archive.store != nullptr,
                                             .timeline = &timeline_},
                                            io_, workers_));
  }
  if (!is_parted) return std::move(agents.front());
  return origin::NewPartedOrigin(std::move(agents), config_.some_parts);
}

Result<std::unique_ptr<archive::Archiver>> Receiver::OpenArchive(const std::string& model,
                                                                 replica::ReplicaPair& replicas) {
  if (config_.archive.store == nullptr) {
    (void)os::RemoveTree(replicas.directory().SpoolPath());  // as with --archive, before
    return std::unique_ptr<archive::Archiver>();
  }
  return archive::Archiver::Create({.store = config_.archive.store,
                                    .model = model,
                                    .receiver = config_.name,
                                    .key = config_.archive.key,
                                    .remembered_path = RememberedPath("logs-written", model, *config_.archive.store),
                                    .keep_bytes = config_.archive.keep_bytes,
                                    .keep_age = config_.archive.keep_age,
                                    .grace = config_.archive.grace,
                                    .bytes_per_s = config_.archive.bytes_per_s},
                                   replicas);
}

Status Receiver::Listen() {
  if (!config_.engine_socket.empty()) {
    std::map<std::string, engine::FollowedModel> models;
    for (const auto& [model, session] : sessions_) {
      models[model] = {.find_ranks = [&engines = session->engines()](const auto& rank) { return engines.Find(rank); },
                       .layout = [&session = *session] { return session.layout(); }};
    }
    LS_ASSIGN_OR_RETURN(engine_ranks_, engine::StartRankServer(config_.engine_socket, std::move(models)));
  }
  LS_ASSIGN_OR_RETURN(
      server_,
      rpc::RpcServer::Create(
          {.address = net::ToString(config_.listen),
           .control_socket = config_.control_socket,
           .services = {&service_},
           .tls = config_.tls.files,
           .admit = [this](const rpc::PeerCertificate& peer) { return access_->Admit(access::IdentityOf(peer)); },
           .health_services = {kLiveness, kReadiness, kReplica},
           .health_address = net::ToString(config_.health_listen)}));
  if (config_.metrics_listen) {
    LS_ASSIGN_OR_RETURN(metrics_port_, metrics::MetricsPort::Create(net::ToString(config_.metrics_listen),
                                                                    [this] { return MetricsPage(); }));
  }
  const std::string grpc = net::ToString(config_.listen, server_->bound_port());
  const std::string metrics =
      net::ToString(config_.metrics_listen, metrics_port_ == nullptr ? 0 : metrics_port_->bound_port());
  const std::string health = net::ToString(config_.health_listen, server_->health_port());
  std::string sources;
  for (const Source& source : config_.sources) sources += Cat(sources.empty() ? "" : ", ", source.text);
  telemetry::Log(telemetry::LogLevel::kInfo, "listening",
                 {{"grpc", grpc},
                  {"control", config_.control_socket},
                  {"health", health},
                  {"metrics", metrics},
                  {"root", config_.root},
                  {"source", sources}});
  return address_file_->Announce(
      {{"grpc", grpc}, {"control", config_.control_socket}, {"health", health}, {"metrics", metrics}});
}

std::string Receiver::MetricsPage() const {
  ReceiverFacts facts{
      .status = service_.Describe(), .root_free_bytes = {}, .certificate_end = rpc::CertificateEnd(config_.tls.files)};
  if (const auto found = os::FileSystemOf(config_.root); found.ok()) facts.root_free_bytes = found->free_bytes;
  metrics::Families families;
  metrics::Read(ReceiverTable(), facts, families);
  metrics_.Collect(families);
  return metrics::Page(families);
}

void Receiver::Run(os::SignalWaiter& signals, const os::Owners& owners) {
  for (const auto& [model, session] : sessions_) session->Start();
  Tick();
  os::NotifyReady();
  while (true) {
    if (signals.Wait(kTick)) break;
    if (owners.Gone()) {
      telemetry::Log(telemetry::LogLevel::kInfo, "owners_gone");
      break;
    }
    Tick();
  }
  os::NotifyStopping();
  telemetry::Log(telemetry::LogLevel::kInfo, "draining", {{"timeout_ms", config_.drain_timeout.count()}});
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    Drain();
    drained = true;
  });
  while (!drained) {
    if (signals.Wait(milliseconds(20))) ::_exit(0);
  }
  drain.join();
  telemetry::Log(telemetry::LogLevel::kInfo, "stopped");
}

void Receiver::Tick() {
  access_->Reload();
  bool held = true;
  bool ready = true;
  for (const auto& [model, session] : sessions_) {
    held = session->HoldsVersion() && held;
    ready = session->Ready() && ready;
    for (const auto& [engine, serving] : engine_health_.Update(session->Describe())) {
      server_->SetServing(engine, serving);
    }
  }
  server_->SetServing(kLiveness, true);
  server_->SetServing(kReadiness, ready);
  server_->SetServing(kReplica, held);
  os::NotifyWatchdog();
}

void Receiver::Drain() {
  const auto until = std::chrono::steady_clock::now() + config_.drain_timeout;
  const auto left = [until] {
    return std::max(milliseconds(0),
                    std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now()));
  };
  service_.SetDraining();
  for (const auto& [model, session] : sessions_) session->RequestStop();
  feed_.Close();
  for (const auto& [model, session] : sessions_) session->Join(left());
  server_->Drain(left());
}

}  // namespace lockstep::receiver
