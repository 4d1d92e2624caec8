// Servers that load a version from its directory.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "common/base/status_testing.h"
#include "common/http/test_http_server.h"
#include "raas_receiver/engine/drivers/test_engine.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::json;
using Paths = std::vector<std::string>;
using std::chrono::milliseconds;

const Json kPartial = "partial";

TEST_CASE("Every kind of server has a row here") {
  std::vector<std::string_view> kinds, rows;
  for (const DriverKind& kind : DriverKinds()) {
    const bool becomes_another = kind.name == "server";
    if (kind.controls_server && !becomes_another) kinds.push_back(kind.name);
  }
  const std::vector<ServerKind> servers = ServerKinds();
  for (const ServerKind& server : servers) rows.push_back(server.name);
  CHECK(rows == kinds);
}

TEST_CASE("An SGLang server is paused, fenced, made to read the directory, flushed once, named and resumed") {
  TestEngine engine("sglang");
  const std::string before = engine.State()["digest"];
  const auto driver = engine.Driver();
  const LoadOutcome outcome = driver->Load(engine.VersionOf(2), std::nullopt);
  INFO(outcome.status.ToString());
  REQUIRE(outcome.status.ok());
  CHECK(outcome.serving == Serving::kNew);
  CHECK(engine.Paths() == Paths{"/ready", "/pause_generation", "/flush_cache", "/update_weights_from_disk",
                                "/flush_cache", "/update_weight_version", "/continue_generation"});
  const Json state = engine.State();
  CHECK(state["digest"] != before);
  CHECK(state["weight_version"] == "0a1b2c3d-2");
  const Json update = Json::parse(state["log"][3]["body"].get<std::string>());
  CHECK(update == Json{{"model_path", engine.Checkpoint(2)}, {"flush_cache", false}, {"weight_version", "0a1b2c3d-2"}});
  CheckServes(engine, 2);
  CHECK(driver->failures() == 0);
}

TEST_CASE("A vLLM server is paused, made to reload the directory, its cache reset, named and resumed") {
  TestEngine engine("vllm");
  const auto driver = engine.Driver();
  const LoadOutcome outcome = driver->Load(engine.VersionOf(2), std::nullopt);
  INFO(outcome.status.ToString());
  REQUIRE(outcome.status.ok());
  CHECK(engine.Paths() == Paths{"/is_paused", "/pause", "/is_paused", "/collective_rpc", "/reset_prefix_cache",
                                "/update_weight_version", "/resume", "/is_paused"});
  const Json state = engine.State();
  CHECK(state["weight_version"] == "0a1b2c3d-2");
  CHECK(state["log"][1]["query"] == "mode=keep&clear_cache=true");
  CheckServes(engine, 2);
}

TEST_CASE("A read that fails half-way is undone by reading the last good version, and the error says so") {
  const ServerKind kind = GENERATE(from_range(KindsThatMix()));
  INFO(kind.name);
  TestEngine engine(kind.name);
  engine.SetFaults({Fault(kind.update, {{"kind", kPartial}})});
  const LoadOutcome outcome = engine.Driver()->Load(engine.VersionOf(2), engine.VersionOf(3));
  CHECK(outcome.serving == Serving::kLastGood);
  const std::string message = outcome.status.message();
  CHECK(message.find("version 2 of model actor") != std::string::npos);
  CHECK(message.find(engine.url() + kind.update) != std::string::npos);
  CHECK(message.find("cannot be read") != std::string::npos);
  CHECK(message.find("version 3 was loaded again") != std::string::npos);
  CheckNamed(engine, kind, "0a1b2c3d-3");
  CheckServes(engine, 3);
}

TEST_CASE("With another attempt the version itself is served after a read that failed half-way") {
  const ServerKind kind = GENERATE(from_range(KindsThatMix()));
  TestEngine engine(kind.name);
  engine.SetFaults({Fault(kind.update, {{"kind", kPartial}})});
  const auto driver = engine.Driver(2);
  CHECK(driver->Load(engine.VersionOf(2), std::nullopt).serving == Serving::kNew);
  CHECK(driver->failures() == 1);
  CheckServes(engine, 2);
}

