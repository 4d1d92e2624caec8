#include "trainer_agent/serve/served_wait.h"

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {
namespace {

using std::chrono::milliseconds;

// A model with version 1, and what its receivers report.
struct Fleet {
  Served agent;
  std::vector<std::unique_ptr<ReceiverReports::Connection>> connections;

  VersionRef Of(Version version) const { return {agent.run->run(), version}; }
  void Report(const std::string& name, const VersionRef& served, const std::string& error = "", char instance = 'i') {
    const ReceiverKey key{"actor", name, "", std::string(16, instance)};
    REQUIRE(agent.pulls.reports().Report(key, Of(1), served, error).ok());
    connections.push_back(*agent.pulls.reports().Connect(key));
  }
  void Publish(Version version, const std::string& label) {
    REQUIRE(agent.catalog.Publish(agent.run, {agent.ManifestOf(version), 1, label}).ok());
  }

  v1::AwaitServedRequest Ask(uint32_t receivers, const std::vector<std::string>& names = {}) const {
    v1::AwaitServedRequest request = AskLabel("");
    request.set_version(1);
    request.set_receivers(receivers);
    request.mutable_names()->Assign(names.begin(), names.end());
    return request;
  }
  v1::AwaitServedRequest AskLabel(const std::string& label) const {
    v1::AwaitServedRequest request;
    request.set_model("actor");
    request.set_run(ToHex(agent.run->run()));
    request.set_label(label);
    request.set_receivers(1);
    return request;
  }
  Result<v1::AwaitServedResponse> Ask(const v1::AwaitServedRequest& request) {
    return AwaitServed(agent.catalog, agent.pulls.reports(), request, [] { return false; });
  }
  // The version that is served; kDeadline: it is not.
  Result<Version> Await(const v1::AwaitServedRequest& request) {
    LS_ASSIGN_OR_RETURN(const v1::AwaitServedResponse answer, Ask(request));
    if (!answer.served()) return Status(ErrorCode::kDeadline, answer.text());
    return Version{answer.version()};
  }
};

TEST_CASE("A version is served once as many receivers serve it, or a newer one of its run, as are asked for") {
  Fleet fleet;
  fleet.Report("a", fleet.Of(1));
  CHECK(*fleet.Await(fleet.Ask(1)) == 1);
  CHECK_THAT(fleet.Await(fleet.Ask(2)), FailsWith(ErrorCode::kDeadline, "version 1 is not served by 2 receivers"));
  fleet.Report("other-run", {RunId{{9}}, 7});
  CHECK_THAT(fleet.Await(fleet.Ask(2)),
             FailsWith(ErrorCode::kDeadline, "\"other-run\" serves version 7 of another run"));
  fleet.Report("old", {RunId{}, 7});
  CHECK_THAT(fleet.Await(fleet.Ask(2)),
             FailsWith(ErrorCode::kDeadline, "\"old\" serves version 7 of a run that it does not name"));
  fleet.Report("b", fleet.Of(3));
  CHECK(*fleet.Await(fleet.Ask(2)) == 1);
}

TEST_CASE("The answer says what the version took, and how far the fleet is") {
  Fleet fleet;
  fleet.Report("a", fleet.Of(1));
  fleet.Report("b", {RunId{{9}}, 7});
  const auto first = fleet.Ask(fleet.Ask(1));
  CHECK(first->model_bytes() == fleet.agent.run->layout().data_bytes());
  CHECK(first->delta_bytes() == 0);
  CHECK(first->receivers() == 2);
  CHECK(first->serving() == 1);
  CHECK(first->newest_version() == 1);
  CHECK(first->oldest_served() == 0);
  fleet.connections.pop_back();
  fleet.agent.Publish(2);
  const auto second = fleet.Ask(fleet.Ask(1));
  CHECK(second->version() == 1);
  CHECK(second->newest_version() == 2);
  CHECK(second->oldest_served() == 1);
  CHECK(second->receivers() == 1);
  fleet.Report("a", fleet.Of(2));
  auto question = fleet.Ask(1);
  question.set_version(2);
  const auto third = fleet.Ask(question);
  CHECK(third->delta_bytes() == fleet.agent.run->deltas().StepTo(2).data_bytes);
  CHECK(third->delta_bytes() > 0);
  CHECK(third->density() > 0);
  CHECK(third->density() <= 1);
  CHECK(third->oldest_served() == 2);
}

TEST_CASE("Engines are counted, and named, of receivers that have several") {
  Fleet fleet;
  const auto report = [&](const std::string& name, std::vector<EngineReport> engines) {
    const ReceiverKey key{"actor", name, "", std::string(16, 'i')};
    REQUIRE(fleet.agent.pulls.reports().Report(key, fleet.Of(1), {}, "", std::move(engines)).ok());
    fleet.connections.push_back(*fleet.agent.pulls.reports().Connect(key));
  };
  fleet.Report("one", fleet.Of(1));
  report("host", {{"a", fleet.Of(2), ""}, {"b", {}, "it refuses"}});
  const auto ask = [&](uint32_t engines) {
    auto question = fleet.Ask(0);
    question.set_engines(engines);
    return fleet.Await(question);
  };
  CHECK(*ask(2) == 1);
  CHECK_THAT(ask(3),
             FailsWith(ErrorCode::kDeadline, "is not served by 3 engines",
                       "\"host\" serves nothing, holds version 1, its engine \"b\" serves nothing (it refuses)"));
  CHECK(*fleet.Await(fleet.Ask(0, {"host/a"})) == 1);
  CHECK_THAT(fleet.Await(fleet.Ask(0, {"host/a", "host/b"})),
             FailsWith(ErrorCode::kDeadline, "by 2 named receivers", "its engine \"b\""));
  CHECK_THAT(fleet.Await(fleet.Ask(0, {"host/c"})), FailsWith(ErrorCode::kDeadline, "\"host/c\" is not known here"));
  std::vector<EngineReport> too_many(257);
  const ReceiverKey key{"actor", "host", "", std::string(16, 'i')};
  CHECK_THAT(fleet.agent.pulls.reports().Report(key, fleet.Of(1), {}, "", std::move(too_many)),
             FailsWith(ErrorCode::kBadData, "257 engines"));
}

TEST_CASE("Every receiver that is connected is waited for by one name, and one must be") {
  Fleet fleet;
  const auto question = fleet.Ask(0, {kEveryReceiver});
  CHECK_THAT(fleet.Await(question),
             FailsWith(ErrorCode::kDeadline, "is not served by every connected receiver", "; none is connected"));
  fleet.Report("good", fleet.Of(1));
  CHECK(*fleet.Await(question) == 1);
  fleet.Report("bad", {}, "no room");
  CHECK_THAT(fleet.Await(question),
             FailsWith(ErrorCode::kDeadline, "\"bad\" serves nothing", "says: no room", "\"good\" serves version 1"));
  const auto answer = *fleet.Ask(question);
  REQUIRE(answer.lacking_size() == 1);
  CHECK(answer.lacking(0).receiver() == "bad");
  CHECK(answer.lacking(0).presence() == v1::RECEIVER_PRESENCE_CONNECTED);
  fleet.connections.pop_back();
  CHECK(*fleet.Await(question) == 1);
}

TEST_CASE("A wait in vain says of each receiver what it serves and holds, why, and which are gone") {
  Fleet fleet;
  fleet.Report("good", fleet.Of(1));
  fleet.Report("bad", {}, "the engine\n\tsays no");
  const auto question = fleet.Ask(0, {"good", "bad", "nobody"});
  CHECK_THAT(
      fleet.Await(question),
      FailsWith(ErrorCode::kDeadline, "is not served by 3 named receivers", "\"nobody\" is not known here",
                "\"bad\" serves nothing, holds version 1, says: the engine\n\tsays no", "\"good\" serves version 1"));
  const auto answer = *fleet.Ask(question);
  REQUIRE(answer.lacking_size() == 2);
  const v1::ReceiverState& bad = answer.lacking(0);
  CHECK(bad.receiver() == "bad");
  CHECK(bad.held().run() == ToBytes(fleet.agent.run->run()));
  CHECK((bad.held().version() == 1 && bad.served_version() == 0));
  CHECK(bad.last_error() == "the engine\n\tsays no");
  CHECK(answer.lacking(1).receiver() == "nobody");
  CHECK(answer.lacking(1).presence() == v1::RECEIVER_PRESENCE_UNKNOWN);
  CHECK(*fleet.Await(fleet.Ask(0, {"good"})) == 1);
  fleet.connections.clear();
  CHECK_THAT(fleet.Await(fleet.Ask(0, {"good"})),
             FailsWith(ErrorCode::kDeadline, "\"good\" is gone, and served version 1"));
}

TEST_CASE("A name stands for all processes that have it and are there") {
  Fleet fleet;
  fleet.Report("twin", fleet.Of(1), "", 'a');
  CHECK(*fleet.Await(fleet.Ask(0, {"twin"})) == 1);
  const ReceiverKey before{"actor", "twin", "another identity", std::string(16, 'c')};
  REQUIRE(fleet.agent.pulls.reports().Report(before, fleet.Of(1), {}, "").ok());
  CHECK(*fleet.Await(fleet.Ask(0, {"twin"})) == 1);
  fleet.Report("twin", {}, "", 'b');
  CHECK_THAT(fleet.Await(fleet.Ask(0, {"twin"})), FailsWith(ErrorCode::kDeadline, "\"twin\" serves nothing"));
}

TEST_CASE("An error tells of 64 receivers, and how many more there are") {
  Fleet fleet;
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back(std::to_string(i));
  CHECK_THAT(fleet.Await(fleet.Ask(0, names)), FailsWith(ErrorCode::kDeadline, "; and 36 more"));
}

TEST_CASE("A label stands for the newest version that has it") {
  Fleet fleet;
  CHECK_THAT(fleet.Await(fleet.AskLabel("0")),
             FailsWith(ErrorCode::kDeadline, "label \"0\", which no version has yet"));
  fleet.Publish(2, "0");
  fleet.Report("a", fleet.Of(2));
  CHECK(*fleet.Await(fleet.AskLabel("0")) == 2);
  fleet.Publish(3, "1");
  CHECK(*fleet.Await(fleet.AskLabel("0")) == 2);
  fleet.Publish(4, "0");
  CHECK_THAT(fleet.Await(fleet.AskLabel("0")),
             FailsWith(ErrorCode::kDeadline, "label \"0\", version 4, is not served"));
}

TEST_CASE("Without a version the newest of when the agent is asked is waited for, in the current run") {
  Fleet fleet;
  v1::AwaitServedRequest request;
  request.set_model("actor");
  CHECK_THAT(fleet.Await(request),
             FailsWith(ErrorCode::kDeadline, "version 1 is not served by every connected receiver"));
  fleet.Report("a", fleet.Of(1));
  CHECK(*fleet.Await(request) == 1);
  fleet.Publish(2, "");
  CHECK_THAT(fleet.Await(request), FailsWith(ErrorCode::kDeadline, "version 2 is not served"));
  request.set_model("other");
  CHECK_THAT(fleet.Await(request), FailsWith(ErrorCode::kNotFound, "is not open here"));
}

TEST_CASE("A request that breaks a rule is refused") {
  Fleet fleet;
  auto two = fleet.Ask(1, {"a"});
  CHECK_THAT(fleet.Await(two), FailsWith(ErrorCode::kBadData, "receivers, engines and names", "one of them"));
  auto both = fleet.Ask(1);
  both.set_label("step 3");
  CHECK_THAT(fleet.Await(both), FailsWith(ErrorCode::kBadData, "a version and a label", "one of them"));
  auto nameless = fleet.Ask(1);
  nameless.set_model("no/model");
  CHECK(fleet.Await(nameless).status().code() == ErrorCode::kBadData);
  CHECK(fleet.Await(fleet.AskLabel(std::string(65, 'x'))).status().code() == ErrorCode::kBadData);
}

TEST_CASE("A trainer asks and is answered in JSON") {
  Fleet fleet;
  const auto ask = [&](std::string_view request) {
    return AwaitServedJson(fleet.agent.catalog, fleet.agent.pulls.reports(), request, [] { return false; });
  };
  const auto answer = ask(R"({"model": "actor", "run": "", "version": 1, "names": ["nobody"], "timeout_ms": 1})");
  REQUIRE(answer.ok());
  CHECK(answer->starts_with(R"({"served":false,"text":"model actor: version 1 is not served by 1 named receivers; )"));
  CHECK(answer->find(R"("lacking":[{"receiver":"nobody")") != std::string::npos);
  CHECK(answer->find(R"("presence":"unknown")") != std::string::npos);
  CHECK_THAT(ask(R"({"modell": "actor"})"), FailsWith(ErrorCode::kProtocol, "AWAIT_SERVED", "modell"));
  CHECK_THAT(ask("\xff"), FailsWith(ErrorCode::kProtocol, "AWAIT_SERVED"));
}

TEST_CASE("A wait ends with its run, with its caller, and with the agent") {
  Fleet fleet;
  auto question = fleet.Ask(1);
  question.set_timeout_ms(kLongestWait.count());
  const auto gone = AwaitServed(fleet.agent.catalog, fleet.agent.pulls.reports(), question, [] { return true; });
  CHECK(gone.status().code() == ErrorCode::kCancelled);
  auto ended = question;
  ended.set_run(ToHex(RunId{{9}}));
  CHECK_THAT(fleet.Await(ended), FailsWith(ErrorCode::kState, "has ended"));
  fleet.agent.catalog.Close();
  CHECK_THAT(fleet.Await(question), FailsWith(ErrorCode::kUnavailable, "draining"));
}

TEST_CASE("A wait notices what is reported while it waits") {
  Fleet fleet;
  auto question = fleet.Ask(1);
  question.set_timeout_ms(kLongestWait.count());
  std::jthread engine([&] {
    std::this_thread::sleep_for(milliseconds(50));
    (void)fleet.agent.pulls.reports().Report({"actor", "a", "", std::string(16, 'i')}, fleet.Of(1), fleet.Of(1), "");
  });
  const auto connection = fleet.agent.pulls.reports().Connect({"actor", "a", "", std::string(16, 'i')});
  CHECK(*fleet.Await(question) == 1);
}

}  // namespace
}  // namespace lockstep::serve
