#include "common/os/owners.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "common/base/text.h"

namespace lockstep::os {

Result<Owners> Owners::Open(const std::string& path) {
  if (path.empty()) return Owners(UniqueFd());
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return ErrnoStatus(errno, Cat("open ", path));
  return Owners(std::move(file));
}

bool Owners::Gone() const {
  return file_.valid() && ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace lockstep::os
