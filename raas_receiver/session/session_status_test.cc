#include <catch2/catch.hpp>
#include <filesystem>

#include "common/os/file.h"
#include "raas_receiver/session/session_fixture.h"

namespace lockstep::session {

TEST_CASE("Each sync leaves the spans of its states, under its pull's id, one after another") {
  SessionFixture fixture;
  telemetry::Timeline timeline;
  fixture.options.timeline = &timeline;
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  CHECK(fixture.Pull()->mode() == "up_to_date");
  fixture.Stop();
  const auto names = [&](Version version) {
    std::vector<std::string> names;
    for (const telemetry::Span& span : timeline.Select("actor", version)) names.emplace_back(span.name);
    return names;
  };
  CHECK(names(1) == std::vector<std::string>{"negotiate", "pull", "verify", "apply", "commit"});
  CHECK(names(2) == std::vector<std::string>{"negotiate", "stage", "pull", "verify", "apply", "commit"});
  int64_t last_end = 0;
  for (const telemetry::Span& span : timeline.Select("actor", 2)) {
    CHECK(span.transfer == 2);  // as the test's agent counts pulls
    CHECK(span.begin_unix_ns <= span.end_unix_ns);
    if (span.name == "stage") continue;  // inside pull
    CHECK(span.begin_unix_ns >= last_end - 1'000'000);
    last_end = span.end_unix_ns;
    if (span.name != "pull") continue;
    uint64_t sent = 0;
    for (const payload::DeltaBlock& block : fixture.replicas.model.DeltaBlocks(1, 2)) sent += block.data.size();
    CHECK(span.bytes == sent);
  }
}

TEST_CASE("The agent is told what is held, what the engine serves and the last error, as soon as that changes") {
  SessionFixture fixture;
  fixture.origin.instance = std::string(16, 'i');
  fixture.engine = {
      .kind = "hook", .command = "test \"$LOCKSTEP_VERSION\" != 2 || { echo engine says no; exit 1; }", .attempts = 1};
  fixture.Start();
  const auto told = [&](Version held, Version served) {
    const v1::ReportRequest report = fixture.agent.last_report();
    return report.held().version() == held && report.served_version() == served;
  };
  fixture.WaitFor([&] { return told(1, 1); });
  CHECK(fixture.agent.last_report().receiver() == "test");
  CHECK(fixture.agent.last_report().instance() == std::string(16, 'i'));
  CHECK(fixture.agent.last_report().last_error().empty());
  fixture.agent.Publish();
  fixture.WaitFor([&] { return told(2, 1) && !fixture.agent.last_report().last_error().empty(); });
  CHECK(fixture.agent.last_report().last_error().find("engine says no") != std::string::npos);
  fixture.agent.Publish();
  fixture.WaitFor([&] { return told(3, 3) && fixture.agent.last_report().last_error().empty(); });
  fixture.Stop();
}

TEST_CASE("A model that the agent does not have is the last error, with those that it has") {
  SessionFixture fixture;
  fixture.agent.open_models = {"critic", "reward"};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().last_error().ends_with(" has no actor; it has critic, reward"); });
  fixture.Stop();
}

TEST_CASE(
    "A session is ready once it holds a version that its engine serves, and stays so when that refuses the next") {
  SessionFixture fixture;
  const std::string flag = fixture.replicas.root.File("flag");
  fixture.engine = {
      .kind = "hook", .command = "test $LOCKSTEP_VERSION = 1 && test -e " + flag, .attempts = 1, .first_backoff = {}};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().engine_failures() >= 1; });
  CHECK_FALSE(fixture.session->Ready());
  REQUIRE(os::WriteFileAtomic(flag, "").ok());
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.Describe().last_error().find("version 2") != std::string::npos; });
  CHECK(fixture.session->Ready());
  fixture.Stop();
}

TEST_CASE("While its engine is to load again what may be wrong there, a session is not ready") {
  SessionFixture fixture;
  const std::string flag = fixture.replicas.root.File("flag");
  REQUIRE(os::WriteFileAtomic(flag, "").ok());
  fixture.engine = {.kind = "hook", .command = "test -e " + flag, .attempts = 1};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  REQUIRE(std::filesystem::remove(flag));
  const auto record = fixture.Pull(true);
  REQUIRE(record.ok());
  CHECK_FALSE(record->engine_error().empty());
  CHECK(fixture.session->HoldsVersion());
  CHECK_FALSE(fixture.session->Ready());
  CHECK(fixture.Describe().served_version() == 0);
  REQUIRE(os::WriteFileAtomic(flag, "").ok());
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  fixture.Stop();
}

}  // namespace lockstep::session
