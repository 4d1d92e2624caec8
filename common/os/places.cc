#include "common/os/places.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/unix_socket.h"

namespace lockstep::os {
namespace {

constexpr char kVariable[] = "LOCKSTEP_RUNTIME_DIR";

bool IsNamed() {
  const char* named = std::getenv(kVariable);
  return named != nullptr && named[0] != '\0';
}

// This user's directory; its daemons have one each below it.
std::string Own() {
  if (!IsNamed()) return Cat("/dev/shm/lockstep-", ::geteuid());
  const std::filesystem::path named = std::filesystem::absolute(std::getenv(kVariable)).lexically_normal();
  return (named.has_filename() ? named : named.parent_path()).string();
}

// Whether a daemon of this user, or root's, does. A socket file outlives a daemon that was killed.
bool Listens(const std::string& path) {
  const Result<UnixConnection> connection = UnixConnect(path, std::chrono::seconds(5));
  return connection.ok() && CheckListener(*connection, path).ok();
}

bool IsThere(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

Status CheckOwn(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, Cat("directory ", path));
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0) return OkStatus();
  return {ErrorCode::kPermission, Cat(path, " is not a directory of uid ", ::geteuid(),
                                      " alone (mode 0700): others could replace the daemons' ",
                                      "sockets in it. Remove it, or name another directory by ", kVariable)};
}

}  // namespace

Directories PlaceToServe(const Place& place) {
  const bool writable = ::access(place.sockets, W_OK | X_OK) == 0 || (errno == ENOENT && ::geteuid() == 0);
  if (writable && !IsNamed()) return {place.sockets, place.memory};
  const std::string own = Cat(Own(), "/", place.own);
  return {own, Cat(own, "/", place.own_memory)};
}

std::string FindSocket(const Place& place, const std::string& name) {
  const std::string own = Cat(Own(), "/", place.own);
  const bool host = IsThere(place.sockets) || (::geteuid() == 0 && !IsThere(Cat(own, "/", name)));
  return Cat(IsNamed() || !host || Listens(own + "/control.sock") ? own : place.sockets, "/", name);
}

Status MakeOwnPlace(const std::string& path) {
  const std::string own = Own();
  if (!path.starts_with(own + "/")) return OkStatus();
  for (const std::string& directory : {own, path.substr(0, path.find('/', own.size() + 1))}) {
    LS_RETURN_IF_ERROR(MakeDirs(directory, 0700));
    LS_RETURN_IF_ERROR(CheckOwn(directory));
  }
  return OkStatus();
}

}  // namespace lockstep::os
