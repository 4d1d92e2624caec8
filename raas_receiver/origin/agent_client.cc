#include "raas_receiver/origin/agent_client.h"

#include "common/base/text.h"
#include "common/rpc/channel.h"
#include "common/rpc/peer.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::origin {
namespace {

constexpr std::chrono::milliseconds kCallTimeout{30'000};
constexpr std::chrono::milliseconds kCloseTimeout{2'000};

}  // namespace

AgentClient::AgentClient(const net::ControlAddress& address, const rpc::TlsOptions& tls)
    : control_{address, tls.configured() && !address.IsSocket(), tls.plain},
      channel_(std::make_shared<rpc::LastingChannel>(control_.address.text, tls)) {}

template <typename Request, typename Response>
Result<Response> AgentClient::Call(const char* name, Method<Request, Response> method, const Request& request,
                                   std::chrono::milliseconds timeout, std::stop_token stop) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  const std::stop_callback cancel(std::move(stop), [&context] { context.TryCancel(); });
  Response response;
  LS_ASSIGN_OR_RETURN(const auto channel, Channel(name));
  const auto stub = v1::TrainerAgent::NewStub(channel);
  const grpc::Status status = (stub.get()->*method)(&context, request, &response);
  channel_->Ended(channel, status);
  if (!status.ok()) return Explain(name, status, channel);
  LS_RETURN_IF_ERROR(CheckPeer(context));
  return response;
}

Status AgentClient::CheckPeer(const grpc::ClientContext& context) const {
  if (control_.encrypted || control_.address.IsSocket()) return OkStatus();
  const std::optional<asio::ip::address> peer = rpc::AnswerAddress(context);
  if (peer && control_.plain.Contain(*peer)) return OkStatus();
  return net::NotInPlaintext(Cat("agent ", control_.address.text), peer ? peer->to_string() : context.peer());
}

Result<std::shared_ptr<grpc::Channel>> AgentClient::Channel(const char* call) {
  Result<std::shared_ptr<grpc::Channel>> channel = channel_->Get();
  if (!channel.ok()) return channel.status().WithContext(Cat(call, " at agent ", control_.address.text));
  return channel;
}

Status AgentClient::Explain(const char* call, const grpc::Status& status,
                            const std::shared_ptr<grpc::Channel>& channel) const {
  const Status explained = channel_->Explain(status).WithContext(Cat(call, " at agent ", control_.address.text));
  if (!rpc::IsUnknownCall(status)) return explained;
  if (rpc::AnswersStatus<v1::RaasReceiver, v1::ReceiverStatusRequest, v1::ReceiverStatus>(channel)) {
    return {explained.code(),
            Cat(control_.address.text, " is the address of a raas_receiver, and none of a trainer_agent; ",
                "give --agent the gRPC address of the agent that serves the model")};
  }
  return {explained.code(), Cat(explained.message(), " (it does not know this call: is it of this version?)")};
}

Result<std::shared_ptr<const model::ModelLayout>> AgentClient::GetLayout(const std::string& model,
                                                                         std::stop_token stop) {
  v1::GetLayoutRequest request;
  request.set_model(model);
  LS_ASSIGN_OR_RETURN(const v1::Layout answer,
                      Call("GetLayout", &Stub::GetLayout, request, kCallTimeout, std::move(stop)));
  LS_ASSIGN_OR_RETURN(auto layout, model::ModelLayout::Decode(AsBytes(std::string_view(answer.encoded()))));
  if (ToBytes(layout->digest()) != answer.digest()) {
    return Status(ErrorCode::kCorrupt, Cat("the layout that agent ", control_.address.text, " sent for model ", model,
                                           " does not have the digest it names"));
  }
  return layout;
}

Result<v1::PullPlan> AgentClient::OpenPull(v1::OpenPullRequest request, std::stop_token stop) {
  request.set_peer(peer::SelfLine("raas_receiver"));
  const auto timeout = request.standing() ? kCloseTimeout : kCallTimeout;
  return Call("OpenPull", &Stub::OpenPull, request, timeout, std::move(stop));
}

Result<v1::PullPlan> AgentClient::CatchUp(uint64_t pull_id, Version oldest, std::stop_token stop) {
  v1::CatchUpRequest request;
  request.set_pull_id(pull_id);
  request.set_oldest_version(oldest);
  return Call("CatchUp", &Stub::CatchUp, request, kCallTimeout, std::move(stop));
}

Result<std::vector<Ticket>> AgentClient::RenewTickets(uint64_t pull_id, size_t lanes, std::stop_token stop) {
  v1::RenewTicketsRequest request;
  request.set_pull_id(pull_id);
  request.set_lanes(static_cast<uint32_t>(lanes));
  LS_ASSIGN_OR_RETURN(const v1::RenewTicketsResponse answer,
                      Call("RenewTickets", &Stub::RenewTickets, request, kCallTimeout, std::move(stop)));
  return TicketsOf(answer.tickets());
}

Status AgentClient::ClosePull(uint64_t pull_id, const VersionRef& held, const Status& outcome) {
  v1::ClosePullRequest request;
  request.set_pull_id(pull_id);
  *request.mutable_held() = ToProto(held);
  request.set_outcome(outcome.ok() ? "ok" : outcome.ToString());
  request.set_damaged(outcome.code() == ErrorCode::kCorrupt);
  return ToStatus(Call("ClosePull", &Stub::ClosePull, request, kCloseTimeout, {}));
}

Result<v1::ReportResponse> AgentClient::Report(const v1::ReportRequest& request, std::stop_token stop) {
  return Call("Report", &Stub::Report, request, kCloseTimeout, std::move(stop));
}

Status AgentClient::WatchVersions(v1::WatchVersionsRequest request, std::stop_token stop,
                                  const std::function<void(const v1::VersionEvent&)>& on_event) {
  grpc::ClientContext context;
  const std::stop_callback cancel(std::move(stop), [&context] { context.TryCancel(); });
  request.set_peer(peer::SelfLine("raas_receiver"));
  LS_ASSIGN_OR_RETURN(const auto channel, Channel("WatchVersions"));
  const auto stream = v1::TrainerAgent::NewStub(channel)->WatchVersions(&context, request);
  v1::VersionEvent event;
  Status met;
  while (met.ok() && stream->Read(&event)) {
    met = CheckPeer(context);
    if (met.ok()) met = peer::CheckPeer("raas_receiver", event.peer());
    if (met.ok()) on_event(event);
  }
  if (!met.ok()) context.TryCancel();
  const grpc::Status status = stream->Finish();
  channel_->Ended(channel, status);
  if (!met.ok()) return met.WithContext(Cat("agent ", control_.address.text));
  if (!status.ok()) return Explain("WatchVersions", status, channel);
  return {ErrorCode::kUnavailable, Cat("agent ", control_.address.text, " ended the version stream; it drains")};
}

Result<std::vector<Ticket>> TicketsOf(const google::protobuf::RepeatedPtrField<std::string>& raw) {
  std::vector<Ticket> tickets;
  for (const std::string& one : raw) {
    LS_ASSIGN_OR_RETURN(const auto bytes, Bytes16(one));
    tickets.push_back({bytes});
  }
  return tickets;
}

}  // namespace lockstep::origin
