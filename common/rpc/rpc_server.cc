#include "common/rpc/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

// What gRPC prints has a form of its own, in the middle of logs that are read by machines. Whatever went wrong comes
// back as a status, too.
void DropGrpcLogLine(gpr_log_func_args*) {}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxRpcMessageBytes);
  builder.SetMaxSendMessageSize(kMaxRpcMessageBytes);
  // gRPC shares ports by default: two daemons on one port would each get some of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Below what our own channels send (channel.cc), or their pings would count as abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
}

}  // namespace

Result<std::unique_ptr<RpcServer>> RpcServer::Create(const Options& options) {
  gpr_set_log_function(DropGrpcLogLine);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetLimits(builder);
  int bound_port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &bound_port);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound_port == 0) {
    return Status(ErrorCode::kUnavailable, Cat("cannot listen on ", options.address,
                                               "; is the port in use, or the address not of this machine?"));
  }
  for (const std::string& name : options.health_services) {
    server->GetHealthCheckService()->SetServingStatus(name, false);
  }
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(server), bound_port));
}

RpcServer::RpcServer(std::unique_ptr<grpc::Server> server, int bound_port)
    : server_(std::move(server)), self_(server_->InProcessChannel(grpc::ChannelArguments())), bound_port_(bound_port) {}

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
}

void RpcServer::Turn(std::function<void()> turned) {
  struct Call {
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
  };
  const auto call = std::make_shared<Call>();
  // No service has it: that somebody says so is the answer.
  grpc::GenericStub(self_).UnaryCall(&call->context, "/lockstep.v1.Nobody/Turn", grpc::StubOptions(), &call->request,
                                     &call->response,
                                     [call, turned = std::move(turned)](const grpc::Status&) { turned(); });
}

void RpcServer::StopServing() {
  server_->GetHealthCheckService()->Shutdown();
}

void RpcServer::Drain(std::chrono::milliseconds timeout) {
  StopServing();
  server_->Shutdown(std::chrono::system_clock::now() + timeout);
}

}  // namespace lockstep::rpc
