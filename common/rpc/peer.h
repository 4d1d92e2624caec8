// Which kind of daemon a peer is, asked after it did not know a call.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>

namespace lockstep::rpc {

// Whether the peer at `channel` answers `Service`'s GetStatus; false also when it does not answer in time. `Request`
// and `Response` are that call's messages.
template <typename Service, typename Request, typename Response>
bool AnswersStatus(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  Response response;
  return Service::NewStub(channel)->GetStatus(&context, Request(), &response).ok();
}

}  // namespace lockstep::rpc
