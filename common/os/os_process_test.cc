// What a daemon's process shares with its surroundings: signals and systemd's notification socket.
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

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

TEST_CASE("Signals are values that the waiter returns, and SIGPIPE kills no process") {
  Result<SignalWaiter> waiter = SignalWaiter::Create();
  REQUIRE(waiter.ok());
  CHECK_FALSE(waiter->Wait(std::chrono::milliseconds(10)).has_value());
  ::kill(::getpid(), SIGTERM);
  CHECK(waiter->Wait() == SIGTERM);
  ::kill(::getpid(), SIGHUP);
  CHECK(waiter->Wait(std::chrono::milliseconds(1000)) == SIGHUP);
  ::raise(SIGPIPE);
}

}  // namespace
}  // namespace lockstep::os
