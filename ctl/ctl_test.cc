// lockstepctl against daemons that know just enough.
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <functional>
#include <sstream>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "ctl/ctl_testing.h"
#include "ctl/output/json.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::ctl {
namespace {

constexpr int64_t kCommitted = 1'700'000'000'000'000'000;
const std::string kRun(16, '\x11');
const std::string kDigest(16, '\xab');
const std::string kOtherDigest(16, '\xcd');

v1::VersionRef VersionOf(uint64_t version) {
  v1::VersionRef held;
  held.set_run(kRun);
  held.set_version(version);
  return held;
}

Bytes EncodedLayout() {
  const auto layout =
      model::ModelLayout::Create({{.name = "w", .dtype = model::DType::kBF16, .shape = {4, 8}, .offset = 0}},
                                 model::kDefaultBlockBytes, {{"adapter_config.json", "{}"}});
  REQUIRE(layout.ok());
  return (*layout)->encoded();
}

class FakeAgent final : public v1::TrainerAgent::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::AgentStatusRequest*, v1::AgentStatus* status) override {
    status->mutable_build()->set_version("0.1.0");
    for (const std::string& name : models) {
      v1::AgentModel& model = *status->add_models();
      model.set_name(name);
      model.set_newest_version(7);
      model.set_newest_digest(kDigest);
      model.set_newest_label("step 70");
      model.set_model_bytes(3 << 20);
      v1::RetainedDelta& delta = *model.add_deltas();
      delta.set_base(6);
      delta.set_target(7);
      delta.set_payload_bytes(2048);
      model.set_newest_committed_unix_ns(kCommitted);
      v1::ReceiverState& receiver = *model.add_receivers();
      receiver.set_receiver("host-3");
      *receiver.mutable_held() = VersionOf(6);
      receivers(model);
    }
    status->set_now_unix_ns(kCommitted + 300'000'000'000);
    if (!unopened.empty()) {
      v1::UnopenedModel& model = *status->add_unopened();
      model.set_name(unopened);
      model.add_receivers()->set_receiver("host-9");
    }
    return grpc::Status::OK;
  }
  grpc::Status GetLayout(grpc::ServerContext*, const v1::GetLayoutRequest* request, v1::Layout* layout) override {
    if (request->model() != "actor") return rpc::ToGrpc({ErrorCode::kNotFound, "no model " + request->model()});
    layout->set_encoded(std::string(AsText(EncodedLayout())));
    return grpc::Status::OK;
  }
  grpc::Status WatchVersions(grpc::ServerContext*, const v1::WatchVersionsRequest* request,
                             grpc::ServerWriter<v1::VersionEvent>* writer) override {
    for (uint64_t version = 7; version < 9; ++version) {
      v1::VersionEvent event;
      event.set_model(request->model());
      *event.mutable_newest() = VersionOf(version);
      writer->Write(event);
    }
    return grpc::Status::OK;
  }
  grpc::Status GetManifest(grpc::ServerContext*, const v1::GetManifestRequest* request,
                           v1::Manifest* manifest) override {
    *manifest->mutable_held() = VersionOf(request->version());
    manifest->set_digest(manifest_digest);
    return grpc::Status::OK;
  }
  grpc::Status Verify(grpc::ServerContext*, const v1::AgentVerifyRequest*, v1::VerifyResult* result) override {
    *result->mutable_held() = VersionOf(7);
    result->set_recorded_digest(kDigest);
    result->set_computed_digest(kOtherDigest);
    result->add_bad_blocks(3);
    result->add_bad_tensors("model.norm.weight");
    return grpc::Status::OK;
  }

  grpc::Status DropModel(grpc::ServerContext*, const v1::DropModelRequest* request,
                         v1::DropModelResponse* response) override {
    if (request->model() != "actor") return rpc::ToGrpc({ErrorCode::kNotFound, "no model " + request->model()});
    response->set_run(std::string(16, '\1'));
    response->set_freed_bytes(6 << 20);
    return grpc::Status::OK;
  }

