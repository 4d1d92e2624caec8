// What a daemon's process shares with its surroundings: signals and systemd's notification socket.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "common/os/sd_notify.h"
#include "common/os/signals.h"
#include "common/os/temp_dir.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {
namespace {

// The manager's side of $NOTIFY_SOCKET; `path` may start with '@' for the abstract namespace.
class Manager {
 public:
  explicit Manager(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size())) == 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Manager() { ::unsetenv("NOTIFY_SOCKET"); }

  std::string Next() {
    char buffer[256];
    const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    return got < 0 ? "" : std::string(buffer, static_cast<size_t>(got));
  }

 private:
  UniqueFd fd_;
};

TEST_CASE("Notifications are one datagram each, to a path or to an abstract name") {
  const TempDir dir;
  const std::string abstract = "@lockstep-test-" + std::to_string(::getpid());
  for (const std::string& path : {dir.File("notify"), abstract}) {
    Manager manager(path);
    NotifyReady();
    NotifyStatus("serving 3 models\nREADY=0");
    NotifyWatchdog();
    NotifyStopping();
    CHECK(manager.Next() == "READY=1");
    CHECK(manager.Next() == "STATUS=serving 3 models READY=0");
    CHECK(manager.Next() == "WATCHDOG=1");
    CHECK(manager.Next() == "STOPPING=1");
    CHECK(manager.Next().empty());
  }
}

TEST_CASE("Without a manager, or with a dead one, notifying does nothing") {
  NotifyReady();
  ::setenv("NOTIFY_SOCKET", "/tmp/no-such-manager", 1);
  NotifyReady();
  ::unsetenv("NOTIFY_SOCKET");
}

TEST_CASE("SIGTERM and SIGINT end the waiter's wait; it tells of other signals, which kill no process") {
  std::vector<std::string> ignored;
  Result<SignalWaiter> waiter = SignalWaiter::Create([&](const std::string& signal) { ignored.push_back(signal); });
  REQUIRE(waiter.ok());
  CHECK_FALSE(waiter->Wait(std::chrono::milliseconds(10)));
  for (const int signal : {SIGTERM, SIGINT}) {
    ::kill(::getpid(), signal);
    CHECK(waiter->Wait());
  }
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) ::kill(::getpid(), signal);
  CHECK_FALSE(waiter->Wait(std::chrono::milliseconds(10)));
  CHECK(ignored == std::vector<std::string>{"SIGHUP", "SIGUSR1", "SIGUSR2"});
  ::raise(SIGPIPE);
}

TEST_CASE("A write beyond the largest file that a process may have is an error, and kills no process") {
  REQUIRE(SignalWaiter::Create([](const std::string&) {}).ok());
  const TempDir dir;
  const UniqueFd file(::open(dir.File("large").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit now{1 << 20, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
  const ssize_t wrote = ::pwrite(file.get(), "x", 1, 1 << 20);
  const int error = errno;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(wrote == -1);
  CHECK(error == EFBIG);
}

}  // namespace
}  // namespace lockstep::os
