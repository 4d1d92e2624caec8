#include "common/rpc/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "common/base/text.h"
#include "common/rpc/control_socket.h"

namespace lockstep::rpc {
namespace {

// What all peers together may take: memory for requests in the making, and threads, of which each call in progress has
// one, but for version streams.
constexpr size_t kMaxMemory = 512 << 20;
constexpr int kMaxThreads = 512;
// A connection's calls at a time; more wait at the peer.
constexpr int kMaxStreams = 128;
// Of a peer: a request, with what is said of it, and small ones beside it.
constexpr size_t kMostUnanswered = 2 * kMaxRequestBytes;
// A connection without calls goes. Our own have a stream open, or connect again at the next call; one that is made just
// then is UNAVAILABLE.
constexpr int kIdleMs = 10 * 60'000;

void SetLimits(grpc::ServerBuilder& builder) {
  RefuseCompressed(builder);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetMaxSendMessageSize(kMaxAnswerBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("control").Resize(kMaxMemory).SetMaxThreads(kMaxThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Below what our own channels send (channel.cc), or their pings would count as abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
}

}  // namespace

void DropGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

Result<std::unique_ptr<RpcServer>> RpcServer::Create(const Options& options) {
  DropGrpcLog();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetLimits(builder);
  if (options.tls.configured()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, static_cast<int>(options.tls_age.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(options.tls_age_grace.count()));
  }
  std::unique_ptr<GrpcPort> port;
  if (!options.address.empty()) {
    GrpcPort::Options peers{.address = options.address,
                            .calls_of_one = kMaxStreams,
                            .unanswered_bytes = kMostUnanswered,
                            .from = {},
                            .admit = options.admit};
    if (options.tls.configured()) {
      peers.tls = &TlsCopies::Of(options.tls);
    } else {
      peers.from = options.tls.plain;
    }
    LS_ASSIGN_OR_RETURN(port, GrpcPort::Listen(std::move(peers)));
    port->ServeBy(builder);
  }
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Status(ErrorCode::kInternal, "gRPC does not start a server");
  for (const std::string& name : options.health_services) {
    server->GetHealthCheckService()->SetServingStatus(name, false);
  }
  std::unique_ptr<RpcServer> started(new RpcServer(std::move(server), std::move(port)));
  if (!options.control_socket.empty()) {
    LS_ASSIGN_OR_RETURN(started->control_socket_, StartControlSocket(options.control_socket, started->server_.get()));
  }
  if (!options.health_address.empty()) {
    LS_ASSIGN_OR_RETURN(started->health_port_, HealthPort::Create(options.health_address, options.health_services));
  }
  if (started->port_ != nullptr) started->port_->Start();
  return started;
}

RpcServer::RpcServer(std::unique_ptr<grpc::Server> server, std::unique_ptr<GrpcPort> port)
    : server_(std::move(server)), port_(std::move(port)) {}

RpcServer::~RpcServer() {
  Drain(std::chrono::milliseconds(0));
}

void RpcServer::SetServing(const std::string& health_service, bool serving) {
  std::lock_guard lock(mutex_);
  // gRPC writes to every watcher at each call, also when nothing has changed.
  const auto known = serving_.find(health_service);
  if (known != serving_.end() && known->second == serving) return;
  serving_[health_service] = serving;
  server_->GetHealthCheckService()->SetServingStatus(health_service, serving);
  if (health_port_ != nullptr) health_port_->SetServing(health_service, serving);
}

void RpcServer::StopServing() {
  server_->GetHealthCheckService()->Shutdown();
  if (health_port_ != nullptr) health_port_->StopServing();
}

void RpcServer::Drain(std::chrono::milliseconds timeout) {
  StopServing();
  control_socket_.reset();
  if (port_ != nullptr) port_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + timeout);
}

}  // namespace lockstep::rpc
