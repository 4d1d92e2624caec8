#include "raas_receiver/engines/hook.h"

#include <catch2/catch.hpp>
#include <thread>

#include "common/os/file.h"
#include "common/os/temp_dir.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

HookOptions Options(std::string command) {
  return {
      .command = std::move(command), .timeout = milliseconds(5'000), .attempts = 1, .first_backoff = milliseconds(1)};
}

HookEvent Event() {
  return {"actor", {RunId{{0x0a}}, 7}, "/replicas/actor/v7", "delta"};
}

}  // namespace

TEST_CASE("A hook is told the version in its environment") {
  const TempDir directory;
  Hook hook(Options("echo $LOCKSTEP_MODEL $LOCKSTEP_RUN $LOCKSTEP_VERSION $LOCKSTEP_PATH $LOCKSTEP_MODE > " +
                    directory.File("told")));
  REQUIRE(hook.Notify(Event()).status.ok());
  CHECK(*ReadFile(directory.File("told")) == "actor 0a000000000000000000000000000000 7 /replicas/actor/v7 delta\n");
  CHECK(hook.failures() == 0);
}

TEST_CASE("Without a command there is no hook, and every version is served") {
  Hook hook(Options(""));
  CHECK_FALSE(hook.configured());
  CHECK(hook.Notify(Event()).status.ok());
}

TEST_CASE("A hook that fails is tried again, and the last failure is reported with what it said") {
  const TempDir directory;
  HookOptions options = Options("echo x >> " + directory.File("tries") + "; echo engine says no >&2; exit 3");
  options.attempts = 3;
  Hook hook(options);
  const Status status = hook.Notify(Event()).status;
  CHECK(status.code() == ErrorCode::kAborted);
  CHECK(status.message().find("status 3") != std::string::npos);
  CHECK(status.message().find("engine says no") != std::string::npos);
  CHECK(status.message().find("version 7 of model actor") != std::string::npos);
  CHECK(*ReadFile(directory.File("tries")) == "x\nx\nx\n");
  CHECK(hook.failures() == 3);
}

TEST_CASE("A hook that succeeds at a later attempt has succeeded") {
  const TempDir directory;
  HookOptions options =
      Options("test -e " + directory.File("flag") + " || { touch " + directory.File("flag") + "; exit 1; }");
  options.attempts = 2;
  Hook hook(options);
  CHECK(hook.Notify(Event()).status.ok());
  CHECK(hook.failures() == 1);
}

TEST_CASE("A hook that takes too long is killed with all that it started") {
  const TempDir directory;
  HookOptions options = Options("(sleep 0.7; touch " + directory.File("lives") + ") & wait");
  options.timeout = milliseconds(100);
  Hook hook(options);
  CHECK(hook.Notify(Event()).status.code() == ErrorCode::kDeadline);
  std::this_thread::sleep_for(milliseconds(900));
  CHECK(ReadFile(directory.File("lives")).status().code() == ErrorCode::kNotFound);
}

TEST_CASE("What a hook leaves in the background is not waited for") {
  Hook hook(Options("sleep 30 & echo done"));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(hook.Notify(Event()).status.ok());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("Only the end of what a hook says is kept") {
  Hook hook(Options("yes line | head -n 100000; echo the end; exit 1"));
  const std::string message = hook.Notify(Event()).status.message();
  CHECK(message.size() < 2 * kOutputTail);
  CHECK(message.find("the end") != std::string::npos);
}

TEST_CASE("A hook that dies of a signal says which") {
  Hook hook(Options("kill -SEGV $$"));
  CHECK(hook.Notify(Event()).status.message().find("signal 11") != std::string::npos);
}

TEST_CASE("What is served is known to be unchanged only when every attempt ended by itself") {
  const TempDir directory;
  const std::string first = "test -e " + directory.File("second") + " || { touch " + directory.File("second") + "; ";
  const auto unchanged = [](const std::string& command) {
    HookOptions options = Options(command);
    options.attempts = 2;
    options.timeout = milliseconds(300);
    const HookOutcome outcome = Hook(options).Notify(Event());
    CHECK_FALSE(outcome.status.ok());
    return outcome.unchanged;
  };
  CHECK(unchanged("exit 1"));
  CHECK(unchanged("exit 255"));
  CHECK_FALSE(unchanged("kill -KILL $$"));
  SECTION("the first takes too long") {
    CHECK_FALSE(unchanged(first + "sleep 60; }; exit 1"));
  }
  SECTION("the first dies of a signal") {
    CHECK_FALSE(unchanged(first + "kill -KILL $$; }; exit 1"));
  }
  SECTION("what the first has started dies of one") {
    CHECK_FALSE(unchanged(first + "sh -c 'kill -KILL $$'; exit $?; }; exit 1"));
  }
}

TEST_CASE("What is waited between attempts doubles, up to ten seconds") {
  CHECK(NextBackoff(milliseconds(200)) == milliseconds(400));
  milliseconds backoff(200);
  for (int attempt = 0; attempt < 100; ++attempt) backoff = NextBackoff(backoff);
  CHECK(backoff == milliseconds(10'000));
}

TEST_CASE("Cancelling kills a running hook and starts no other") {
  HookOptions options = Options("sleep 30");
  options.timeout = milliseconds(60'000);
  options.attempts = 5;
  Hook hook(options);
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(50));
    hook.Cancel();
  });
  CHECK(hook.Notify(Event()).status.code() == ErrorCode::kCancelled);
  canceller.join();
  CHECK(hook.Notify(Event()).status.code() == ErrorCode::kCancelled);
}

}  // namespace lockstep
