#include "common/rpc/health_port.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

namespace lockstep::rpc {
namespace {

// A health check is some bytes; few programs ask.
constexpr int kMaxRequestBytes = 4096;
constexpr size_t kMaxMemory = 16 << 20;
constexpr int kMaxStreams = 16;
constexpr size_t kConnections = 64;
constexpr size_t kCalls = 256;
constexpr size_t kUnansweredBytes = 16 << 10;
// A program that asks again after longer, connects again. A watcher is not idle. It is no multiple of the usual
// intervals.
constexpr int kIdleMs = 100'000;

}  // namespace

Result<std::unique_ptr<HealthPort>> HealthPort::Create(const std::string& address,
                                                       const std::vector<std::string>& services) {
  GrpcPort::Options options{.option = "--health-listen",
                            .address = address,
                            .connections = kConnections,
                            .calls = kCalls,
                            .calls_of_one = kMaxStreams,
                            .unanswered_bytes = kUnansweredBytes,
                            .from = {},
                            .admit = {}};
  LS_ASSIGN_OR_RETURN(std::unique_ptr<GrpcPort> listening, GrpcPort::Listen(std::move(options)));
  std::unique_ptr<HealthPort> port(new HealthPort(std::move(listening)));
  for (const std::string& service : services) port->SetServing(service, false);
  port->port_->Start();
  return port;
}

HealthPort::HealthPort(std::unique_ptr<GrpcPort> port) : port_(std::move(port)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  RefuseCompressed(builder);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("health").Resize(kMaxMemory));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  port_->ServeBy(builder);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
}

HealthPort::~HealthPort() {
  port_->Stop();
  server_->Shutdown(std::chrono::system_clock::now());
  queue_->Shutdown();
  void* tag = nullptr;
  for (bool ok = false; queue_->Next(&tag, &ok);) {
  }
}

void HealthPort::SetServing(const std::string& service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

void HealthPort::StopServing() {
  server_->GetHealthCheckService()->Shutdown();
}

}  // namespace lockstep::rpc
