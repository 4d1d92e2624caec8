#include <grp.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <semaphore>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/descriptor_limit.h"
#include "common/os/temp_dir.h"
#include "common/os/unix_server.h"

namespace lockstep::os {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSoon{30'000};

std::span<std::byte> Into(std::byte& byte) {
  return {&byte, 1};
}

// Sends back every byte it gets, plus one.
void Echo(UnixServer&, UnixConnection& connection) {
  std::byte byte{};
  while (connection.Receive(Into(byte), nullptr, kForever).ok()) {
    byte = static_cast<std::byte>(static_cast<uint8_t>(byte) + 1);
    if (!connection.Send({&byte, 1}, {}, kSoon).ok()) return;
  }
}

Result<std::byte> Ask(UnixConnection& connection, std::byte byte) {
  LS_RETURN_IF_ERROR(connection.Send({&byte, 1}, {}, kSoon));
  LS_RETURN_IF_ERROR(connection.Receive(Into(byte), nullptr, kSoon));
  return byte;
}

TEST_CASE("A unix server answers several connections at once, and its end is theirs") {
  const TempDir dir;
  auto server = *UnixServer::Start({.path = dir.File("x.sock")}, Echo, [](const Status&) {});
  auto first = *UnixConnect(dir.File("x.sock"), kSoon);
  auto second = *UnixConnect(dir.File("x.sock"), kSoon);
  CHECK(*Ask(first, std::byte{1}) == std::byte{2});
  CHECK(*Ask(second, std::byte{3}) == std::byte{4});
  CHECK(*Ask(first, std::byte{5}) == std::byte{6});
  CHECK(CheckPeerUser(first, "answer").ok());
  server.reset();
  CHECK(Ask(first, std::byte{1}).status().code() == ErrorCode::kUnavailable);
  CHECK_THAT(UnixConnect(dir.File("x.sock"), kSoon),
             FailsWith(ErrorCode::kUnavailable, "nothing listens at " + dir.File("x.sock")));
}

// New threads can not be made while this lives: their stacks would be larger than the address space.
class NoThreads {
 public:
  NoThreads() { SetStackBytes(size_t{1} << 47, &before_); }
  ~NoThreads() { SetStackBytes(before_, nullptr); }

 private:
  static void SetStackBytes(size_t bytes, size_t* before) {
    pthread_attr_t attributes;
    REQUIRE(::pthread_getattr_default_np(&attributes) == 0);
    if (before != nullptr) ::pthread_attr_getstacksize(&attributes, before);
    ::pthread_attr_setstacksize(&attributes, bytes);
    CHECK(::pthread_setattr_default_np(&attributes) == 0);
    ::pthread_attr_destroy(&attributes);
  }

