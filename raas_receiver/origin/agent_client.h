// The agent's control plane as the receiver calls it. Every call but WatchVersions has a deadline, and all end with
// kCancelled once a stop is requested of its token.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/net/host_port.h"
#include "common/net/networks.h"
#include "common/peer/peer.h"
#include "common/rpc/channel.h"
#include "common/rpc/tls.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "raas_receiver/origin/version_ref_proto.h"

namespace lockstep::origin {

// How an agent is called.
struct Control {
  net::ControlAddress address;  // for lane addresses without a host
  bool encrypted = false;       // so must be the lanes
  net::Networks plain;          // where it is not: where the agent, and its lanes, may be
};

// Thread-safe. Names this receiver where the agent asks. Errors are the agent's own, with the call and the agent's
// address before the message; kProtocol says so where a receiver answers in its place.
class AgentClient {
 public:
  explicit AgentClient(const net::ControlAddress& address, const rpc::TlsOptions& tls = {});

  const Control& control() const { return control_; }

  // The layout, proved by its digest. kNotFound until a trainer has opened the model.
  Result<std::shared_ptr<const model::ModelLayout>> GetLayout(const std::string& model, std::stop_token stop);
  // Opens a pull. The deadline of a standing pull is short: a standing pull only saves time.
  Result<v1::PullPlan> OpenPull(v1::OpenPullRequest request, std::stop_token stop);
  Result<v1::PullPlan> CatchUp(uint64_t pull_id, Version oldest, std::stop_token stop);
  Result<std::vector<Ticket>> RenewTickets(uint64_t pull_id, size_t lanes, std::stop_token stop);
  // Tells the agent how a pull ended. Has a short deadline, and does not end at a stop.
  Status ClosePull(uint64_t pull_id, const VersionRef& held, const Status& outcome);

  // Calls `on_event` for every event until the stream ends; answers why it ended. kProtocol, naming both, when this
  // receiver and the agent speak different protocols.
  Status WatchVersions(v1::WatchVersionsRequest request, std::stop_token stop,
                       const std::function<void(const v1::VersionEvent&)>& on_event);
  // Briefly.
  Result<v1::ReportResponse> Report(const v1::ReportRequest& request, std::stop_token stop);

 private:
  using Stub = v1::TrainerAgent::Stub;
  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  Result<Response> Call(const char* name, Method<Request, Response> method, const Request& request,
                        std::chrono::milliseconds timeout, std::stop_token stop);
  // Returns the channel for the call of that name.
  Result<std::shared_ptr<grpc::Channel>> Channel(const char* call);
  // kPermission when the answer came from an address where plaintext is not allowed.
  Status CheckPeer(const grpc::ClientContext& context) const;
  Status Explain(const char* call, const grpc::Status& status, const std::shared_ptr<grpc::Channel>& channel) const;

  const Control control_;
  const std::shared_ptr<rpc::LastingChannel> channel_;
};

// Decodes tickets. kProtocol when one is not 16 bytes.
Result<std::vector<Ticket>> TicketsOf(const google::protobuf::RepeatedPtrField<std::string>& raw);

}  // namespace lockstep::origin
