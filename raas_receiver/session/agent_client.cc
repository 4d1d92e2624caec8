#include "raas_receiver/session/agent_client.h"

#include "common/base/text.h"
#include "common/rpc/channel.h"
#include "common/rpc/peer.h"
#include "common/rpc/status_mapping.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::session {
namespace {

constexpr std::chrono::milliseconds kCallTimeout{30'000};
constexpr std::chrono::milliseconds kCloseTimeout{2'000};

}  // namespace

// Makes a call's context reachable for Cancel.
class AgentClient::CallScope {
 public:
  CallScope(AgentClient& client, grpc::ClientContext& context, bool even_cancelled)
      : client_(client), context_(context) {
    std::lock_guard lock(client_.mutex_);
    client_.running_.insert(&context_);
    if (client_.cancelled_ && !even_cancelled) context_.TryCancel();
  }
  ~CallScope() {
    std::lock_guard lock(client_.mutex_);
    client_.running_.erase(&context_);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  AgentClient& client_;
  grpc::ClientContext& context_;
};

AgentClient::AgentClient(const net::ControlAddress& address, const rpc::TlsOptions& tls)
    : control_{address, tls.configured() && !address.IsSocket(), tls.plain},
      channel_(std::make_shared<rpc::LastingChannel>(control_.address.text, tls)) {}

AgentClient::AgentClient(const AgentClient& other) : control_(other.control_), channel_(other.channel_) {}

template <typename Request, typename Response>
Result<Response> AgentClient::Call(const char* name, Method<Request, Response> method, const Request& request,
                                   std::chrono::milliseconds timeout, bool even_cancelled) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  const CallScope scope(*this, context, even_cancelled);
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
  const Status explained = rpc::FromGrpc(status).WithContext(Cat(call, " at agent ", control_.address.text));
  if (!rpc::IsUnknownCall(status)) return explained;
  if (rpc::AnswersStatus<v1::RaasReceiver, v1::ReceiverStatusRequest, v1::ReceiverStatus>(channel)) {
    return {explained.code(),
            Cat(control_.address.text, " is the address of a raas_receiver, and none of a trainer_agent; ",
                "give --agent the gRPC address of the agent that serves the model")};
  }
  return {explained.code(), Cat(explained.message(), " (it does not know this call: is it of this version?)")};
}

Result<std::shared_ptr<const model::ModelLayout>> AgentClient::GetLayout(const std::string& model) {
  v1::GetLayoutRequest request;
  request.set_model(model);
  LS_ASSIGN_OR_RETURN(const v1::Layout answer, Call("GetLayout", &Stub::GetLayout, request, kCallTimeout));
  LS_ASSIGN_OR_RETURN(auto layout, model::ModelLayout::Decode(AsBytes(std::string_view(answer.encoded()))));
  if (ToBytes(layout->digest()) != answer.digest()) {
    return Status(ErrorCode::kCorrupt, Cat("the layout that agent ", control_.address.text, " sent for model ", model,
                                           " does not have the digest it names"));
  }
  return layout;
}

Result<v1::PullPlan> AgentClient::OpenPull(v1::OpenPullRequest request) {
  request.set_peer(peer::ToLine(self_));
  return Call("OpenPull", &Stub::OpenPull, request, kCallTimeout);
}

Result<v1::LivePlan> AgentClient::OpenLive(v1::OpenLiveRequest request) {
  request.set_peer(peer::ToLine(self_));
  // Briefly: who calls has a version to make known, and can do without.
  return Call("OpenLive", &Stub::OpenLive, request, kCloseTimeout);
}

Result<v1::PullPlan> AgentClient::CatchUp(uint64_t pull_id, Version oldest) {
  v1::CatchUpRequest request;
  request.set_pull_id(pull_id);
  request.set_oldest_version(oldest);
  return Call("CatchUp", &Stub::CatchUp, request, kCallTimeout);
}

Result<std::vector<Ticket>> AgentClient::RenewTickets(uint64_t pull_id, size_t lanes) {
  v1::RenewTicketsRequest request;
  request.set_pull_id(pull_id);
  request.set_lanes(static_cast<uint32_t>(lanes));
  LS_ASSIGN_OR_RETURN(const v1::RenewTicketsResponse answer,
                      Call("RenewTickets", &Stub::RenewTickets, request, kCallTimeout));
  return TicketsOf(answer.tickets());
}

Status AgentClient::ClosePull(uint64_t pull_id, const Held& held, const Status& outcome) {
  v1::ClosePullRequest request;
  request.set_pull_id(pull_id);
  *request.mutable_held() = ToProto(held);
  request.set_outcome(outcome.ok() ? "ok" : outcome.ToString());
  request.set_damaged(outcome.code() == ErrorCode::kCorrupt);
  return ToStatus(Call("ClosePull", &Stub::ClosePull, request, kCloseTimeout, true));
}

Result<v1::ReportResponse> AgentClient::Report(const v1::ReportRequest& request) {
  return Call("Report", &Stub::Report, request, kCloseTimeout);
}

Status AgentClient::WatchVersions(v1::WatchVersionsRequest request,
                                  const std::function<void(const v1::VersionEvent&)>& on_event) {
  grpc::ClientContext context;
  const CallScope scope(*this, context, false);
  request.set_peer(peer::ToLine(self_));
  LS_ASSIGN_OR_RETURN(const auto channel, Channel("WatchVersions"));
  const auto stream = v1::TrainerAgent::NewStub(channel)->WatchVersions(&context, request);
  v1::VersionEvent event;
  Status met;
  while (met.ok() && stream->Read(&event)) {
    met = CheckPeer(context);
    if (met.ok()) met = ToStatus(wire::MeetPeer(self_, event.peer()));
    if (met.ok()) on_event(event);
  }
  if (!met.ok()) context.TryCancel();
  const grpc::Status status = stream->Finish();
  channel_->Ended(channel, status);
  if (!met.ok()) return met.WithContext(Cat("agent ", control_.address.text));
  if (!status.ok()) return Explain("WatchVersions", status, channel);
  return {ErrorCode::kUnavailable, Cat("agent ", control_.address.text, " ended the version stream; it drains")};
}

void AgentClient::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

Result<std::vector<Ticket>> TicketsOf(const google::protobuf::RepeatedPtrField<std::string>& raw) {
  std::vector<Ticket> tickets;
  for (const std::string& one : raw) {
    LS_ASSIGN_OR_RETURN(const auto bytes, Bytes16(one));
    tickets.push_back({bytes});
  }
  return tickets;
}

v1::Held ToProto(const Held& held) {
  v1::Held proto;
  proto.set_run(ToBytes(held.run));
  proto.set_version(held.version);
  return proto;
}

Result<Held> FromProto(const v1::Held& held) {
  if (held.version() == 0) return Held{};
  LS_ASSIGN_OR_RETURN(const auto run, Bytes16(held.run()));
  return Held{{run}, held.version()};
}

}  // namespace lockstep::session
