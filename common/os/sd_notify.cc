#include "common/os/sd_notify.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "common/os/unique_fd.h"
#include "common/os/unix_address.h"

namespace lockstep::os {
namespace {

void Notify(std::string_view message) {
  const char* socket_path = std::getenv("NOTIFY_SOCKET");
  if (socket_path == nullptr || (socket_path[0] != '/' && socket_path[0] != '@')) return;
  const Result<sockaddr_un> parsed = UnixAddress(socket_path);
  if (!parsed.ok()) return;
  sockaddr_un address = *parsed;
  const size_t path_bytes = std::string_view(socket_path).size();
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // the abstract namespace, as systemd writes it
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  const auto address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_bytes);
  ::sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           reinterpret_cast<const sockaddr*>(&address), address_bytes);
}

}  // namespace

void NotifyReady() {
  Notify("READY=1");
}

void NotifyStopping() {
  Notify("STOPPING=1");
}

void NotifyStatus(std::string_view text) {
  std::string message = "STATUS=" + std::string(text);
  std::replace(message.begin(), message.end(), '\n', ' ');
  Notify(message);
}

void NotifyWatchdog() {
  Notify("WATCHDOG=1");
}

}  // namespace lockstep::os
