#include "common/rpc/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "common/base/text.h"
#include "common/rpc/control_socket.h"

namespace lockstep::rpc {

// What the peers of one port may take.
struct RpcServer::Limits {
  const char* option;  // of the command line, which errors of the port name
  size_t memory;       // for requests in the making, of all peers
  size_t connections;
  size_t calls;  // of all connections, that gRPC has not answered
  int streams;   // calls of a connection at a time; more wait at the peer
  int request_bytes;
  size_t unanswered_bytes;  // of a peer: a request, with what is said of it, and small ones beside it
  int idle_ms;              // of a connection without calls, which then ends
  bool pings;               // find out which peers are gone
};

namespace {

// Threads for the calls in progress of all peers, but for version streams.
constexpr int kMaxThreads = 512;

// Our own connections have a stream open, or connect again at the next call. A call that is made just then is
// UNAVAILABLE.
constexpr RpcServer::Limits kControlLimits{.option = "--listen",
                                           .memory = 512 << 20,
                                           .connections = 512,
                                           .calls = 2048,
                                           .streams = 128,
                                           .request_bytes = kMaxRequestBytes,
                                           .unanswered_bytes = 2 * kMaxRequestBytes,
                                           .idle_ms = 10 * 60'000,
                                           .pings = true};

// A health check is some bytes, and few programs ask. A program that asks less often than every `idle_ms` connects
// anew each time. A watcher is not idle.
constexpr RpcServer::Limits kHealthLimits{.option = "--health-listen",
                                          .memory = 16 << 20,
                                          .connections = 64,
                                          .calls = 256,
                                          .streams = 16,
                                          .request_bytes = 4096,
                                          .unanswered_bytes = 16 << 10,
                                          .idle_ms = 100'000,
                                          .pings = false};

void SetLimits(grpc::ServerBuilder& builder, const RpcServer::Limits& limits) {
  RefuseCompressed(builder);
  builder.SetMaxReceiveMessageSize(limits.request_bytes);
  builder.SetMaxSendMessageSize(kMaxAnswerBytes);
  builder.SetResourceQuota(grpc::ResourceQuota(limits.option).Resize(limits.memory).SetMaxThreads(kMaxThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, limits.idle_ms);
  if (!limits.pings) return;
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
  return Create(options, kControlLimits);
}

Result<std::unique_ptr<RpcServer>> RpcServer::Create(const Options& options, const Limits& limits) {
  std::unique_ptr<RpcServer> made(new RpcServer);
  const bool health_alone = options.services.empty();
  grpc::ServerBuilder builder;
  SetLimits(builder, limits);
  if (options.tls.configured()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, static_cast<int>(options.tls_age.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(options.tls_age_grace.count()));
  }
  if (!options.address.empty()) {
    GrpcPort::Options peers{.option = limits.option,
                            .address = options.address,
                            .connections = limits.connections,
                            .calls = limits.calls,
                            .calls_of_one = static_cast<size_t>(limits.streams),
                            .unanswered_bytes = limits.unanswered_bytes,
                            .from = {},
                            .admit = options.admit};
    if (options.tls.configured()) {
      peers.tls = &TlsCopies::Of(options.tls);
    } else if (!health_alone) {
      peers.from = options.tls.plain;
    }
    LS_ASSIGN_OR_RETURN(made->port_, GrpcPort::Listen(std::move(peers)));
    made->port_->ServeBy(builder);
  }
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  if (health_alone) made->queue_ = builder.AddCompletionQueue();
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr) return Status(ErrorCode::kInternal, "gRPC does not start a server");
  for (const std::string& name : options.health_services) {
    made->server_->GetHealthCheckService()->SetServingStatus(name, false);
  }
  if (!options.control_socket.empty()) {
    LS_ASSIGN_OR_RETURN(made->control_socket_, StartControlSocket(options.control_socket, made->server_.get()));
  }
  if (!options.health_address.empty()) {
    Options health;
    health.address = options.health_address;
    health.health_services = options.health_services;
    LS_ASSIGN_OR_RETURN(made->health_, Create(health, kHealthLimits));
  }
  if (made->port_ != nullptr) made->port_->Start();
  return made;
}

RpcServer::~RpcServer() {
  if (server_ != nullptr) Drain(std::chrono::milliseconds(0));
  if (queue_ == nullptr) return;
  queue_->Shutdown();
  void* tag = nullptr;
  for (bool ok = false; queue_->Next(&tag, &ok);) {
  }
}

void RpcServer::SetServing(const std::string& health_service, bool serving) {
  MutexLock lock(mutex_);
  // gRPC writes to every watcher at each call, also when nothing has changed.
  const auto known = serving_.find(health_service);
  if (known != serving_.end() && known->second == serving) return;
  serving_[health_service] = serving;
  server_->GetHealthCheckService()->SetServingStatus(health_service, serving);
  if (health_ != nullptr) health_->SetServing(health_service, serving);
}

void RpcServer::StopServing() {
  server_->GetHealthCheckService()->Shutdown();
  if (health_ != nullptr) health_->StopServing();
}

void RpcServer::Drain(std::chrono::milliseconds timeout) {
  StopServing();
  control_socket_.reset();
  if (port_ != nullptr) port_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + timeout);
}

}  // namespace lockstep::rpc
