// A trainer agent for tests: a real gRPC server and a real lane port over a TestModel. Tests can falsify its answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/peer/peer.h"
#include "common/rpc/rpc_server.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "raas_receiver/origin/agent_client.h"
#include "raas_receiver/pull/test_lane_server.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::origin {

class TestAgent final : public v1::TrainerAgent::Service {
 public:
  // Publishes version 1 of `model` at once. The model must not be changed but by Publish.
  explicit TestAgent(replica::TestModel& model) : model_(model), lanes_(model) {
    model_.frozen_end = true;
    model_.Advance();
    model_.Advance();
    lanes_.version_of = [this](BlockIndex) { return newest_.load(); };
    lanes_.begun = [this](Version base) { return newest_.load() > base; };
    lanes_.refuse = [this](const wire::BlockRequest& request) { return refuse_full(request); };
    for (Version version = 1; version < 12; ++version) {
      if (version > 1) model_.Advance();
      lanes_.payloads[version] = model_.DeltaBlocks(version, version + 1);
    }
    server_ = *rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {this}, .health_services = {}});
  }
  ~TestAgent() override {
    stopping_ = true;
    changed_.notify_all();
    server_->Drain(std::chrono::milliseconds(500));
  }

  net::HostPort address() const { return {"127.0.0.1", static_cast<uint16_t>(server_->bound_port())}; }
  pull::TestLaneServer& lanes() { return lanes_; }

  // The next of the 12 versions.
  Version Publish() {
    std::lock_guard lock(mutex_);
    ++newest_;
    changed_.notify_all();
    return newest_;
  }

  // Changed by tests, before what they are to act on.
  std::function<void(v1::PullPlan&)> twist = [](v1::PullPlan&) {};
  std::function<void(v1::Layout&)> twist_layout = [](v1::Layout&) {};
  std::function<void(v1::VersionEvent&)> twist_event = [](v1::VersionEvent&) {};
  std::function<Status(const wire::BlockRequest&)> refuse_full = [](const wire::BlockRequest&) { return OkStatus(); };
  std::function<Version()> catch_up_target = [this] { return newest_.load(); };
  std::string peer = peer::SelfLine("trainer_agent");
  std::string refusal;                   // of a watcher, for its protocol
  std::vector<std::string> open_models;  // instead of the one that is asked for; changed before the start
  std::atomic<bool> streaming = false;   // whether it has streaming deltas to give
  std::atomic<int> pulls_opened = 0;
  std::atomic<int> pulls_closed = 0;
  // Of a closed pull; read after the sync.
  std::string last_outcome;
  bool last_damaged = false;

  grpc::Status GetLayout(grpc::ServerContext*, const v1::GetLayoutRequest*, v1::Layout* layout) override {
    layout->set_digest(ToBytes(model_.layout()->digest()));
    layout->set_encoded(std::string(AsText(model_.layout()->encoded())));
    twist_layout(*layout);
    return grpc::Status::OK;
  }

  grpc::Status WatchVersions(grpc::ServerContext* context, const v1::WatchVersionsRequest*,
                             grpc::ServerWriter<v1::VersionEvent>* writer) override {
    if (!refusal.empty()) return {grpc::StatusCode::UNIMPLEMENTED, refusal};
    Version announced = 0;
    std::unique_lock lock(mutex_);
    while (!stopping_ && !context->IsCancelled()) {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
      if (announced == newest_) continue;
      announced = newest_;
      v1::VersionEvent event;
      *event.mutable_newest() = ToProto(model_.held(announced));
      event.set_peer(peer);
      event.set_layout_digest(ToBytes(model_.layout()->digest()));
      event.set_manifest_digest(ToBytes(model_.manifest(announced).digest));
      twist_event(event);
      writer->Write(event);
    }
    return grpc::Status::OK;
  }

  grpc::Status OpenPull(grpc::ServerContext*, const v1::OpenPullRequest* request, v1::PullPlan* plan) override {
    for (uint32_t lane = 0; lane < request->lanes_wanted(); ++lane) plan->add_tickets(ToBytes(RandomId<Ticket>()));
    plan->set_lane_address(":" + std::to_string(lanes_.port()));
    if (request->standing()) {
      if (!streaming) return {grpc::StatusCode::UNIMPLEMENTED, ""};
      plan->set_pull_id(1'000'000);
      plan->set_mode(v1::PULL_MODE_STANDING);
      return grpc::Status::OK;
    }
    const VersionRef held = *FromProto(request->held());
    const Version newest = newest_;
    const bool knows = held.run == model_.run() && held.version > 0 && !request->force_full();
    Fill(newest, *plan);
    if (knows && held.version == newest) {
      plan->set_mode(v1::PULL_MODE_UP_TO_DATE);
      return grpc::Status::OK;
    }
    plan->set_pull_id(static_cast<uint64_t>(++pulls_opened));
    plan->set_mode(v1::PULL_MODE_FULL);
    if (knows) {
      AddSteps(held.version, newest, *plan);
      *plan->mutable_base() = request->held();
      plan->set_mode(plan->steps_size() == 1 ? v1::PULL_MODE_DELTA : v1::PULL_MODE_CHAIN);
    }
    twist(*plan);
    return grpc::Status::OK;
  }

  grpc::Status CatchUp(grpc::ServerContext*, const v1::CatchUpRequest* request, v1::PullPlan* plan) override {
    const Version target = catch_up_target();
    Fill(target, *plan);
    plan->set_pull_id(request->pull_id());
    plan->set_mode(v1::PULL_MODE_CHAIN);
    AddSteps(request->oldest_version(), target, *plan);
    return grpc::Status::OK;
  }

  grpc::Status RenewTickets(grpc::ServerContext*, const v1::RenewTicketsRequest* request,
                            v1::RenewTicketsResponse* response) override {
    for (uint32_t lane = 0; lane < request->lanes(); ++lane) response->add_tickets(ToBytes(RandomId<Ticket>()));
    return grpc::Status::OK;
  }

  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request, v1::ReportResponse* response) override {
    std::lock_guard lock(mutex_);
    reported_ = *request;
    response->set_open(open_models.empty());
    for (const std::string& model : open_models) response->add_models(model);
    return grpc::Status::OK;
  }
  v1::ReportRequest last_report() {
    std::lock_guard lock(mutex_);
    return reported_;
  }

  grpc::Status ClosePull(grpc::ServerContext*, const v1::ClosePullRequest* request, v1::ClosePullResponse*) override {
    last_outcome = request->outcome();
    last_damaged = request->damaged();
    ++pulls_closed;
    return grpc::Status::OK;
  }

 private:
  void Fill(Version target, v1::PullPlan& plan) const {
    *plan.mutable_target() = ToProto(model_.held(target));
    plan.set_target_digest(ToBytes(model_.manifest(target).digest));
    plan.set_committed_unix_ns(1);
  }
  void AddSteps(Version base, Version target, v1::PullPlan& plan) const {
    for (Version version = base; version < target; ++version) {
      v1::DeltaStep& step = *plan.add_steps();
      step.set_payload_id(version);
      step.set_base(version);
      step.set_target(version + 1);
      step.set_target_digest(ToBytes(model_.manifest(version + 1).digest));
      for (const payload::DeltaBlock& block : lanes_.payloads.at(version)) {
        step.set_entries(step.entries() + 1);
        step.set_data_bytes(step.data_bytes() + block.data.size());
        step.set_changed_elements(step.changed_elements() + block.changes);
      }
    }
  }

  v1::ReportRequest reported_;
  replica::TestModel& model_;
  pull::TestLaneServer lanes_;
  std::atomic<Version> newest_ = 1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<rpc::RpcServer> server_;
};

}  // namespace lockstep::origin
