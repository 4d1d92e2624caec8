#include "ctl/daemon/health_client.h"

#include "common/rpc/status_mapping.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"

namespace lockstep::ctl {

Result<bool> IsServing(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                       std::chrono::milliseconds timeout) {
  namespace health = grpc::health::v1;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  LS_RETURN_IF_ERROR(rpc::FromGrpc(health::Health::NewStub(channel)->Check(&context, request, &response)));
  return response.status() == health::HealthCheckResponse::SERVING;
}

}  // namespace lockstep::ctl