TEST_CASE("A server that may hold a mix stays paused, whatever comes then, until a whole version was read") {
  const ServerKind kind = GENERATE(from_range(KindsThatMix()));
  TestEngine engine(kind.name);
  engine.SetFaults({Fault(kind.update, {{"kind", kPartial}, {"times", 2}})});
  const auto driver = engine.Driver();
  const LoadOutcome failed = driver->Load(engine.VersionOf(2), engine.VersionOf(3));
  CHECK(failed.serving == Serving::kUnknown);
  CHECK_THAT(failed.status, FailsWith(ErrorCode::kAborted, "stays paused"));
  CHECK(engine.State()["mixed"].get<bool>());

  engine.SetFaults({Fault(kind.pause, {{"kind", "status"}})});
  CHECK(driver->Load(engine.VersionOf(4), std::nullopt).serving == Serving::kUnknown);
  CHECK(engine.State()["paused"].get<bool>());
  CHECK(driver->Load(engine.VersionOf(4), std::nullopt).serving == Serving::kNew);
  CheckServes(engine, 4);
}

TEST_CASE("A new driver does not resume a server that was left paused amid a load") {
  const ServerKind kind = GENERATE(from_range(KindsThatMix()));
  TestEngine engine(kind.name);
  engine.SetFaults({Fault(kind.update, {{"kind", kPartial}})});
  CHECK(engine.Driver()->Load(engine.VersionOf(2), std::nullopt).serving == Serving::kUnknown);
  const auto driver = engine.Driver();
  engine.SetFaults({Fault(kind.drop, {{"kind", "status"}}), Fault(kind.pause, {{"kind", "status"}})});
  CHECK(driver->Load(engine.VersionOf(2), std::nullopt).serving == Serving::kUnknown);
  CHECK(engine.State()["paused"].get<bool>());
  engine.SetFaults({});
  CHECK(driver->Load(engine.VersionOf(2), std::nullopt).serving == Serving::kNew);
  CheckServes(engine, 2);
}

TEST_CASE("When nothing was changed yet the server resumes with what it had") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  (void)engine.State();
  const bool read = GENERATE(true, false);
  // A request that the server turns away is not begun.
  engine.SetFaults({Fault(read ? kind.update : kind.pause,
                          {{"kind", "status"}, {"status", read ? 404 : 500}, {"body", {{"detail", "Not Found"}}}})});
  const LoadOutcome outcome = engine.Driver()->Load(engine.VersionOf(2), engine.VersionOf(3));
  CHECK(outcome.serving == Serving::kOld);
  CHECK_THAT(outcome.status, FailsWith(read ? ErrorCode::kProtocol : ErrorCode::kAborted, "Not Found"));
  CHECK(engine.Paths().back() == kind.resume_calls.back());
  CheckServes(engine, 1);
}

TEST_CASE("An answer to a read that is lost, late or nonsense is a failure, and the last good version is read") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  using Case = std::pair<Json, ErrorCode>;
  const auto answered = [](int status, const Json& body) {
    return Json{{"kind", "status"}, {"status", status}, {"body", body}};
  };
  const auto [fault, code] =
      GENERATE_COPY(Case{Json{{"kind", "reset"}, {"effect", true}}, ErrorCode::kAborted},
                    Case{Json{{"kind", "hang"}, {"effect", true}}, ErrorCode::kDeadline},
                    Case{Json{{"kind", "garbage"}}, ErrorCode::kProtocol},
                    Case{Json{{"kind", "truncated"}, {"status", 200}}, ErrorCode::kAborted},
                    Case{answered(503, "overloaded"), ErrorCode::kAborted},
                    Case{answered(200, {{"success", false}, {"message", "no"}}), ErrorCode::kProtocol},
                    Case{answered(200, {{"results", Json::array()}}), ErrorCode::kProtocol},
                    Case{answered(200, {{"success", "true"}, {"results", {nullptr, 1}}}), ErrorCode::kProtocol});
  INFO(kind.name << " " << fault.dump());
  TestEngine engine(kind.name);
  engine.SetFaults({Fault(kind.update, fault)});
  const LoadOutcome outcome = engine.Driver(1, kPatient, 2'000)->Load(engine.VersionOf(2), engine.VersionOf(3));
  CHECK_THAT(outcome.status, FailsWith(code, engine.url() + kind.update, "version 3 was loaded again"));
  CHECK(outcome.serving == Serving::kLastGood);
  CheckServes(engine, 3);
}

