#include "trainer_agent/agent/agent.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "common/base/text.h"
#include "common/base/version.h"
#include "common/os/file.h"
#include "common/os/filesystem.h"
#include "common/os/places.h"
#include "common/os/sd_notify.h"
#include "common/peer/peer.h"
#include "common/telemetry/build_info.h"
#include "common/telemetry/log.h"
#include "common/wire/frame.h"
#include "trainer_agent/agent/agent_metrics.h"
#include "trainer_agent/serve/served_wait.h"
#include "trainer_agent/serve/version_changes.h"

namespace lockstep::agent {
namespace {

constexpr char kLiveness[] = "trainer-agent-liveness";
constexpr std::chrono::milliseconds kSilent{2'000};
constexpr std::chrono::milliseconds kDrainPoll{50};
constexpr char kReadiness[] = "trainer-agent-readiness";

size_t Threads(const AgentOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
}

// The trainer shares the machine and waits for its own copy: threads that compare and compress behind it give way.
constexpr int kBackgroundNice = 10;

// What receivers are given as the address of lanes: ":port" stands for the host that they called.
std::string AdvertisedLanes(const std::string& advertise, uint16_t lane_port) {
  if (advertise.empty()) return Cat(":", lane_port);
  net::HostPort address = *net::ParseHostPort(advertise);  // checked with the options
  if (address.port == 0) address.port = lane_port;
  return address.ToString();
}

void WarnOfDisk(const AgentOptions& options) {
  if (options.segments == "memfd") return;
  const auto found = os::FileSystemOf(options.segment_dir);
  if (!found.ok() || found->in_memory) return;
  telemetry::Log(telemetry::LogLevel::kWarn, "disk_directory_used",
                 {{"path", options.segment_dir},
                  {"file_system", found->name},
                  {"message",
                   "all that the trainer publishes is written to a disk, too, which may make it wait; give a "
                   "--segment-dir on a tmpfs, such as /dev/shm"}});
}

v1::BuildInfo Build() {
  v1::BuildInfo build;
  build.set_version(std::string(kVersion));
  build.set_revision(std::string(telemetry::BuildRevision()));
  build.set_wire_format(wire::kWireFormat);
  build.set_payload_format(payload::kPayloadFormat);
  build.set_peer(peer::SelfLine("trainer_agent"));
  build.set_segment_format(run::kSegmentFormat);
  return build;
}

}  // namespace

Agent::Agent(const AgentOptions& options)
    : options_(options),
      timeline_([this](const telemetry::Span& span) { metrics_.Observe(span); }),
      pool_(Threads(options), kBackgroundNice),
      scrubber_(&catalog_, options.scrub_round),
      pulls_(&catalog_, {.max_pulls = options.max_pulls, .max_lanes = static_cast<uint32_t>(options.max_lanes)}) {}

Result<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options) {
  std::unique_ptr<Agent> agent(new Agent(options));
  LS_ASSIGN_OR_RETURN(agent->access_, access::AccessControl::Create(options.tls.policy));
  for (const std::string& path : {std::filesystem::absolute(options.socket).string(), options.segment_dir}) {
    LS_RETURN_IF_ERROR(os::MakeOwnPlace(path));
  }
  LS_ASSIGN_OR_RETURN(agent->home_, run::SegmentHome::Create(options.segment_dir, options.segments == "memfd"));
  WarnOfDisk(options);
  LS_ASSIGN_OR_RETURN(agent->address_file_, telemetry::AddressFile::Create(options.address_file));
  const run::RegistryOptions registry_options{.block_bytes = static_cast<uint32_t>(options.block_bytes),
                                              .retain_bytes = options.retain_bytes,
                                              .timeline = &agent->timeline_};
  const run::DiffOptions diff{.pool = &agent->pool_, .codec = options.codec_level};
  agent->registry_ = std::make_unique<run::ModelRegistry>(agent->home_.get(), registry_options, diff, &agent->catalog_);
  LS_RETURN_IF_ERROR(agent->registry_->Recover());
  agent->deriver_ =
      std::make_unique<derive::Deriver>(agent->registry_.get(), &agent->catalog_, &agent->scrubber_, Threads(options));
  LS_RETURN_IF_ERROR(agent->Listen());
  agent->Tick();
  os::NotifyReady();
  return agent;
}

Status Agent::Listen() {
  // Trainers of the group pass through the directory to their socket; the others in it are for our user alone.
  const std::string runtime = std::filesystem::absolute(options_.socket).parent_path();
  LS_RETURN_IF_ERROR(os::MakeDirs(runtime, options_.trainer_gid ? 0751 : 0750));
  const serve::LaneServerOptions lane_options{.address = options_.lane_address,
                                              .encrypted = options_.tls.files.configured(),
                                              .plain = options_.tls.files.plain,
                                              .threads = Threads(options_),
                                              .bytes_per_s = options_.lane_rate_limit,
                                              .receiver_bytes_per_s = options_.receiver_rate_limit,
                                              .timeline = &timeline_};
  LS_ASSIGN_OR_RETURN(lanes_, serve::LaneServer::Start(lane_options, &pulls_));
  if (!options_.local_socket.empty()) {
    LS_ASSIGN_OR_RETURN(local_, serve::StartLocalServer({.path = options_.local_socket}, &pulls_));
  }
  const serve::LaneOffer lanes{AdvertisedLanes(options_.lane_advertise, lanes_->port()), lane_options.encrypted};
  const serve::AgentService::PublishSide publish_side{
      .models = [this] { return Facts(); },
      .drop = [this](const std::string& model) { return Drop(model); },
      .derive_again = [this](const std::string& model, Version version,
                             v1::VerifyResult* result) { return DeriveAgain(model, version, result); }};
  service_ = std::make_unique<serve::AgentService>(access_.get(), &catalog_, &scrubber_, &pulls_, publish_side, Build(),
                                                   lanes, options_.local_socket, &timeline_);
  LS_ASSIGN_OR_RETURN(
      rpc_, rpc::RpcServer::Create(
                {.address = net::ToString(options_.listen_address),
                 .control_socket = options_.control_socket,
                 .services = {service_.get()},
                 .tls = options_.tls.files,
                 .admit = [this](const rpc::PeerCertificate& peer) { return access_->Admit(access::IdentityOf(peer)); },
                 .health_services = {kLiveness, kReadiness},
                 .health_address = net::ToString(options_.health_address)}));
  const auto answer = [this](wire::RankMessageType type, std::string_view question, const std::function<bool()>& gone) {
    return type == wire::RankMessageType::kAwaitServed
               ? serve::AwaitServedJson(catalog_, pulls_.reports(), question, gone)
               : serve::AwaitChangesJson(catalog_, question, gone);
  };
  LS_ASSIGN_OR_RETURN(ranks_, run::StartRankServer(options_.socket, options_.trainer_gid, registry_.get(), answer));
  if (options_.metrics_address) {
    LS_ASSIGN_OR_RETURN(metrics_port_, metrics::MetricsPort::Create(net::ToString(options_.metrics_address),
                                                                    [this] { return MetricsPage(); }));
  }
  return Announce();
}

Status Agent::Announce() {
  const std::string grpc = net::ToString(options_.listen_address, rpc_->bound_port());
  const std::string health = net::ToString(options_.health_address, rpc_->health_port());
  const std::string metrics =
      net::ToString(options_.metrics_address, metrics_port_ == nullptr ? 0 : metrics_port_->bound_port());
  const std::string lanes = net::ToString(options_.lane_address, lanes_->port());
  telemetry::Log(telemetry::LogLevel::kInfo, "listening",
                 {{"socket", options_.socket},
                  {"grpc", grpc},
                  {"control", options_.control_socket},
                  {"health", health},
                  {"metrics", metrics},
                  {"lanes", lanes}});
  return address_file_->Announce({{"grpc", grpc},
                                  {"control", options_.control_socket},
                                  {"health", health},
                                  {"metrics", metrics},
                                  {"lanes", lanes}});
}

Agent::~Agent() {
  metrics_port_.reset();
  // Ranks first: none may publish into what is about to go.
  if (registry_ != nullptr) registry_->Stop();
  ranks_.reset();
}

std::string Agent::MetricsPage() const {
  AgentFacts facts{.status = service_->Describe(),
                   .segments_free_bytes = {},
                   .certificate_end = rpc::CertificateEnd(options_.tls.files)};
  if (const auto found = os::FileSystemOf(options_.segment_dir); found.ok()) {
    facts.segments_free_bytes = found->free_bytes;
  }
  metrics::Families families;
  metrics::Read(AgentTable(), facts, families);
  metrics_.Collect(families);
  return metrics::Page(families);
}

std::vector<v1::AgentModel> Agent::Facts() const {
  std::vector<v1::AgentModel> all;
  for (const run::ModelSnapshot& open : registry_->Snapshot()) {
    const run::DoubleBuffer& buffer = open.publisher->buffer();
    const model::ModelLayout& layout = *buffer.layout();
    const run::PublisherStatus status = open.publisher->status();
    v1::AgentModel& model = all.emplace_back();
    model.set_name(buffer.model());
    model.set_run(ToBytes(buffer.run()));
    model.set_layout_digest(ToBytes(layout.digest()));
    model.set_model_bytes(layout.data_bytes());
    model.set_tensors(static_cast<uint32_t>(layout.tensors().size()));
    model.set_block_bytes(layout.block_bytes());
    model.set_ranks_expected(buffer.ranks());
    model.set_ranks_connected(open.ranks_connected);
    model.set_writing_version(status.writing_version);
    model.set_versions_committed(status.versions_committed);
    model.set_versions_aborted(status.versions_aborted);
    model.set_last_error(status.last_error);
    if (!status.last_error.empty()) model.set_last_error_unix_ns(status.last_error_unix_ns);
    if (open.derivation == nullptr) continue;
    model.set_derived_from(open.source->model());
    model.set_derived_format(open.derivation->format());
    if (const auto from = deriver_->OriginOf(buffer.model())) {
      model.set_source_version(from->version.version);
      model.set_source_digest(ToBytes(from->digest));
    }
  }
  return all;
}

Result<v1::DropModelResponse> Agent::Drop(const std::string& model) {
  LS_ASSIGN_OR_RETURN(const run::ModelRegistry::DroppedRun dropped, registry_->Drop(model));
  v1::DropModelResponse response;
  response.set_run(ToBytes(dropped.run));
  response.set_freed_bytes(dropped.bytes);
  return response;
}

Status Agent::DeriveAgain(const std::string& model, Version version, v1::VerifyResult* result) const {
  const auto compared = deriver_->DeriveAgain(model, version);
  if (compared.ok()) {
    result->set_derived_again_from(compared->source);
    for (const std::string& tensor : compared->wrong) result->add_wrong_tensors(tensor);
    return OkStatus();
  }
  if (compared.status().code() == ErrorCode::kNotFound) return OkStatus();
  if (compared.status().code() != ErrorCode::kState) return compared.status();
  result->set_not_derived_again(compared.status().message());
  return OkStatus();
}

void Agent::Tick() {
  pulls_.Expire();
  access_->Reload();
  const auto models = registry_->Snapshot();
  const bool ready = std::any_of(models.begin(), models.end(), [](const run::ModelSnapshot& model) {
    return model.publisher->served()->Newest().has_value();
  });
  rpc_->SetServing(kReadiness, ready);
  rpc_->SetServing(kLiveness, true);
  os::NotifyStatus(Cat(models.size(), " models, ", ready ? "serving" : "waiting for a first version"));
  os::NotifyWatchdog();
}

void Agent::Drain() {
  telemetry::Log(telemetry::LogLevel::kInfo, "draining", {{"timeout_ms", options_.drain_timeout.count()}});
  os::NotifyStopping();
  rpc_->StopServing();
  registry_->Stop();
  service_->StartDraining();
  catalog_.Close();
  // A pull in progress still needs its lanes and calls; one that has fallen silent is not waited for.
  const auto deadline = std::chrono::steady_clock::now() + options_.drain_timeout;
  while (pulls_.ActivePulls(kSilent) > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kDrainPoll);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  rpc_->Drain(std::max(left, std::chrono::milliseconds(0)));
  telemetry::Log(telemetry::LogLevel::kInfo, "stopped");
}

}  // namespace lockstep::agent