  // Of two receivers one serves the newest version, 7; both do when the tool asks for 7 itself.
  grpc::Status AwaitServed(grpc::ServerContext*, const v1::AwaitServedRequest* request,
                           v1::AwaitServedResponse* response) override {
    response->set_served(request->version() == 7 && request->names_size() == 0);
    response->set_version(7);
    response->set_receivers(2);
    response->set_serving(response->served() ? 2 : 1);
    if (response->served()) return grpc::Status::OK;
    response->set_text("\"r1\" serves nothing");
    response->add_lacking()->set_receiver("r1");
    return grpc::Status::OK;
  }

  std::vector<std::string> models = {"actor"};
  std::string unopened;  // a model that a receiver follows all the same
  std::function<void(v1::AgentModel&)> receivers = [](v1::AgentModel&) {};
  std::string manifest_digest = kDigest;
};

class FakeReceiver final : public v1::RaasReceiver::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*, v1::ReceiverStatus* status) override {
    status->set_name("host-3");
    status->set_now_unix_ns(kCommitted + 300'000'000'000);
    v1::ReceiverModel& model = *status->add_models();
    model = Model(7);
    model.set_held_committed_unix_ns(kCommitted);
    model.set_last_error("the engine says no");
    model.set_last_error_unix_ns(kCommitted + 260'000'000'000);
    return grpc::Status::OK;
  }
  grpc::Status Pull(grpc::ServerContext*, const v1::PullRequest* request, v1::SyncRecord* record) override {
    record->set_model(request->model());
    *record->mutable_to() = VersionOf(7);
    record->set_mode(request->force_full() ? "full" : "delta");
    record->set_engine_error(engine_error);
    record->set_verified(true);
    if (!request->force_full()) {
      record->set_payload_bytes(3072);
      record->set_model_bytes(3 << 20);
      record->set_streamed_bytes(2048);
      record->set_link_bytes_per_s(5 << 20);
    }
    return grpc::Status::OK;
  }
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest* request, v1::ReceiverModel* model) override {
    *model = Model(request->to_version() == 0 ? 6 : request->to_version());
    model->set_skipped_version(request->not_version());
    return grpc::Status::OK;
  }
  grpc::Status Verify(grpc::ServerContext*, const v1::ReceiverVerifyRequest*, v1::VerifyResult* result) override {
    *result->mutable_held() = VersionOf(7);
    result->set_recorded_digest(kDigest);
    result->set_computed_digest(computed_digest);
    result->set_engines(engines);
    if (!not_compared.empty()) result->add_not_compared(not_compared);
    return grpc::Status::OK;
  }

  std::string agent_address;
  uint32_t engines = 0;
  std::string not_compared;
  std::string engine_error;
  std::string computed_digest = kDigest;

 private:
  v1::ReceiverModel Model(uint64_t version) const {
    v1::ReceiverModel model;
    model.set_name("actor");
    model.set_source(agent_address);
    model.set_state(v1::SESSION_STATE_HELD);
    *model.mutable_held() = VersionOf(version);
    return model;
  }
};

// Both daemons, and a shell to talk to them.
class Fleet {
 public:
  Fleet() {
    agent_server_ = Serve(agent, "trainer-agent-readiness");
    receiver_server_ = Serve(receiver, "raas-receiver-readiness");
    receiver.agent_address = AgentAddress();
  }

  std::string AgentAddress() const { return Cat("127.0.0.1:", agent_server_->bound_port()); }
  std::string ReceiverAddress() const { return Cat("127.0.0.1:", receiver_server_->bound_port()); }
  rpc::RpcServer& agent_server() { return *agent_server_; }

  Answer Agent(std::vector<std::string> words) { return Run("--agent", AgentAddress(), std::move(words)); }
  Answer Receiver(std::vector<std::string> words) { return Run("--receiver", ReceiverAddress(), std::move(words)); }

  static Answer Run(const std::string& flag, const std::string& address, std::vector<std::string> words) {
    words.insert(words.begin(), {flag, address});
    return RunWords(words);
  }

  FakeAgent agent;
  FakeReceiver receiver;

