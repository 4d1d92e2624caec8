#include "common/rpc/self_call.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>

#include "common/base/ids.h"
#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

struct Call {
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

}  // namespace

EchoService::EchoService() : call_(Cat("/lockstep.internal.Self/", HexEncode(RandomBytes16()))) {
  using Handler = grpc::internal::RpcMethodHandler<EchoService, grpc::ByteBuffer, grpc::ByteBuffer>;
  const auto echo = [](EchoService*, grpc::ServerContext*, const grpc::ByteBuffer* request, grpc::ByteBuffer* answer) {
    *answer = *request;
    return grpc::Status::OK;
  };
  AddMethod(new grpc::internal::RpcServiceMethod(call_.c_str(), grpc::internal::RpcMethod::NORMAL_RPC,
                                                 new Handler(echo, this)));
}

SelfCall::SelfCall(grpc::Server& server, const EchoService& echo)
    : call_(echo.call()), channel_(server.InProcessChannel(grpc::ChannelArguments())) {}

bool SelfCall::Answered() {
  if (!state_->under_way.exchange(true)) {
    const auto call = std::make_shared<Call>();
    grpc::GenericStub(channel_).UnaryCall(&call->context, call_, grpc::StubOptions(), &call->request, &call->response,
                                          [call, state = state_](const grpc::Status& status) {
                                            if (status.ok()) state->answered = true;
                                            state->under_way = false;
                                          });
  }
  return state_->answered.exchange(false);
}

}  // namespace lockstep::rpc
