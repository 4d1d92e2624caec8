#include "raas_receiver/engines/driver.h"

#include <catch2/catch.hpp>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"

namespace lockstep::engines {
namespace {

const EngineVersion kVersion{"actor", {RunId{{0x0a}}, 7}, "/replicas/actor/v7", "delta"};

// The message of the error with which options are refused.
std::string Refusal(EngineOptions options) {
  const auto driver = NewEngineDriver(std::move(options));
  CHECK(driver.status().code() == ErrorCode::kConfig);
  return driver.status().message();
}

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Without an engine every version is served at once") {
  const auto driver = NewEngineDriver({});
  REQUIRE(driver.ok());
  CHECK((*driver)->kind() == "none");
  CHECK_FALSE((*driver)->notifies());
  CHECK((*driver)->Load(kVersion, std::nullopt).serving == Serving::kNew);
  CHECK((*driver)->Pause(kVersion).ok());
  CHECK((*driver)->Resume(kVersion).ok());
}

TEST_CASE("A hook is notified of loaded and of resumed versions, and of no pause") {
  const os::TempDir directory;
  const auto driver = NewEngineDriver(
      {.kind = "hook", .command = "echo $LOCKSTEP_VERSION $LOCKSTEP_MODE >> " + directory.File("notified")});
  REQUIRE(driver.ok());
  CHECK((*driver)->Load(kVersion, std::nullopt).serving == Serving::kNew);
  CHECK((*driver)->Pause(kVersion).ok());
  EngineVersion in_place = kVersion;
  in_place.mode = "in-place";
  CHECK((*driver)->Resume(in_place).ok());
  CHECK(*os::ReadFile(directory.File("notified")) == "7 delta\n7 in-place\n");
}

TEST_CASE("A hook that fails leaves what is served") {
  const auto driver = NewEngineDriver({.kind = "hook", .command = "exit 3", .attempts = 1});
  REQUIRE(driver.ok());
  const LoadOutcome outcome = (*driver)->Load(kVersion, std::nullopt);
  CHECK(outcome.status.code() == ErrorCode::kAborted);
  CHECK(outcome.serving == Serving::kOld);
  CHECK((*driver)->failures() == 1);
}

TEST_CASE("After a hook that had to be killed nobody knows what is served") {
  const auto driver =
      NewEngineDriver({.kind = "hook", .command = "sleep 60", .timeout = std::chrono::milliseconds(50), .attempts = 1});
  REQUIRE(driver.ok());
  const LoadOutcome outcome = (*driver)->Load(kVersion, std::nullopt);
  CHECK(outcome.status.code() == ErrorCode::kDeadline);
  CHECK(outcome.serving == Serving::kUnknown);
}

TEST_CASE("Whoever gives a command and names no engine means the hook") {
  CHECK(MeantDriverKind({}) == "none");
  CHECK(MeantDriverKind({.command = "reload"}) == "hook");
  CHECK(MeantDriverKind({.kind = "vllm", .command = "reload"}) == "vllm");
}

TEST_CASE("Kinds are listed as people write them, all or those that use an option") {
  const std::string all = DriverKindNames();
  CHECK(all.starts_with("none, hook, "));
  CHECK(all.ends_with(Cat(" or ", DriverKinds().back().name)));
  CHECK(DriverKindNames(&EngineOptions::command) == "hook");
  CHECK(all == Cat("none, hook, ", DriverKindNames(&EngineOptions::url)));
  for (const DriverKind& kind : DriverKinds()) {
    CHECK(Contains(all, kind.name));
    CHECK(FindDriverKind(kind.name) == &kind);
  }
  CHECK(FindDriverKind("triton") == nullptr);
}

TEST_CASE("Options that are missing, wrong, or of another kind are refused by name") {
  CHECK(Contains(Refusal({.kind = "triton"}), Cat("it must be ", DriverKindNames())));
  CHECK(Contains(Refusal({.kind = "hook"}), "--hook"));
  CHECK(Contains(Refusal({.kind = "sglang"}), "--engine-url"));
  CHECK(Contains(Refusal({.kind = "none", .url = "http://host"}), "engine-url"));
  CHECK(Contains(Refusal({.kind = "vllm", .command = "reload", .url = "http://host"}), "hook"));
  CHECK(Contains(Refusal({.kind = "vllm", .url = "host:8000"}), "http://"));
  CHECK(Contains(Refusal({.kind = "sglang", .url = "http://host", .pause_mode = "in_place"}), "retract and abort"));
  CHECK(Contains(Refusal({.kind = "vllm", .url = "http://host", .pause_mode = "retract"}), "keep, wait and abort"));
  CHECK(Contains(Refusal({.kind = "vllm", .url = "http://host", .key_file = "/no/such/key"}), "/no/such/key"));
  CHECK(Contains(Refusal({.kind = "vllm", .url = "http://host", .attempts = 0}), "engine-attempts"));
}

}  // namespace lockstep::engines