 private:
  static std::unique_ptr<rpc::RpcServer> Serve(grpc::Service& service, const std::string& health) {
    auto server =
        rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {&service}, .health_services = {"", health}});
    REQUIRE(server.ok());
    return *std::move(server);
  }

  std::unique_ptr<rpc::RpcServer> agent_server_;
  std::unique_ptr<rpc::RpcServer> receiver_server_;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Status is a table for people and the whole message as JSON") {
  Fleet fleet;
  const Answer table = fleet.Agent({"status"});
  REQUIRE(table.status.ok());
  CHECK(Has(table.text, "MODEL  VERSION  LABEL       SIZE"));
  CHECK(Has(table.text, "actor        7  step 70  3.0 MiB"));
  CHECK(Has(table.text, "host-3"));
  const Json json = Json::parse(fleet.Agent({"--json", "status"}).text);
  CHECK(json["models"][0]["newest_version"] == 7);
  CHECK(json["models"][0]["newest_digest"] == Hex(kDigest));
  CHECK(json["models"][0]["deltas"][0]["payload_bytes"] == 2048);
  CHECK(json["draining"] == false);
  const Json receiver = Json::parse(fleet.Receiver({"status", "--json"}).text);
  CHECK(receiver["models"][0]["state"] == "held");
  CHECK(receiver["models"][0]["held"]["run"] == Hex(kRun));
}

TEST_CASE(
    "Status of an agent says of every receiver whether it is there, what it holds and serves, and its last error") {
  Fleet fleet;
  fleet.agent.unopened = "actro";
  fleet.agent.receivers = [](v1::AgentModel& model) {
    v1::ReceiverState& gone = *model.add_receivers();
    gone.set_receiver("host-4");
    gone.set_presence(v1::RECEIVER_PRESENCE_GONE);
    gone.set_gone_seconds(90);
    v1::ReceiverState& one = *model.add_receivers();
    one.set_receiver("host-5");
    one.set_presence(v1::RECEIVER_PRESENCE_CONNECTED);
    one.set_served_version(5);
    one.set_last_error("no memory");
    one.set_name_shared(true);
    one.set_instance(kDigest);
    one.set_identity("spiffe://test/infer-5");
  };
  const std::string text = fleet.Agent({"status"}).text;
  CHECK(Has(text, "gone for 90 s"));
  CHECK(Has(text, "connected, one of several: abababababab of spiffe://test/infer-5"));
  CHECK(Has(text, "no memory"));
  CHECK(Has(text, "5 min"));  // the newest version's age
  CHECK(Has(text, "no trainer has opened actro, which receivers follow"));
  CHECK(Has(text, "host-9"));
  const Json json = Json::parse(fleet.Agent({"--json", "status"}).text);
  CHECK(json["models"][0]["receivers"][1]["presence"] == "gone");
  CHECK(json["models"][0]["receivers"][2]["served_version"] == 5);
  CHECK(json["unopened"][0]["name"] == "actro");
}

TEST_CASE("Status of a receiver says how old its version is and when its last error was") {
  Fleet fleet;
  const std::string text = fleet.Receiver({"status"}).text;
  CHECK(Has(text, "5 min"));
  CHECK(Has(text, "the engine says no (40 s ago)"));
}

TEST_CASE("Versions lists the deltas of an agent and the replicas of a receiver") {
  Fleet fleet;
  CHECK(Has(fleet.Agent({"versions"}).text, "2.0 KiB"));
  CHECK(Json::parse(fleet.Agent({"versions", "--json"}).text)[0]["deltas"][0]["base"] == 6);
  CHECK(Has(fleet.Receiver({"versions"}).text, "current"));
  CHECK(Json::parse(fleet.Receiver({"versions", "--json"}).text)[0]["current"]["version"] == 7);
}

TEST_CASE("Layout names every tensor and attachment") {
  Fleet fleet;
  CHECK(Has(fleet.Agent({"layout"}).text, "BF16"));
  const Json json = Json::parse(fleet.Agent({"layout", "--model", "actor", "--json"}).text);
  CHECK(json["tensors"][0] ==
        Json({{"name", "w"}, {"dtype", "BF16"}, {"shape", {4, 8}}, {"offset", 0}, {"bytes", 64}}));
  CHECK(json["attachments"] == Json::array({{{"name", "adapter_config.json"}, {"bytes", 2}}}));
  CHECK(Has(fleet.Agent({"layout"}).text, "with adapter_config.json, 2 B"));
}

