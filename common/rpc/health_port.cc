#include "common/rpc/health_port.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

// A health check is some bytes; there are not many who ask.
constexpr int kMaxRequestBytes = 4096;
constexpr size_t kMaxMemory = 16 << 20;
constexpr int kMaxStreams = 16;

}  // namespace

Result<std::unique_ptr<HealthPort>> HealthPort::Create(const std::string& address,
                                                       const std::vector<std::string>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("health").Resize(kMaxMemory));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int bound_port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &bound_port);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const bool listens = server != nullptr && bound_port != 0;
  std::unique_ptr<HealthPort> port(new HealthPort(std::move(queue), std::move(server), bound_port));
  if (!listens) {
    return Status(ErrorCode::kUnavailable,
                  Cat("cannot listen on ", address, "; is the port in use, or the address not of this machine?"));
  }
  for (const std::string& service : services) port->SetServing(service, false);
  return port;
}

HealthPort::~HealthPort() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
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
