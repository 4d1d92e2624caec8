#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <sstream>
#include <thread>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "common/os/shell.h"
#include "common/os/signals.h"
#include "common/os/temp_dir.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/engine/drivers/driver.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

const EngineVersion kVersion{"actor", {RunId{{0x0a}}, 7}, "/replicas/actor/v7", "delta", "step 70"};

EngineOptions Options(std::string command) {
  return {.kind = "hook", .command = std::move(command), .attempts = 1, .first_backoff = milliseconds(1)};
}

std::unique_ptr<EngineDriver> Hook(EngineOptions options) {
  auto driver = NewEngineDriver(std::move(options));
  REQUIRE(driver.ok());
  return *std::move(driver);
}

LoadOutcome Notify(EngineDriver& hook) {
  return hook.Load(kVersion, std::nullopt);
}

}  // namespace

TEST_CASE("A hook finds the version in its environment") {
  const os::TempDir directory;
  const auto hook = Hook(
      Options("echo $LOCKSTEP_MODEL $LOCKSTEP_RUN $LOCKSTEP_VERSION $LOCKSTEP_PATH $LOCKSTEP_MODE $LOCKSTEP_LABEL > " +
              directory.File("notified")));
  REQUIRE(Notify(*hook).status.ok());
  CHECK(*os::ReadFile(directory.File("notified")) ==
        "actor 0a000000000000000000000000000000 7 /replicas/actor/v7 delta step 70\n");
  CHECK(hook->failures() == 0);
}

TEST_CASE("A hook finds what the launcher of a bundle has set aside where the host had it") {
  const os::TempDir directory;
  ::setenv("LOCKSTEP_HOST_LD_AUDIT", "", 1);
  ::setenv("LOCKSTEP_HOST_LD_PRELOAD", "libc.so.6", 1);  // every program has it already
  const auto hook = Hook(
      Options("echo ${LD_PRELOAD-none} ${LD_AUDIT-none} $(env | grep -c LOCKSTEP_HOST_) > " + directory.File("set")));
  CHECK(Notify(*hook).status.ok());
  CHECK(*os::ReadFile(directory.File("set")) == "libc.so.6 0\n");
  ::unsetenv("LOCKSTEP_HOST_LD_AUDIT");
  ::unsetenv("LOCKSTEP_HOST_LD_PRELOAD");
}

TEST_CASE("A hook starts with no signal blocked or ignored, as its receiver has") {
  const os::TempDir directory;
  REQUIRE(os::SignalWaiter::Create([](const std::string&) {}).ok());
  // The lower 31 bits: what lies above are real-time signals, of which the C library has the first two.
  const std::string masks = "grep -E 'SigBlk|SigIgn' /proc/self/status | sed 's/.*\\(.\\{8\\}\\)$/\\1/' > ";
  const auto hook = Hook(Options(masks + directory.File("signals")));
  REQUIRE(Notify(*hook).status.ok());
  std::istringstream lines(*os::ReadFile(directory.File("signals")));
  uint64_t blocked = 1, ignored = 1;
  lines >> std::hex >> blocked >> ignored;
  CHECK((blocked & 0x7fffffff) == 0);
  CHECK((ignored & 0x7fffffff) == 0);
}

TEST_CASE("A hook whose program is not there or may not be executed is refused") {
  const os::TempDir directory;
  const std::string script = directory.File("hook.sh");
  const auto create = [](const std::string& command) { return NewEngineDriver(Options(command)).status(); };
  CHECK_THAT(create(script + " --quiet"),
             FailsWith(ErrorCode::kConfig, "hook \"" + script, "No such file or directory"));
  CHECK_THAT(create(directory.path()), FailsWith(ErrorCode::kConfig, "is a directory"));
  CHECK_THAT(create("lockstep-reload-engine now"),
             FailsWith(ErrorCode::kConfig, "there is no lockstep-reload-engine in PATH"));
  REQUIRE(os::WriteFileAtomic(script, "#!/bin/sh\n", 0644).ok());
  CHECK_THAT(create(script), FailsWith(ErrorCode::kConfig, "may not be executed; chmod +x it"));
  REQUIRE(::chmod(script.c_str(), 0755) == 0);
  for (const std::string& command :
       {script + "&& true", std::string("exec sleep 1"), std::string("  if true; then :; fi"),
        std::string("MODE=x lockstep-unknown"), std::string("\"$HOME/reload\"")}) {
    CHECK_THAT(create(command).ToString(), Catch::Equals(OkStatus().ToString()));
  }
}

TEST_CASE("A hook that fails is tried again, and the last failure is reported with what it said") {
  const os::TempDir directory;
  EngineOptions options = Options("echo x >> " + directory.File("tries") + "; echo engine says no >&2; exit 3");
  options.attempts = 3;
  const auto hook = Hook(options);
  const Status status = Notify(*hook).status;
  CHECK_THAT(status, FailsWith(ErrorCode::kAborted, "status 3", "engine says no", "version 7 of model actor"));
  CHECK(*os::ReadFile(directory.File("tries")) == "x\nx\nx\n");
  CHECK(hook->failures() == 3);
}

