#include "common/telemetry/address_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/text.h"
#include "common/os/file.h"

namespace lockstep::telemetry {

Result<std::unique_ptr<AddressFile>> AddressFile::Create(std::string path) {
  if (!path.empty() && ::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("remove ", path));
  return std::unique_ptr<AddressFile>(new AddressFile(std::move(path)));
}

AddressFile::~AddressFile() {
  if (announced_) ::unlink(path_.c_str());
}

Status AddressFile::Announce(std::map<std::string, std::string> addresses) {
  std::erase_if(addresses, [](const auto& entry) { return entry.second.empty(); });
  const std::string line = nlohmann::json(addresses).dump() + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  if (path_.empty()) return OkStatus();
  LS_RETURN_IF_ERROR(os::WriteFileAtomic(path_, line));
  announced_ = true;
  return OkStatus();
}

}  // namespace lockstep::telemetry
