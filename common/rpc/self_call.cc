#include "common/rpc/self_call.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>

namespace lockstep::rpc {
namespace {

constexpr char kEcho[] = "/lockstep.internal.Self/Echo";

struct Call {
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

}  // namespace

EchoService::EchoService() {
  using Handler = grpc::internal::RpcMethodHandler<EchoService, grpc::ByteBuffer, grpc::ByteBuffer>;
  const auto echo = [](EchoService*, grpc::ServerContext*, const grpc::ByteBuffer* request, grpc::ByteBuffer* answer) {
    *answer = *request;
    return grpc::Status::OK;
  };
  AddMethod(
      new grpc::internal::RpcServiceMethod(kEcho, grpc::internal::RpcMethod::NORMAL_RPC, new Handler(echo, this)));
}

SelfCall::SelfCall(grpc::Server& server) : channel_(server.InProcessChannel(grpc::ChannelArguments())) {}

bool SelfCall::Answered() {
  if (!state_->under_way.exchange(true)) {
    const auto call = std::make_shared<Call>();
    grpc::GenericStub(channel_).UnaryCall(&call->context, kEcho, grpc::StubOptions(), &call->request, &call->response,
                                          [call, state = state_](const grpc::Status& status) {
                                            if (status.ok()) state->answered = true;
                                            state->under_way = false;
                                          });
  }
  return state_->answered.exchange(false);
}

}  // namespace lockstep::rpc