TEST_CASE("A read that outlasts its time is waited for before the last good version is read") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name, {{"load_s", 0.6}});
  const auto driver = engine.Driver(1, kPatient, 400);
  // The read of the last good version takes as long, and is not waited for either: nothing is known.
  CHECK(driver->Load(engine.VersionOf(2), engine.VersionOf(3)).serving == Serving::kUnknown);
  const auto patient = engine.Driver();
  CHECK(patient->Load(engine.VersionOf(2), engine.VersionOf(3)).serving == Serving::kNew);
  CheckServes(engine, 2);
}

TEST_CASE("A read that hangs is not made again at once, nor is that of the last good version") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  const Json hangs = Fault(kind.update, {{"kind", "hang"}});
  engine.SetFaults({hangs, hangs, hangs, hangs});
  const auto driver = engine.Driver(/*attempts=*/3, kPatient, 400);
  CHECK(driver->Load(engine.VersionOf(2), engine.VersionOf(3)).status.code() == ErrorCode::kDeadline);
  CHECK(driver->failures() == 2);  // it, and the return
}

TEST_CASE("A server that dies of a read is unknown, and the error says where it was") {
  TestEngine engine("sglang");
  engine.SetFaults({Fault("/update_weights_from_disk", {{"kind", kPartial}})});
  const LoadOutcome outcome = engine.Driver()->Load(engine.VersionOf(2), engine.VersionOf(3));
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kAborted, "version 3 could not be loaded again", engine.url()));
}

TEST_CASE("Steps after the read are tried again; when they keep failing the server stays paused") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  const bool drops = GENERATE(true, false);
  TestEngine engine(kind.name);
  const std::string step = drops ? kind.drop : kind.resume;
  const int skip = drops ? kind.drops_in_pause : 0;
  engine.SetFaults({Fault(step, {{"kind", "status"}, {"skip", skip}, {"times", 2}})});
  CHECK(engine.Driver(3)->Load(engine.VersionOf(2), std::nullopt).status.ok());
  CHECK(CountOf(engine.Paths(), kind.update) == 1);
  CheckServes(engine, 2);

  engine.SetFaults({Fault(step, {{"kind", "status"}, {"skip", skip}, {"times", 100}})});
  const LoadOutcome outcome = engine.Driver()->Load(engine.VersionOf(3), std::nullopt);
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kAborted, step));
  CHECK(engine.State()["paused"].get<bool>());
}

