// Client: the connection of a command to one daemon. Errors name the daemon and its address.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/rpc/channel.h"
#include "common/rpc/peer.h"
#include "common/rpc/status_mapping.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::ctl {

// The daemon that may listen where one of `Service` was sought, and the option that names it.
template <typename Service>
struct OtherDaemon;

template <>
struct OtherDaemon<v1::TrainerAgent> {
  static constexpr std::string_view kName = "raas_receiver";
  static constexpr std::string_view kOption = "--receiver";
  static constexpr auto kAnswers = &rpc::AnswersStatus<v1::RaasReceiver, v1::ReceiverStatusRequest, v1::ReceiverStatus>;
};

template <>
struct OtherDaemon<v1::RaasReceiver> {
  static constexpr std::string_view kName = "trainer_agent";
  static constexpr std::string_view kOption = "--agent";
  static constexpr auto kAnswers = &rpc::AnswersStatus<v1::TrainerAgent, v1::AgentStatusRequest, v1::AgentStatus>;
};

// The agents that a receiver's model comes from: one, or one for each part. kNotFound: it comes from a log now.
inline Result<std::vector<std::string>> AgentsOfModel(const v1::ReceiverModel& model, std::string_view receiver) {
  if (model.source().find("://") == std::string::npos) {
    std::vector<std::string> agents(1);
    for (const char each : model.source()) {
      if (each == '+') {
        agents.emplace_back();
      } else {
        agents.back().push_back(each);
      }
    }
    return agents;
  }
  return Status(ErrorCode::kNotFound, Cat(receiver, ": model ", model.name(), " comes from ", model.source(),
                                          ", and from no agent; name one with --agent"));
}

// `Service` is v1::TrainerAgent or v1::RaasReceiver.
template <typename Service>
class Client {
 public:
  using Stub = typename Service::StubInterface;
  using Other = OtherDaemon<Service>;

  Client(std::string_view daemon, const std::string& address, const rpc::TlsOptions& tls)
      : address_(address), name_(Cat(daemon, " ", address)), channel_(address, tls) {}

  const std::string& name() const { return name_; }
  // The answer to a call, without the daemon's name.
  Status Explain(const grpc::Status& answer) const { return channel_.Explain(answer); }
  // Returns a channel for one call.
  Result<std::shared_ptr<grpc::Channel>> Channel() const {
    Result<std::shared_ptr<grpc::Channel>> channel = channel_.Get();
    if (!channel.ok()) return channel.status().WithContext(name_);
    if (!channel_.to_socket()) SayWhatIsWaitedFor(**channel);
    return channel;
  }

  template <typename Request, typename Response>
  Result<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                        const Request& request, std::chrono::milliseconds timeout) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    Response response;
    LS_ASSIGN_OR_RETURN(const auto channel, Channel());
    const std::unique_ptr<Stub> stub = Service::NewStub(channel);
    LS_RETURN_IF_ERROR(Explain((stub.get()->*method)(&context, request, &response), channel));
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
    LS_ASSIGN_OR_RETURN(const auto channel, Channel());
    const std::unique_ptr<Stub> stub = Service::NewStub(channel);
    const auto reader = (stub.get()->*method)(&context, request);
    Response message;
    while (reader->Read(&message)) {
      if (take(message)) continue;
      context.TryCancel();
      return OkStatus();
    }
    LS_RETURN_IF_ERROR(Explain(reader->Finish(), channel));
    return {ErrorCode::kUnavailable, Cat(name_, ": ended the stream; is it draining?")};
  }

 private:
  // Where no connection comes up, and none is refused, for a second.
  void SayWhatIsWaitedFor(grpc::Channel& channel) const {
    const auto until = std::chrono::system_clock::now() + std::chrono::seconds(1);
    for (auto state = channel.GetState(true); state == GRPC_CHANNEL_IDLE || state == GRPC_CHANNEL_CONNECTING;
         state = channel.GetState(false)) {
      if (channel.WaitForStateChange(state, until)) continue;
      std::cerr << "lockstepctl: waiting for " << name_ << ", which takes connections and does not answer yet\n";
      return;
    }
  }

  // Names the daemon.
  Status Explain(const grpc::Status& answer, const std::shared_ptr<grpc::Channel>& channel) const {
    const Status status = Explain(answer).WithContext(name_);
    if (!rpc::IsUnknownCall(answer)) return status;
    if (Other::kAnswers(channel)) {
      return {status.code(), Cat(name_, ": a ", Other::kName, " answers there; its address is given as ",
                                 Other::kOption, " ", address_)};
    }
    return {status.code(), Cat(status.message(), " (it does not know this call: is it of this version?)")};
  }

  std::string address_;
  std::string name_;
  mutable rpc::LastingChannel channel_;
};

using AgentClient = Client<v1::TrainerAgent>;
using ReceiverClient = Client<v1::RaasReceiver>;

}  // namespace lockstep::ctl
