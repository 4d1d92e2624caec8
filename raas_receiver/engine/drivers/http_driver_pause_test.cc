// Servers that are paused and resumed: for memory that is written, and when the receiver leaves.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "common/base/status_testing.h"
#include "raas_receiver/engine/drivers/test_engine.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::json;
using Paths = std::vector<std::string>;
using std::chrono::milliseconds;

TEST_CASE("In place, a server is paused and fenced, and resumes named and without its cache") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  CHECK(engine.State()["paused"].get<bool>());
  const size_t calls = engine.Paths().size();
  REQUIRE(driver->Resume(engine.VersionOf(2)).ok());
  Paths paths = engine.Paths();
  paths.erase(paths.begin(), paths.begin() + static_cast<long>(calls));
  CHECK(paths == kind.resume_calls);
  CheckNamed(engine, kind, "0a1b2c3d-2");
  CheckServes(engine, 1);
}

TEST_CASE("In place, a pause that fails resumes the server; while its memory is written only Resume does") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  engine.SetFaults({Fault(kind.pause, {{"kind", "garbage"}, {"effect", true}})});
  CHECK_THAT(driver->Pause(engine.VersionOf(2)),
             FailsWith(ErrorCode::kProtocol, engine.url() + kind.pause, "was expected"));
  CHECK_FALSE(engine.State()["paused"].get<bool>());

  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  engine.SetFaults({Fault(kind.pause, {{"kind", "status"}})});
  CHECK_THAT(driver->Pause(engine.VersionOf(3)),
             FailsWith(ErrorCode::kAborted, engine.url() + kind.pause, "stays paused"));
  CHECK(engine.State()["paused"].get<bool>());
  CHECK(driver->Resume(engine.VersionOf(2)).ok());
  CheckServes(engine, 1);
}

TEST_CASE("Cancelling ends a load at once, and resumes a server of which nothing was changed; then it may load again") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  engine.SetFaults({Fault(kind.pause, {{"kind", "hang"}, {"effect", true}})});
  const auto driver = engine.Driver(5);
  const EngineVersion version = engine.VersionOf(2);
  const EngineVersion before = engine.VersionOf(3);
  std::thread canceller([&] {
    while (CountOf(engine.Paths(), kind.pause) == 0) std::this_thread::sleep_for(milliseconds(20));
    driver->Cancel();
  });
  const auto begin = std::chrono::steady_clock::now();
  const LoadOutcome outcome = driver->Load(version, before);
  const auto taken = std::chrono::steady_clock::now() - begin;
  canceller.join();
  CHECK(taken < milliseconds(kPatient));
  CHECK(outcome.status.code() == ErrorCode::kCancelled);
  CHECK(outcome.serving == Serving::kOld);
  CheckServes(engine, 1);
  CHECK(driver->Load(engine.VersionOf(2), std::nullopt).status.code() == ErrorCode::kCancelled);
  CHECK(driver->Pause(engine.VersionOf(2)).code() == ErrorCode::kCancelled);
  driver->Reset();
  CHECK(driver->Load(version, std::nullopt).status.ok());
  CheckServes(engine, 2);
}

TEST_CASE("A server resumes that the receiver leaves while it releases it, finishes it or resumes it") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  const std::string during = GENERATE("release", "finish", "resume");
  INFO(kind.name << " " << during);
  TestEngine engine(kind.name);
  (void)engine.State();
  const auto driver = engine.Driver(5);
  std::vector<Json> faults = {Fault(kind.resume, {{"kind", "hang"}})};
  if (during == "release") {
    faults.push_back(Fault(kind.update, {{"kind", "status"}, {"status", 404}, {"body", {{"detail", "No"}}}}));
  }
  const EngineVersion version = engine.VersionOf(2);
  const EngineVersion before = engine.VersionOf(1);
  if (during == "resume") REQUIRE(driver->Pause(version).ok());
  engine.SetFaults(faults);
  LoadOutcome outcome;
  std::thread canceller([&] {
    while (CountOf(engine.Paths(), kind.resume) == 0) std::this_thread::sleep_for(milliseconds(20));
    driver->Cancel();
  });
  if (during == "resume") {
    outcome.status = driver->Resume(before);
  } else {
    outcome = driver->Load(version, std::nullopt);
  }
  canceller.join();
  CHECK(outcome.status.ok() == (during != "release"));
  if (during != "resume") CHECK(outcome.serving == (during == "finish" ? Serving::kNew : Serving::kOld));
  CheckServes(engine, during == "finish" ? 2 : 1);
}