TEST_CASE("A hook that succeeds at a later attempt has succeeded") {
  const os::TempDir directory;
  EngineOptions options =
      Options("test -e " + directory.File("flag") + " || { touch " + directory.File("flag") + "; exit 1; }");
  options.attempts = 2;
  const auto hook = Hook(options);
  CHECK(Notify(*hook).status.ok());
  CHECK(hook->failures() == 1);
}

TEST_CASE("A hook that takes too long is killed with all that it started") {
  const os::TempDir directory;
  // Whatever the hook starts holds the pipe open.
  const std::string pipe = directory.File("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const os::UniqueFd alive(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EngineOptions options = Options("exec 3> " + pipe + "; sleep 600 & wait");
  options.load_timeout = milliseconds(500);
  CHECK(Notify(*Hook(options)).status.code() == ErrorCode::kDeadline);
  char byte = 0;
  ssize_t got = -1;  // 0: no process has it open any more
  for (int i = 0; i < 6'000 && got != 0; ++i) {
    got = ::read(alive.get(), &byte, 1);
    if (got != 0) std::this_thread::sleep_for(milliseconds(10));
  }
  CHECK(got == 0);
}

TEST_CASE("A hook that takes too long is not run again at once, and what is served then is not known") {
  const os::TempDir directory;
  EngineOptions options = Options("echo >> " + directory.File("runs") + "; sleep 600");
  options.attempts = 3;
  options.load_timeout = milliseconds(500);
  const auto hook = Hook(options);
  const LoadOutcome outcome = Notify(*hook);
  CHECK_THAT(outcome.status, FailsWith(ErrorCode::kDeadline, "after 1 attempt:"));
  CHECK(outcome.serving == Serving::kUnknown);
  CHECK(hook->failures() == 1);
  CHECK(*os::ReadFile(directory.File("runs")) == "\n");
}

TEST_CASE("What a hook leaves in the background is not waited for") {
  const auto hook = Hook(Options("sleep 90 & echo done"));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(Notify(*hook).status.ok());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}

TEST_CASE("Only the end of what a hook says is kept") {
  const auto hook = Hook(Options("yes line | head -n 100000; echo the end; exit 1"));
  const std::string message = Notify(*hook).status.message();
  CHECK(message.size() < 2 * os::kOutputTail);
  CHECK(message.find("the end") != std::string::npos);
}

TEST_CASE("A hook that dies of a signal says which") {
  const auto hook = Hook(Options("kill -SEGV $$"));
  CHECK_THAT(Notify(*hook).status, FailsWith(ErrorCode::kAborted, "signal 11"));
}

TEST_CASE("What is served is known to be unchanged only when every attempt ended by itself") {
  const os::TempDir directory;
  const std::string first = "test -e " + directory.File("second") + " || { touch " + directory.File("second") + "; ";
  const auto unchanged = [](const std::string& command) {
    EngineOptions options = Options(command);
    options.attempts = 2;
    const LoadOutcome outcome = Notify(*Hook(options));
    CHECK_THAT(outcome.status, FailsWith(ErrorCode::kAborted, "version 7 of model actor, after 2 attempts: the hook "));
    return outcome.serving == Serving::kOld;
  };
  CHECK(unchanged("exit 1"));
  CHECK(unchanged("exit 255"));
  CHECK_FALSE(unchanged("kill -KILL $$"));
  SECTION("the first dies of a signal") {
    CHECK_FALSE(unchanged(first + "kill -KILL $$; }; exit 1"));
  }
  SECTION("what the first has started dies of one") {
    CHECK_FALSE(unchanged(first + "sh -c 'kill -KILL $$'; exit $?; }; exit 1"));
  }
}

TEST_CASE("A hook that is cancelled between two attempts leaves known what is served where it was") {
  const auto [command, serving] =
      GENERATE(std::pair("exit 1", Serving::kOld), std::pair("kill -KILL $$", Serving::kUnknown));
  EngineOptions options = Options(command);
  options.attempts = 2;
  options.first_backoff = std::chrono::hours(1);
  const auto hook = Hook(options);
  std::thread canceller([&] {
    while (hook->failures() == 0) std::this_thread::sleep_for(milliseconds(1));
    hook->Cancel();
  });
  const LoadOutcome outcome = Notify(*hook);
  canceller.join();
  CHECK(outcome.status.code() == ErrorCode::kCancelled);
  CHECK(outcome.serving == serving);
}

TEST_CASE("Cancelling kills a running hook and starts no other, until it is reset") {
  const os::TempDir directory;
  EngineOptions options = Options("test -e " + directory.File("flag") + " || sleep 30");
  options.attempts = 5;
  const auto hook = Hook(options);
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(50));
    hook->Cancel();
  });
  CHECK(Notify(*hook).status.code() == ErrorCode::kCancelled);
  canceller.join();
  REQUIRE(os::WriteFileAtomic(directory.File("flag"), "").ok());
  const LoadOutcome outcome = Notify(*hook);
  CHECK(outcome.status.code() == ErrorCode::kCancelled);
  CHECK(outcome.serving == Serving::kOld);  // what was never started left the engine as it was
  hook->Reset();
  CHECK(Notify(*hook).status.ok());
}

}  // namespace lockstep::engine