  size_t before_ = 0;
};

TEST_CASE("A connection that no thread can be made for is closed and reported, and the server serves on") {
  const TempDir dir;
  Status failure;
  std::binary_semaphore failed(0);
  const auto server = *UnixServer::Start({.path = dir.File("x.sock")}, Echo, [&](const Status& status) {
    failure = status;
    failed.release();
  });
  auto before = *UnixConnect(dir.File("x.sock"), kSoon);
  REQUIRE(Ask(before, std::byte{1}).ok());
  {
    const NoThreads none;
    auto refused = *UnixConnect(dir.File("x.sock"), kSoon);
    CHECK(Ask(refused, std::byte{1}).status().code() == ErrorCode::kUnavailable);
    REQUIRE(failed.try_acquire_for(kSoon));
  }
  CHECK_THAT(failure, FailsWith(ErrorCode::kResourceExhausted, "could not have a thread", "raise the limit"));
  auto after = *UnixConnect(dir.File("x.sock"), kSoon);
  CHECK(Ask(after, std::byte{1}).ok());
  CHECK(Ask(before, std::byte{1}).ok());
}

TEST_CASE("Without descriptors no peer gets in, which is reported once, and the server goes on when it has some") {
  const TempDir dir;
  std::atomic<int> failures = 0;
  const auto server = *UnixServer::Start({.path = dir.File("x.sock")}, Echo, [&](const Status&) { ++failures; });
  const DescriptorLimit limit(256);
  std::vector<UniqueFd> all;
  for (UniqueFd one(::dup(0)); one.valid(); one = UniqueFd(::dup(0))) all.push_back(std::move(one));
  REQUIRE(!all.empty());
  all.pop_back();
  auto waiting = *UnixConnect(dir.File("x.sock"), kSoon);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it tries some times
  all.clear();
  CHECK(Ask(waiting, std::byte{1}).ok());
  CHECK(failures == 1);
}

TEST_CASE("Only a socket of our own user or root's is one to connect to, and no link to one") {
  const TempDir dir;
  const std::string path = dir.File("x.sock");
  const auto server = *UnixServer::Start({.path = path}, Echo, [](const Status&) {});
  CHECK(CheckSocketOwner(path).ok());
  std::filesystem::create_symlink(path, dir.File("link.sock"));
  CHECK_THAT(CheckSocketOwner(dir.File("link.sock")), FailsWith(ErrorCode::kPermission, "link.sock is no socket"));
  CHECK_THAT(CheckSocketOwner(dir.path()), FailsWith(ErrorCode::kPermission, "is no socket"));
  CHECK_THAT(CheckSocketOwner(dir.File("none")),
             FailsWith(ErrorCode::kUnavailable, "nothing listens at", "No such file"));
  if (::geteuid() == 0) {  // only root can make another user's
    REQUIRE(::lchown(path.c_str(), 12'345, 12'345) == 0);
    CHECK_THAT(CheckSocketOwner(path), FailsWith(ErrorCode::kPermission, "is of uid 12345"));
  }
}

TEST_CASE("A peer of another user is let in by its group, the first or another one, and by no other") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  static constexpr gid_t kGroup = 54'321;
  const TempDir dir;
  REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  const std::string path = dir.File("x.sock");
  const auto admit = [](UnixServer& server, UnixConnection& connection) {
    if (CheckPeerUser(connection, "answer", kGroup).ok()) Echo(server, connection);
  };
  const auto server = *UnixServer::Start({.path = path, .group = kGroup}, admit, [](const Status&) {});
  const auto is_let_in = [&](gid_t first, std::vector<gid_t> others) {
    const pid_t peer = ::fork();
    if (peer == 0) {
      ::alarm(60);
      const bool became =
          ::setgroups(others.size(), others.data()) == 0 && ::setgid(first) == 0 && ::setuid(65'534) == 0;
      auto connection = UnixConnect(path, kSoon);
      ::_exit(became && connection.ok() && Ask(*connection, std::byte{1}).ok() ? 0 : 1);
    }
    int failed = 1;
    REQUIRE(::waitpid(peer, &failed, 0) == peer);
    return failed == 0;
  };
  std::vector<gid_t> many(100);
  for (size_t i = 0; i < many.size(); ++i) many[i] = 60'000 + static_cast<gid_t>(i);
  CHECK(is_let_in(kGroup, {}));
  CHECK(is_let_in(65'534, {kGroup}));
  CHECK_FALSE(is_let_in(65'534, many));
  REQUIRE(::chmod(path.c_str(), 0666) == 0);
  CHECK_FALSE(is_let_in(65'534, many));
  many.push_back(kGroup);
  CHECK(is_let_in(65'534, many));
}

TEST_CASE("A group is found by its name and by its number") {
  CHECK(*FindGroup("root") == 0);
  CHECK(*FindGroup("54321") == 54'321);
  for (const char* none : {"no-such-group", "", "-1", "12x", "4294967296"}) {
    CHECK_THAT(FindGroup(none), FailsWith(ErrorCode::kConfig, Cat("there is no group ", none)));
  }
  for (const char* nobodys : {"nogroup", "65534", "4294967295"}) {
    CHECK_THAT(FindGroup(nobodys), FailsWith(ErrorCode::kConfig, Cat("group ", nobodys, " has no users here")));
  }
}

TEST_CASE("Connections above the limit are closed, and one that ends makes room") {
  const TempDir dir;
  const auto server =
      *UnixServer::Start({.path = dir.File("x.sock"), .max_connections = 1}, Echo, [](const Status&) {});
  auto only = *UnixConnect(dir.File("x.sock"), kSoon);
  REQUIRE(Ask(only, std::byte{1}).ok());
  auto surplus = *UnixConnect(dir.File("x.sock"), kSoon);
  CHECK(Ask(surplus, std::byte{1}).status().code() == ErrorCode::kUnavailable);
  only = UnixConnection();
  bool let_in = false;
  for (const Deadline deadline(kSoon); !let_in && !deadline.Passed();) {
    std::this_thread::sleep_for(milliseconds(5));
    auto next = *UnixConnect(dir.File("x.sock"), kSoon);
    let_in = Ask(next, std::byte{1}).ok();
  }
  CHECK(let_in);
}

}  // namespace
}  // namespace lockstep::os
