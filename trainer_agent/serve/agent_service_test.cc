// The service behind mutual TLS: which calls, models, pulls and reports a peer may have.
#include "trainer_agent/serve/agent_service.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/peer/peer.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {
namespace {

// Lets receivers have these models.
std::string PolicyFor(const std::string& models) {
  return Cat("[[allow]]\nname = \"spiffe://test/infer-*\"\nrole = \"receiver\"\nmodels = [", models, "]\n");
}

std::vector<v1::AgentModel> OpenModels() {
  std::vector<v1::AgentModel> models(2);
  models[0].set_name("actor");
  models[1].set_name("reward");
  return models;
}

// An agent's service, as peers with certificates of one CA see it.
class Guarded {
 public:
  Guarded() {
    REQUIRE(std::system(Cat("deploy/tls/make-test-ca.sh ", ca_.path(), " agent=IP:127.0.0.1 ",
                            "infer-0=URI:spiffe://test/infer-0 infer-1=URI:spiffe://test/infer-1")
                            .c_str()) == 0);
    WritePolicy(R"("actor", "critic")");
    access_ = *access::AccessControl::Create(ca_.File("policy.toml"));
    service_ =
        std::make_unique<AgentService>(access_.get(), &served.catalog, &scrubber_, &served.pulls,
                                       AgentService::PublishSide{.models = OpenModels, .drop = {}, .derive_again = {}},
                                       v1::BuildInfo(), LaneOffer{.address = ":1"}, "", &timeline_);
    REQUIRE(rpc::PrepareTls(FilesOf("agent")).ok());
    server_ = *rpc::RpcServer::Create(
        {.address = "127.0.0.1:0", .services = {service_.get()}, .tls = FilesOf("agent"), .health_services = {}});
  }

  void Allow(const std::string& models) {
    WritePolicy(models);
    access_->Reload();
  }

  std::unique_ptr<v1::TrainerAgent::Stub> StubOf(const std::string& name) const {
    return v1::TrainerAgent::NewStub(rpc::MakeChannel(Cat("127.0.0.1:", server_->bound_port()), FilesOf(name)));
  }

  Served served;

 private:
  void WritePolicy(const std::string& models) {
    REQUIRE(os::WriteFileAtomic(ca_.File("policy.toml"), PolicyFor(models)).ok());
  }

  rpc::TlsOptions FilesOf(const std::string& name) const {
    const std::string own = ca_.File(name);
    return {.cert = own + "/tls.crt", .key = own + "/tls.key", .ca = own + "/ca.crt", .server_name = ""};
  }