TEST_CASE("A version that was written before the receiver stops is resumed after it was cancelled") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  driver->Cancel();
  // The first time it fails, too.
  engine.SetFaults({Fault(kind.resume, {{"kind", "status"}})});
  CHECK(driver->Resume(engine.VersionOf(2)).ok());
  CheckNamed(engine, kind, "0a1b2c3d-2");
  CheckServes(engine, 1);
}

TEST_CASE("A server of which nothing was written resumes under the name that it had") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  REQUIRE(driver->Resume({.model = "actor"}).ok());
  CheckNamed(engine, kind, "default");
  CHECK(CountOf(engine.Paths(), "/update_weight_version") == 0);
  CHECK(CountOf(engine.Paths(), kind.drop) == static_cast<size_t>(kind.drops_in_pause) + 1);
  CheckServes(engine, 1);
}

TEST_CASE("In place, an SGLang server is written in a session, which begins after its pause") {
  TestEngine engine("sglang");
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  CHECK(engine.Paths() == Paths{"/ready", "/pause_generation", "/flush_cache", "/begin_weight_update"});
  REQUIRE(driver->Resume(engine.VersionOf(2)).ok());
  CheckServes(engine, 1);
}

TEST_CASE("A session that a receiver left open is ended, and another is begun") {
  TestEngine engine("sglang");
  REQUIRE(engine.Driver()->Pause(engine.VersionOf(2)).ok());
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  const Paths session = {"/begin_weight_update", "/end_weight_update", "/begin_weight_update"};
  const Paths paths = engine.Paths();
  CHECK(Paths(paths.end() - 3, paths.end()) == session);
  REQUIRE(driver->Resume(engine.VersionOf(2)).ok());
  CheckServes(engine, 1);
}

TEST_CASE("An answer of a session that is lost is no end of it, and no second one") {
  TestEngine engine("sglang");
  const std::string call = GENERATE("/begin_weight_update", "/end_weight_update");
  engine.SetFaults({Fault(call, {{"kind", "reset"}, {"effect", true}})});
  const auto driver = engine.Driver(3);
  CHECK(driver->Pause(engine.VersionOf(2)).ok());
  CHECK(driver->Resume(engine.VersionOf(2)).ok());
  CHECK(driver->failures() == 1);
  CheckServes(engine, 1);
}

TEST_CASE("An SGLang server without sessions is written all the same") {
  TestEngine engine("sglang", {{"absent", {"/begin_weight_update", "/end_weight_update"}}});
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  REQUIRE(driver->Resume(engine.VersionOf(2)).ok());
  CHECK(CountOf(engine.Paths(), "/end_weight_update") == 0);
  CheckServes(engine, 1);
}

TEST_CASE("A server says of which start its ranks are, and one without lockstep's plugin that it has none") {
  const std::string kind = GENERATE("sglang", "vllm");
  TestEngine engine(kind, {{"incarnations", {"one", "two"}}});
  const auto driver = engine.Driver();
  CHECK(*driver->Incarnations() == std::vector<std::string>{"one", "two"});
  engine.SetFaults({Fault(kind == "vllm" ? "/collective_rpc" : "/server_info", {{"kind", "garbage"}})});
  CHECK_FALSE(driver->Incarnations().ok());
  TestEngine without(kind, {{"incarnations", Json::array()}});
  const Result<std::vector<std::string>> none = without.Driver()->Incarnations();
  if (kind == "sglang") {
    CHECK(none->empty());
    return;
  }
  CHECK_THAT(none, FailsWith(ErrorCode::kAborted, without.url(), "lockstep_incarnation"));
}

}  // namespace
}  // namespace lockstep::engine
