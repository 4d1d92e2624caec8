#include "raas_receiver/engine/drivers/driver.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/http/test_http_server.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"

namespace lockstep::engine {
namespace {

const EngineVersion kVersion{"actor", {RunId{{0x0a}}, 7}, "/replicas/actor/v7", "delta"};

Status Refusal(EngineOptions options) {
  return NewEngineDriver(std::move(options)).status();
}

// A process of another user that listens, and says where, and when it is sent a request.
class OtherUsersServer {
 public:
  static constexpr uid_t kUser = 65534;

  OtherUsersServer() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    output_ = os::UniqueFd(ends[0]);
    os::UniqueFd input(ends[1]);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      if (::setgid(kUser) != 0 || ::setuid(kUser) != 0) ::_exit(2);
      const auto say = [&](const std::string& text) {
        [[maybe_unused]] const auto written = ::write(input.get(), text.data(), text.size());
      };
      const http::TestHttpServer server([&](int connection) {
        say("asked");
        http::TestHttpServer::Reply(connection, "200 OK", "{}");
      });
      say(server.url() + "\n");
      ::pause();
    }
    char letter = 0;
    while (::read(output_.get(), &letter, 1) == 1 && letter != '\n') url_ += letter;
    REQUIRE(url_.starts_with("http://"));
  }
  ~OtherUsersServer() { (void)EndAndSay(); }

  const std::string& url() const { return url_; }
  // What it said since: nothing, if it was sent nothing.
  std::string EndAndSay() {
    if (process_ < 0) return "";
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
    std::string sent;
    char letter = 0;
    while (::read(output_.get(), &letter, 1) == 1) sent += letter;
    return sent;
  }

 private:
  pid_t process_ = -1;
  os::UniqueFd output_;
  std::string url_;
};

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

TEST_CASE("After a hook was killed, what is served is unknown") {
  const auto driver = NewEngineDriver(
      {.kind = "hook", .command = "sleep 60", .load_timeout = std::chrono::milliseconds(50), .attempts = 1});
  REQUIRE(driver.ok());
  const LoadOutcome outcome = (*driver)->Load(kVersion, std::nullopt);
  CHECK(outcome.status.code() == ErrorCode::kDeadline);
  CHECK(outcome.serving == Serving::kUnknown);
}

TEST_CASE("Kinds are listed as people write them, all or those that use an option") {
  const std::string all = DriverKindNames();
  CHECK(all.starts_with("none, hook, "));
  CHECK(all.ends_with(Cat(" or ", DriverKinds().back().name)));
  CHECK(DriverKindNames(&EngineOptions::command) == "hook");
  CHECK(all == Cat("none, hook, ", DriverKindNames(&EngineOptions::url)));
  for (const DriverKind& kind : DriverKinds()) {
    CHECK(all.find(kind.name) != std::string::npos);
    CHECK(FindDriverKind(kind.name) == &kind);
  }
  CHECK(FindDriverKind("triton") == nullptr);
}

TEST_CASE("Options that are missing, wrong, or of another kind are refused by name") {
  CHECK_THAT(Refusal({.kind = "triton"}), FailsWith(ErrorCode::kConfig, Cat("it must be ", DriverKindNames())));
  CHECK_THAT(Refusal({.kind = "hook"}), FailsWith(ErrorCode::kConfig, "hook:COMMAND"));
  CHECK_THAT(Refusal({.kind = "sglang"}), FailsWith(ErrorCode::kConfig, "http://HOST:PORT"));
  CHECK_THAT(Refusal({.kind = "none", .url = "http://host"}), FailsWith(ErrorCode::kConfig, "url is given"));
  CHECK_THAT(Refusal({.kind = "vllm", .command = "reload", .url = "http://host"}),
             FailsWith(ErrorCode::kConfig, "command is given, and engine vllm has no use for it"));
  CHECK_THAT(Refusal({.kind = "vllm", .url = "host:8000"}), FailsWith(ErrorCode::kConfig, "http://"));
  CHECK_THAT(Refusal({.kind = "sglang", .url = "http://host", .pause_mode = "in_place"}),
             FailsWith(ErrorCode::kConfig, "retract and abort"));
  CHECK_THAT(Refusal({.kind = "vllm", .url = "http://host", .pause_mode = "retract"}),
             FailsWith(ErrorCode::kConfig, "keep, wait and abort"));
  CHECK_THAT(Refusal({.kind = "vllm", .url = "http://host", .key_file = "/no/such/key"}),
             FailsWith(ErrorCode::kConfig, "/no/such/key"));
  CHECK_THAT(Refusal({.kind = "vllm", .url = "http://host", .check = "all"}),
             FailsWith(ErrorCode::kConfig, "engine-check is all; give checksums"));
  CHECK_THAT(Refusal({.kind = "hook", .command = "true", .check = "checksums"}),
             FailsWith(ErrorCode::kConfig, "engine-check is given, and engine hook has no use for it"));
  CHECK_THAT(Refusal({.kind = "vllm", .url = "http://host", .attempts = 0}),
             FailsWith(ErrorCode::kConfig, "engine-attempts"));
}

TEST_CASE("A key that others may read is refused, with what to do about it") {
  const os::TempDir files;
  const EngineOptions options{.kind = "vllm", .url = "http://host", .key_file = files.File("key")};
  REQUIRE(os::WriteFileAtomic(options.key_file, "sesame\n").ok());
  for (const mode_t mode : {0644, 0602, 0601}) {
    REQUIRE(::chmod(options.key_file.c_str(), mode) == 0);
    CHECK_THAT(Refusal(options), FailsWith(ErrorCode::kConfig, "engine-key-file: " + options.key_file,
                                           "is open to other users; chmod o= it"));
  }
  REQUIRE(::chmod(options.key_file.c_str(), 0640) == 0);
  CHECK(Refusal(options).ok());
  if (::geteuid() != 0) return;  // only root can give a file away
  REQUIRE(::chown(options.key_file.c_str(), 12345, 0) == 0);
  CHECK_THAT(Refusal(options), FailsWith(ErrorCode::kConfig, "engine-key-file: " + options.key_file,
                                         "belongs to uid 12345, which may read it; chown it to uid 0"));
}

TEST_CASE("A key is not sent to a server of this host that another user runs, unless that user is named") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  const os::TempDir files;
  const std::string key = files.File("key");
  REQUIRE(os::WriteFileAtomic(key, "sesame\n", 0600).ok());
  const auto driver_of = [&](const std::string& url, const std::string& user = "") {
    auto driver = NewEngineDriver({.kind = "vllm", .url = url, .key_file = key, .user = user});
    REQUIRE(driver.ok());
    return *std::move(driver);
  };
  http::TestHttpServer ours([](int connection) { http::TestHttpServer::Reply(connection, "200 OK", "{}"); });
  CHECK(driver_of(ours.url())->Answers().ok());
  CHECK(ours.requests().size() == 1);

  OtherUsersServer named;
  CHECK(driver_of(named.url(), "65534")->Answers().ok());
  CHECK(named.EndAndSay() == "asked");
  CHECK_THAT(Refusal({.kind = "vllm", .url = "http://host", .user = "no such user"}),
             FailsWith(ErrorCode::kConfig, "engine-user: there is no user no such user"));

  OtherUsersServer theirs;
  const Status refused = driver_of(theirs.url())->Answers();
  CHECK(theirs.EndAndSay() == "");
  CHECK_THAT(refused, FailsWith(ErrorCode::kPermission, "uid 65534", "nothing was sent", "--engine-user"));
}

}  // namespace lockstep::engine
