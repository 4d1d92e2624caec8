// Which kind of daemon a peer is, asked after it did not know a call.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <memory>

namespace lockstep::rpc {

// Whether `answer` is gRPC's own to a call that the peer does not have. A peer of ours that refuses for its protocol
// has the same code, and says why.
inline bool IsUnknownCall(const grpc::Status& answer) {
  return answer.error_code() == grpc::StatusCode::UNIMPLEMENTED && answer.error_message().empty();
}

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
