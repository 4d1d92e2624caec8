#include "ctl/output/output.h"

#include <cerrno>
#include <fstream>

#include "common/base/text.h"

namespace lockstep::ctl {

Status WriteTextFile(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << '\n' << std::flush;
  return file.good() ? OkStatus() : ErrnoStatus(errno == 0 ? EIO : errno, Cat("writing ", path));
}

}  // namespace lockstep::ctl