TEST_CASE("Reading a model has a time of its own") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name, {{"load_s", 2.5}});
  CHECK(engine.Driver(1, 2'000, kPatient)->Load(engine.VersionOf(2), std::nullopt).serving == Serving::kNew);
  CheckServes(engine, 2);
}

TEST_CASE(
    "A server that was restarted does not serve what it was notified of, and is asked again what state it is in") {
  const ServerKind kind = GENERATE(from_range(KindsWithNames()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  const auto still = [&](uint8_t fill) { return driver->StillServes(engine.VersionOf(fill)); };
  REQUIRE(driver->Load(engine.VersionOf(2), std::nullopt).status.ok());
  CHECK(*still(2) == true);
  CHECK(*still(3) == false);
  CHECK_FALSE(engine.State()["paused"].get<bool>());

  engine.Restart();
  CHECK(*still(2) == false);
  const LoadOutcome outcome = driver->Load(engine.VersionOf(2), std::nullopt);
  CHECK(outcome.serving == Serving::kNew);
  CHECK(CountOf(engine.Paths(), kind.runs) >= 1);
  CHECK(*still(2) == true);
  CHECK(driver->failures() == 0);

  engine.End();
  CHECK(still(2).status().code() == ErrorCode::kUnavailable);
  driver->Cancel();
  CHECK(still(2).status().code() == ErrorCode::kCancelled);
  CHECK(driver->failures() == 0);
}

TEST_CASE("The name that a server keeps ends with the version's label, by which it is not recognised") {
  const ServerKind kind = GENERATE(from_range(KindsWithNames()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  EngineVersion version = engine.VersionOf(2);
  version.label = "step 120/a";
  REQUIRE(driver->Load(version, std::nullopt).status.ok());
  CheckNamed(engine, kind, "0a1b2c3d-2/step 120/a");
  CHECK(*driver->StillServes(version) == true);
  CHECK(*driver->StillServes(engine.VersionOf(2)) == true);
  CHECK(*driver->StillServes(engine.VersionOf(3)) == false);
}

TEST_CASE("A server that cannot say what it serves, or may not be asked, is told from one that does not answer") {
  const ServerKind kind = GENERATE(from_range(KindsWithNames()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver();
  const auto answer = [&](const Json& more) {
    engine.SetFaults({Fault(kind.served_name, more)});
    return driver->StillServes(engine.VersionOf(2));
  };
  const std::optional<bool> unsaid;
  CHECK(*answer({{"kind", "status"}, {"status", 404}, {"body", {{"detail", "Not Found"}}}}) == unsaid);
  CHECK(*answer({{"kind", "status"}, {"status", 401}}) == unsaid);
  CHECK(*answer({{"kind", "status"}, {"status", 200}, {"body", {{"model_path", "/x"}}}}) == unsaid);
  CHECK(answer({{"kind", "status"}, {"status", 500}}).status().code() == ErrorCode::kAborted);
  CHECK(answer({{"kind", "garbage"}}).status().code() == ErrorCode::kProtocol);
  CHECK(*driver->StillServes(engine.VersionOf(2)) == false);

  TestEngine nameless(kind.name, {{"absent", {"/update_weight_version"}}});
  const auto other = nameless.Driver();
  REQUIRE(other->Load(nameless.VersionOf(2), std::nullopt).status.ok());
  CHECK(*other->StillServes(nameless.VersionOf(2)) == unsaid);
  nameless.End();
  CHECK(other->StillServes(nameless.VersionOf(2)).status().code() == ErrorCode::kUnavailable);
}

TEST_CASE("An SGLang server that is starting is not paused, and one too old for /ready resumes with what it had") {
  TestEngine starting("sglang", {{"start_s", 30}});
  const LoadOutcome early = starting.Driver()->Load(starting.VersionOf(2), std::nullopt);
  CHECK(early.status.code() == ErrorCode::kUnavailable);
  CHECK(early.serving == Serving::kUnknown);
  CHECK(starting.Paths() == Paths{"/ready", "/health"});

  TestEngine old("sglang", {{"absent", {"/ready"}}});
  (void)old.State();
  old.SetFaults({Fault("/update_weights_from_disk", {{"kind", "status"}, {"status", 404}})});
  CHECK(old.Driver()->Load(old.VersionOf(2), std::nullopt).serving == Serving::kOld);
  CheckServes(old, 1);
}

TEST_CASE("An SGLang server whose /health failed amid a pause runs once it has continued, whatever /ready says") {
  TestEngine engine("sglang", {{"health_s", 0.5}});
  const auto client = *http::Client::Create({.url = engine.url()});
  const auto driver = engine.Driver();
  REQUIRE(driver->Pause(engine.VersionOf(2)).ok());
  CHECK(client->Send({.target = "/health"})->status == 503);
  REQUIRE(driver->Resume({.model = "actor"}).ok());
  CHECK(client->Send({.target = "/ready"})->status == 503);
  CHECK(engine.Driver()->Answers().ok());
  engine.SetFaults({Fault("/update_weights_from_disk", {{"kind", "status"}, {"status", 404}})});
  CHECK(engine.Driver()->Load(engine.VersionOf(2), std::nullopt).serving == Serving::kOld);
  CheckServes(engine, 1);
}

TEST_CASE("A key is sent from its file; without the right one the error says which option gives it") {
  TestEngine engine("sglang", {{"admin_api_key", "open sesame"}});
  const os::TempDir files;
  EngineOptions options{.kind = "sglang", .url = engine.url(), .attempts = 1};
  const LoadOutcome refused = (*NewEngineDriver(options))->Load(engine.VersionOf(2), std::nullopt);
  CHECK_THAT(refused.status, FailsWith(ErrorCode::kPermission, "--engine-key-file"));

  TestEngine other("sglang", {{"admin_api_key", "sesame"}, {"api_key", "less"}});
  options.url = other.url();
  options.key_file = files.File("key");
  REQUIRE(os::WriteFileAtomic(options.key_file, "sesame\n", 0600).ok());
  CHECK((*NewEngineDriver(options))->Load(other.VersionOf(2), std::nullopt).status.ok());
}

TEST_CASE("vLLM without its development mode is recognised, and left untouched") {
  TestEngine engine("vllm", {{"absent", {"/is_paused"}}});
  const LoadOutcome outcome = engine.Driver()->Load(engine.VersionOf(2), std::nullopt);
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kProtocol, "VLLM_SERVER_DEV_MODE=1"));
}

TEST_CASE("A server that cannot keep a version's name is served all the same") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name, {{"absent", {"/update_weight_version", "/ready"}}});
  CHECK(engine.Driver()->Load(engine.VersionOf(2), std::nullopt).status.ok());
  CheckServes(engine, 2);
}

TEST_CASE("A server that says it has loaded a version, and has not, is found out by its own checksums") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  INFO(kind.name);
  TestEngine engine(kind.name);
  const auto driver = engine.CheckingDriver();
  const LoadOutcome whole = driver->Load(engine.VersionOf(2), std::nullopt);
  INFO(whole.status.ToString());
  REQUIRE(whole.status.ok());
  CHECK(CountOf(engine.Paths(), kind.check) == 1);

  engine.SetFaults({Fault(kind.update, {{"kind", "partial_unsaid"}})});
  const LoadOutcome partial = driver->Load(engine.VersionOf(3), engine.VersionOf(2));
  CHECK(partial.serving == Serving::kLastGood);
  CHECK_THAT(partial.status, FailsWith(ErrorCode::kCorrupt, "version 3 of model actor at the " + kind.name + " server",
                                       "parameter model.layers.1.part1.weight of ", "version 2 was loaded again"));
  CheckServes(engine, 2);

  engine.SetFaults({Fault(kind.update, {{"kind", "partial_unsaid"}})});
  CHECK(engine.Driver()->Load(engine.VersionOf(3), engine.VersionOf(2)).status.ok());
}

TEST_CASE("A server that cannot be checked is no server that was") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name, {{"absent", {kind.check}}});
  const LoadOutcome outcome = engine.CheckingDriver()->Load(engine.VersionOf(2), std::nullopt);
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kProtocol, engine.url() + kind.check));
}