  const os::TempDir ca_;
  telemetry::Timeline timeline_;
  run::Scrubber scrubber_{&served.catalog, std::chrono::milliseconds(0)};
  std::unique_ptr<access::AccessControl> access_;
  std::unique_ptr<AgentService> service_;
  std::unique_ptr<rpc::RpcServer> server_;
};

template <typename Request, typename Response>
Status Call(v1::TrainerAgent::Stub& stub,
            grpc::Status (v1::TrainerAgent::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  return rpc::FromGrpc((stub.*method)(&context, request, response));
}

v1::OpenPullRequest Opening(const Guarded& guarded, bool standing = false) {
  v1::OpenPullRequest open;
  open.set_standing(standing);
  open.set_model("actor");
  open.set_peer(peer::SelfLine("raas_receiver"));
  open.set_receiver("r");
  open.set_layout_digest(ToBytes(guarded.served.layout->digest()));
  return open;
}

TEST_CASE("Another's pull does not exist, even to a caller that knows its number") {
  Guarded guarded;
  const auto own = guarded.StubOf("infer-0");
  const auto other = guarded.StubOf("infer-1");
  const auto open = Opening(guarded);
  v1::PullPlan plan;
  REQUIRE(Call(*own, &v1::TrainerAgent::Stub::OpenPull, open, &plan).ok());

  v1::CatchUpRequest catch_up;
  catch_up.set_pull_id(plan.pull_id());
  catch_up.set_oldest_version(1);
  v1::RenewTicketsRequest renew;
  renew.set_pull_id(plan.pull_id());
  v1::ClosePullRequest close;
  close.set_pull_id(plan.pull_id());
  v1::PullPlan steps;
  v1::RenewTicketsResponse tickets;
  v1::ClosePullResponse closed;
  CHECK_THAT(Call(*other, &v1::TrainerAgent::Stub::CatchUp, catch_up, &steps),
             FailsWith(ErrorCode::kNotFound, "is not open"));
  CHECK_THAT(Call(*other, &v1::TrainerAgent::Stub::RenewTickets, renew, &tickets),
             FailsWith(ErrorCode::kNotFound, "is not open"));
  CHECK(Call(*other, &v1::TrainerAgent::Stub::ClosePull, close, &closed).ok());  // as of any pull that had expired
  CHECK(Call(*own, &v1::TrainerAgent::Stub::CatchUp, catch_up, &steps).ok());
  CHECK(Call(*own, &v1::TrainerAgent::Stub::RenewTickets, renew, &tickets).ok());
  CHECK(guarded.served.pulls.open_pulls("actor") == 1);
  CHECK(Call(*own, &v1::TrainerAgent::Stub::ClosePull, close, &closed).ok());
  CHECK(guarded.served.pulls.open_pulls("actor") == 0);
}

TEST_CASE("A model that the policy takes away is gone from pulls that are open, too") {
  Guarded guarded;
  const auto stub = guarded.StubOf("infer-0");
  v1::PullPlan plan;
  REQUIRE(Call(*stub, &v1::TrainerAgent::Stub::OpenPull, Opening(guarded), &plan).ok());
  v1::PullPlan standing;
  REQUIRE(Call(*stub, &v1::TrainerAgent::Stub::OpenPull, Opening(guarded, true), &standing).ok());
  guarded.served.pulls.Expire();  // which ends nothing yet
  const auto ticket_of = [](const auto& opened) {
    Ticket ticket;
    std::memcpy(ticket.bytes.data(), opened.tickets(0).data(), ticket.bytes.size());
    return ticket;
  };
  const auto standing_lane = guarded.served.pulls.Admit(standing.pull_id(), ticket_of(standing));
  REQUIRE(standing_lane.ok());

  guarded.Allow(R"("critic")");
  v1::CatchUpRequest catch_up;
  catch_up.set_pull_id(plan.pull_id());
  catch_up.set_oldest_version(1);
  v1::PullPlan steps;
  CHECK_THAT(Call(*stub, &v1::TrainerAgent::Stub::CatchUp, catch_up, &steps),
             FailsWith(ErrorCode::kPermission, "TrainerAgent.CatchUp for model actor", "--tls-policy"));
  for (const uint64_t pull : {plan.pull_id(), standing.pull_id()}) {
    v1::RenewTicketsRequest renew;
    renew.set_pull_id(pull);
    v1::RenewTicketsResponse tickets;
    CHECK_THAT(Call(*stub, &v1::TrainerAgent::Stub::RenewTickets, renew, &tickets),
               FailsWith(ErrorCode::kPermission, "TrainerAgent.RenewTickets for model actor", "--tls-policy"));
  }
  guarded.served.pulls.Expire();
  CHECK(guarded.served.pulls.open_pulls("actor") == 0);
  CHECK_THAT(guarded.served.pulls.Admit(plan.pull_id(), ticket_of(plan)),
             FailsWith(ErrorCode::kPermission, "ticket is unknown"));
  CHECK((*standing_lane)->closed());

  guarded.Allow(R"("actor")");
  CHECK(Call(*stub, &v1::TrainerAgent::Stub::OpenPull, Opening(guarded), &plan).ok());
}

// A stream of versions, as its reader has it.
struct Stream {
  explicit Stream(v1::TrainerAgent::Stub& stub) {
    v1::WatchVersionsRequest request;
    request.set_model("actor");
    request.set_peer(peer::SelfLine("raas_receiver"));
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    reader = stub.WatchVersions(&context, request);
  }
  ~Stream() { context.TryCancel(); }

  // OK once there is another version; else how the stream ended.
  Status Next() {
    v1::VersionEvent event;
    return reader->Read(&event) ? OkStatus() : rpc::FromGrpc(reader->Finish());
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::VersionEvent>> reader;
};

TEST_CASE("A stream of versions ends with the next one when the policy took its model away") {
  Guarded guarded;
  const auto stub = guarded.StubOf("infer-0");
  Stream stream(*stub);
  REQUIRE(stream.Next().ok());
  guarded.Allow(R"("critic")");
  guarded.served.Publish(2);
  CHECK_THAT(stream.Next(),
             FailsWith(ErrorCode::kPermission, "TrainerAgent.WatchVersions for model actor", "--tls-policy"));
}

TEST_CASE("One name has as many streams of versions as pulls are allowed, and then leaves room for others") {
  Guarded guarded;
  const auto greedy = guarded.StubOf("infer-0");
  const auto other = guarded.StubOf("infer-1");
  std::vector<std::unique_ptr<Stream>> streams;
  for (size_t i = 0; i < guarded.served.pulls.limits().max_pulls; ++i) {
    CHECK(streams.emplace_back(std::make_unique<Stream>(*greedy))->Next().ok());
  }
  CHECK_THAT(Stream(*greedy).Next(),
             FailsWith(ErrorCode::kResourceExhausted, "3 version streams of spiffe://test/infer-0 are open"));
  CHECK(Stream(*other).Next().ok());
}

TEST_CASE("What a receiver reports is its own, whatever it calls itself; it is told of no model that is not its") {
  Guarded guarded;
  const auto own = guarded.StubOf("infer-0");
  const auto other = guarded.StubOf("infer-1");
  v1::ReportRequest report;
  report.set_model("actor");
  report.set_receiver("r");
  report.set_instance(std::string(16, 'i'));
  v1::ReportResponse known;
  REQUIRE(Call(*own, &v1::TrainerAgent::Stub::Report, report, &known).ok());
  CHECK(known.open());
  report.set_last_error("broken");
  REQUIRE(Call(*other, &v1::TrainerAgent::Stub::Report, report, &known).ok());
  const auto reports = guarded.served.pulls.reports().Of("actor");
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].receiver.owner == "spiffe://test/infer-0");
  CHECK(reports[0].last_error.empty());
  CHECK(reports[1].receiver.owner == "spiffe://test/infer-1");
  CHECK(reports[1].last_error == "broken");

  report.set_model("critic");
  v1::ReportResponse unknown;
  REQUIRE(Call(*own, &v1::TrainerAgent::Stub::Report, report, &unknown).ok());
  CHECK_FALSE(unknown.open());
  REQUIRE(unknown.models_size() == 1);
  CHECK(unknown.models(0) == "actor");
  report.set_model("reward");
  CHECK_THAT(Call(*own, &v1::TrainerAgent::Stub::Report, report, &unknown),
             FailsWith(ErrorCode::kPermission, "for model reward"));
}

}  // namespace
}  // namespace lockstep::serve
