// One daemon, as the commands call it: errors name the daemon and its address.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_mapping.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::ctl {

// `Service` is v1::TrainerAgent or v1::RaasReceiver.
template <typename Service>
class Client {
 public:
  using Stub = typename Service::StubInterface;

  Client(std::string_view daemon, const std::string& address)
      : name_(Cat(daemon, " ", address)), channel_(rpc::MakeChannel(address)), stub_(Service::NewStub(channel_)) {}

  const std::string& name() const { return name_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  template <typename Request, typename Response>
  Result<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                        const Request& request, std::chrono::milliseconds timeout) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    Response response;
    LS_RETURN_IF_ERROR(Explain((stub_.get()->*method)(&context, request, &response)));
    return response;
  }

  // Calls `take` for each message of the stream until it answers false. An end of the stream by the daemon is
  // kUnavailable.
  template <typename Request, typename Response, typename Take>
  Status Stream(std::unique_ptr<grpc::ClientReaderInterface<Response>> (Stub::*method)(grpc::ClientContext*,
                                                                                       const Request&),
                const Request& request, std::optional<std::chrono::milliseconds> timeout, Take take) const {
    grpc::ClientContext context;
    if (timeout.has_value()) context.set_deadline(std::chrono::system_clock::now() + *timeout);
    const auto reader = (stub_.get()->*method)(&context, request);
    Response message;
    while (reader->Read(&message)) {
      if (take(message)) continue;
      context.TryCancel();
      return OkStatus();
    }
    LS_RETURN_IF_ERROR(Explain(reader->Finish()));
    return {ErrorCode::kUnavailable, Cat(name_, ": ended the stream; is it draining?")};
  }

 private:
  Status Explain(const grpc::Status& answer) const {
    const Status status = rpc::FromGrpc(answer).WithContext(name_);
    if (status.code() == ErrorCode::kUnavailable) {
      return {status.code(), Cat(status.message(), " (is it running, and is that its address?)")};
    }
    if (status.code() != ErrorCode::kProtocol) return status;
    return {status.code(), Cat(status.message(), " (is that the right kind of daemon, and of this version?)")};
  }

  std::string name_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

using AgentClient = Client<v1::TrainerAgent>;
using ReceiverClient = Client<v1::RaasReceiver>;

}  // namespace lockstep::ctl
