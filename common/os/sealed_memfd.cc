#include "common/os/sealed_memfd.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/text.h"
#include "common/os/file.h"

namespace lockstep::os {
namespace {

constexpr uint64_t kDirect = 64 << 10;  // bytes that are worth a system call of their own

}  // namespace

SealedMemfd::SealedMemfd(const std::string& name)
    : name_(name), fd_(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)), buffer_(kMostAtOnce) {
  if (!fd_.valid()) status_ = ErrnoStatus(errno, Cat("create memfd ", name_));
}

void SealedMemfd::Append(ByteView bytes) {
  if (bytes.size() >= kDirect) {
    Flush();
    return Write(bytes);
  }
  std::copy(bytes.begin(), bytes.end(), Take(bytes.size()));
}

std::byte* SealedMemfd::Take(uint64_t bytes) {
  if (used_ + bytes > buffer_.size()) Flush();
  return buffer_.data() + std::exchange(used_, used_ + bytes);
}

void SealedMemfd::Flush() {
  Write(ByteView(buffer_).first(std::exchange(used_, 0)));
}

void SealedMemfd::Write(ByteView bytes) {
  if (status_.ok()) status_ = WriteAll(fd_.get(), written_, bytes, Cat("memfd ", name_));
  written_ += bytes.size();
}

Result<UniqueFd> SealedMemfd::Seal() && {
  Flush();
  LS_RETURN_IF_ERROR(status_);
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, Cat("seal memfd ", name_));
  }
  return std::move(fd_);
}

}  // namespace lockstep::os