TEST_CASE("Verify of a damaged agent fails and names the tensors") {
  Fleet fleet;
  const Answer answer = fleet.Agent({"verify"});
  CHECK(ExitCode(answer.status.code()) == 65);
  CHECK_THAT(answer.status, FailsWith(ErrorCode::kCorrupt, "model.norm.weight", fleet.AgentAddress()));
  CHECK(Has(answer.text, "NOT equal"));
}

TEST_CASE("Verify of a receiver compares its bytes with the agent's manifest") {
  Fleet fleet;
  const Answer equal = fleet.Receiver({"verify", "--json"});
  REQUIRE(equal.status.ok());
  const Json json = Json::parse(equal.text);
  CHECK(json["equal"] == true);
  CHECK(json["computed_digest"] == Hex(kDigest));
  CHECK(json["agent"]["digest"] == Hex(kDigest));

  fleet.agent.manifest_digest = kOtherDigest;
  const Answer other = fleet.Receiver({"verify", "--agent", fleet.AgentAddress()});
  CHECK(ExitCode(other.status.code()) == 65);
  CHECK(Has(other.text, Hex(kDigest)));
  CHECK(Has(other.text, Hex(kOtherDigest)));
}

TEST_CASE("Verify of engines proves nothing where none is attached, and says how many it compared") {
  Fleet fleet;
  CHECK_THAT(fleet.Receiver({"verify", "--engines"}).status, FailsWith(ErrorCode::kState, "no engine is attached"));
  CHECK(fleet.Receiver({"verify"}).status.ok());
  fleet.receiver.engines = 2;
  const Answer answer = fleet.Receiver({"verify", "--engines"});
  CHECK(answer.status.ok());
  CHECK(Has(answer.text, "compared, too: 2"));
  fleet.receiver.not_compared = "b: no rank of it is attached";
  CHECK_THAT(fleet.Receiver({"verify", "--engines"}).status,
             FailsWith(ErrorCode::kState, "1 of 3 engines were not compared: b: no rank of it is attached"));
  CHECK(fleet.Receiver({"verify"}).status.ok());
  CHECK(fleet.Agent({"verify", "--engines"}).status.code() == ErrorCode::kUsage);
}

TEST_CASE("Damage of a receiver is reported also when its agent cannot be asked") {
  Fleet fleet;
  fleet.agent_server().Drain(std::chrono::milliseconds(100));
  CHECK(fleet.Receiver({"verify"}).status.code() == ErrorCode::kUnavailable);
  fleet.receiver.computed_digest = kOtherDigest;
  CHECK(fleet.Receiver({"verify"}).status.code() == ErrorCode::kCorrupt);
}

TEST_CASE("Pull prints its record, and a hook that failed is an error") {
  Fleet fleet;
  const Answer pull = fleet.Receiver({"pull", "actor", "--full", "--json"});
  REQUIRE(pull.status.ok());
  CHECK(Json::parse(pull.text)["mode"] == "full");
  fleet.receiver.engine_error = "exit status 3";
  const Answer hook = fleet.Receiver({"pull"});
  CHECK_THAT(hook.status, FailsWith(ErrorCode::kAborted, "exit status 3"));
}

TEST_CASE("A sync's line says how its bytes came") {
  Fleet fleet;
  const std::string line = fleet.Receiver({"pull"}).text;
  INFO(line);
  CHECK(Has(line, "3.0 KiB of 3.0 MiB, 2.0 KiB streamed, at 5.0 MiB/s, publish to commit"));
  CHECK(Has(fleet.Receiver({"pull", "--full"}).text, "0 B of 0 B, publish to commit"));
  const Json json = Json::parse(fleet.Receiver({"pull", "--json"}).text);
  CHECK(json["streamed_bytes"] == 2048);
}

TEST_CASE("Rollback says where the receiver is now") {
  Fleet fleet;
  CHECK(fleet.Receiver({"rollback"}).text == "actor is at version 6 and stays there until `pull`\n");
  CHECK(fleet.Receiver({"rollback", "--to", "5"}).text == "actor is at version 5 and stays there until `pull`\n");
  CHECK(fleet.Receiver({"rollback", "--not", "7"}).text ==
        "actor is at version 6 and follows again when there is a newer one than 7\n");
  for (const auto& wrong :
       {std::vector<std::string>{"rollback", "--not", "7", "--to", "6"},
        std::vector<std::string>{"rollback", "--not", "0"}, std::vector<std::string>{"pull", "--not", "7"}}) {
    CHECK(fleet.Receiver(wrong).status.code() == ErrorCode::kUsage);
  }
}