TEST_CASE("A server that answers arrays in arrays without an end is told from one that answers") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  constexpr int kDepth = 100'000;  // in an answer that is not too long
  std::string deep;
  for (int i = 0; i < kDepth; ++i) deep += R"({"error":)";
  deep += "0" + std::string(kDepth, '}');
  for (const char* status : {"200 OK", "500 Internal Server Error"}) {
    const http::TestHttpServer server([&](int connection) { http::TestHttpServer::Reply(connection, status, deep); });
    const auto driver = *NewEngineDriver({.kind = std::string(kind.name), .url = server.url()});
    const LoadOutcome outcome = driver->Load({"actor", {RunId{{1}}, 7}, "/replicas/v7", "full"}, std::nullopt);
    CHECK_THAT(outcome.status, FailsWith(outcome.status.code(), R"({"error":{"error":)"));
    CHECK(outcome.serving == Serving::kUnknown);
  }
}

TEST_CASE("A server that is not there is an error in time, and nothing is known of it") {
  std::string url;
  {
    url = http::TestHttpServer([](int) {}).url();
  }
  const auto driver = NewEngineDriver({.kind = "vllm", .url = url, .attempts = 2, .first_backoff = milliseconds(1)});
  REQUIRE(driver.ok());
  const LoadOutcome outcome = (*driver)->Load({"actor", {RunId{{1}}, 7}, "/replicas/v7", "full"}, std::nullopt);
  CHECK(outcome.status.code() == ErrorCode::kUnavailable);
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kUnavailable, "version 7 of model actor"));
  CHECK((*driver)->failures() == 1);  // it is not called again
}

TEST_CASE("A server that has gone is not asked to resume") {
  const ServerKind kind = GENERATE(from_range(ServerKinds()));
  TestEngine engine(kind.name);
  const auto driver = engine.Driver(/*attempts=*/3);
  REQUIRE(driver->Load(engine.VersionOf(2), std::nullopt).status.ok());
  engine.End();
  const LoadOutcome outcome = driver->Load(engine.VersionOf(3), engine.VersionOf(2));
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kUnavailable, engine.url() + kind.pause));
  CHECK(outcome.status.message().find(kind.resume + ":") == std::string::npos);
  CHECK(driver->failures() == 1);
}

}  // namespace
}  // namespace lockstep::engine
