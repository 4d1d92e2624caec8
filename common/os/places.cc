#include "common/os/places.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"

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
  return std::filesystem::absolute(std::getenv(kVariable)).lexically_normal().string();
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
  const std::string own = Cat(Own(), "/", place.own, "/", name);
  const bool there = CheckOwn(Own()).ok() && IsThere(own);
  const bool host = !IsNamed() && (::geteuid() == 0 || IsThere(place.sockets));
  return there || !host ? own : Cat(place.sockets, "/", name);
}

Status MakeOwnPlace(const std::string& sockets) {
  const std::string own = Own();
  if (!sockets.starts_with(own + "/")) return OkStatus();
  for (const std::string& path : {own, sockets}) {
    LS_RETURN_IF_ERROR(MakeDirs(path, 0700));
    LS_RETURN_IF_ERROR(CheckOwn(path));
  }
  return OkStatus();
}

}  // namespace lockstep::os