TEST_CASE("A wait asks again for the version that was the newest, and says who lacks it when its time is up") {
  Fleet fleet;
  CHECK(fleet.Agent({"wait-served"}).text ==
        "actor: version 7 or a newer one is served by 2 of 2 connected receivers\n");
  const Answer late = fleet.Agent({"wait-served", "--name", "r0", "--name", "r1", "--timeout", "50ms", "--json"});
  CHECK_THAT(late.status, FailsWith(ErrorCode::kDeadline, "\"r1\" serves nothing"));
  CHECK(Json::parse(late.text)["lacking"][0]["receiver"] == "r1");
  CHECK(fleet.Agent({"wait-served", "--to", "7", "--label", "a"}).status.code() == ErrorCode::kUsage);
  CHECK(fleet.Agent({"wait-served", "--engines", "2", "--name", "r1"}).status.code() == ErrorCode::kUsage);
}

TEST_CASE("Drop names its model, goes to the agent, and says what is free") {
  Fleet fleet;
  CHECK(fleet.Agent({"drop", "actor"}).text ==
        "actor is dropped: 6.0 MiB are free once open pulls end; receivers keep what they hold\n");
  CHECK(Json::parse(fleet.Agent({"drop", "actor", "--json"}).text)["freed_bytes"] == 6 << 20);
  CHECK(fleet.Agent({"drop", "critic"}).status.code() == ErrorCode::kNotFound);
  CHECK(fleet.Agent({"drop"}).status.code() == ErrorCode::kUsage);
  CHECK_THAT(fleet.Receiver({"drop", "actor"}).status, FailsWith(ErrorCode::kUsage, "only agents can do that"));
}

TEST_CASE("Watch prints a line for each event, and its end is an error unless it was counted") {
  Fleet fleet;
  const Answer counted = fleet.Agent({"watch", "--count", "1", "--json"});
  REQUIRE(counted.status.ok());
  CHECK(Json::parse(counted.text)["newest"]["version"] == 7);
  const Answer open = fleet.Agent({"watch"});
  CHECK(open.status.code() == ErrorCode::kUnavailable);
  CHECK(Has(open.text, "actor version 8"));
}

TEST_CASE("Health is 0 when serving and 69 when not or when no daemon listens") {
  Fleet fleet;
  CHECK(ExitCode(fleet.Agent({"health", "readiness"}).status.code()) == 69);
  fleet.agent_server().SetServing("trainer-agent-readiness", true);
  CHECK(fleet.Agent({"health", "readiness"}).status.ok());
  CHECK(ExitCode(fleet.Agent({"health"}).status.code()) == 69);
  CHECK(fleet.Agent({"health", "nonsense"}).status.code() == ErrorCode::kNotFound);
  const std::string gone = fleet.AgentAddress();
  fleet.agent_server().Drain(std::chrono::milliseconds(100));
  const Answer answer = fleet.Agent({"health", "--timeout", "2s"});
  CHECK(ExitCode(answer.status.code()) == 69);
  CHECK_THAT(answer.status, FailsWith(ErrorCode::kUnavailable, gone));
}

TEST_CASE("Quiet prints nothing") {
  Fleet fleet;
  CHECK(fleet.Agent({"status", "--quiet"}).text.empty());
}

TEST_CASE("Without a name the only model is meant, and of several one must be named") {
  Fleet fleet;
  fleet.agent.models = {"actor", "critic"};
  const Answer several = fleet.Agent({"layout"});
  CHECK_THAT(several.status, FailsWith(ErrorCode::kUsage, "actor critic"));
  CHECK(fleet.Agent({"layout", "actor"}).status.ok());
  CHECK(fleet.Agent({"layout", "critic"}).status.code() == ErrorCode::kNotFound);
  fleet.agent.models = {};
  CHECK(fleet.Agent({"verify"}).status.code() == ErrorCode::kNotFound);
}

TEST_CASE("The wrong kind of daemon is said to be so") {
  Fleet fleet;
  CHECK(fleet.Agent({"pull"}).status.code() == ErrorCode::kUsage);
  CHECK(fleet.Agent({"rollback", "--receiver", "127.0.0.1:1"}).status.code() == ErrorCode::kUsage);
  fleet.receiver.agent_address = fleet.ReceiverAddress();
  const Answer answer = fleet.Receiver({"verify"});
  CHECK_THAT(answer.status, FailsWith(ErrorCode::kProtocol, "a raas_receiver answers there"));
}

TEST_CASE("The address of the other daemon is told from a daemon that does not know the call") {
  Fleet fleet;
  const Answer receiver = Fleet::Run("--agent", fleet.ReceiverAddress(), {"status"});
  CHECK(receiver.status.code() == ErrorCode::kProtocol);
  CHECK(receiver.status.message() == Cat("trainer_agent ", fleet.ReceiverAddress(), ": a raas_receiver answers there; ",
                                         "its address is given as --receiver ", fleet.ReceiverAddress()));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"status"}, {"pull"}, {"watch"}}) {
    const Answer agent = Fleet::Run("--receiver", fleet.AgentAddress(), words);
    CHECK_THAT(agent.status,
               FailsWith(ErrorCode::kProtocol, "a trainer_agent answers there; its address is given as --agent"));
  }
  const Answer unknown = fleet.Agent({"timeline", "--receiver", fleet.ReceiverAddress()});  // neither has it
  CHECK_THAT(unknown.status, FailsWith(ErrorCode::kProtocol, "is it of this version?"));
}

Result<std::optional<Invocation>> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "lockstepctl");
  std::ostringstream out;
  return ParseInvocation(static_cast<int>(words.size()), words.data(), out);
}

DaemonOptions ParseDaemon(std::vector<const char*> words) {
  return std::get<DaemonOptions>((*Parse(std::move(words)))->wanted);
}

TEST_CASE("Flags, then environment, then defaults say where a command goes, and flags for how long") {
  CHECK(ParseDaemon({"status"}).address == "unix:/run/trainer-agent/control.sock");
  for (const char* command : {"pull", "rollback", "verify"}) {
    CHECK(ParseDaemon({command}).address == "unix:/run/raas-receiver/control.sock");
  }
  ::setenv("LOCKSTEP_RECEIVER", "r:1", 1);
  CHECK(ParseDaemon({"status"}).daemon == Daemon::kReceiver);
  CHECK(ParseDaemon({"status"}).address == "r:1");
  CHECK(ParseDaemon({"drop", "actor"}).address == "unix:/run/trainer-agent/control.sock");
  ::setenv("LOCKSTEP_AGENT", "a:1", 1);
  CHECK(ParseDaemon({"status"}).address == "a:1");
  for (const char* command : {"pull", "rollback", "verify"}) CHECK(ParseDaemon({command}).address == "r:1");
  CHECK(ParseDaemon({"verify", "--agent", "x:2"}).address == "x:2");
  CHECK(ParseDaemon({"status", "--receiver", "x:2"}).address == "x:2");
  const auto timeline = Parse({"timeline", "--timeout", "2s"});
  CHECK(std::get<TimelineOptions>((*timeline)->wanted).timeout == std::chrono::milliseconds(2000));
  CHECK(ParseDaemon({"health", "liveness", "--receiver", "x:2"}).health_service == "raas-receiver-liveness");
  ::unsetenv("LOCKSTEP_AGENT");
  ::unsetenv("LOCKSTEP_RECEIVER");
}

TEST_CASE("A wrong command line is a usage error") {
  for (const std::vector<const char*>& words :
       std::vector<std::vector<const char*>>{{},
                                             {"stats"},
                                             {"status", "--jsn"},
                                             {"status", "--timeout", "0"},
                                             {"status", "--timeout", "soon"},
                                             {"status", "--agent", "nowhere"},
                                             {"status", "--agent", "a:1", "--receiver", "b:1"},
                                             {"layout", "a", "b"}}) {
    CHECK(Parse(words).status().code() == ErrorCode::kUsage);
  }
  CHECK_FALSE((*Parse({"--version"})).has_value());
  CHECK_FALSE((*Parse({"pull", "--help"})).has_value());
}

}  // namespace
}  // namespace lockstep::ctl
