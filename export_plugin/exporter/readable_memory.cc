#include "export_plugin/exporter/readable_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "common/base/text.h"

namespace lockstep::exporter {

Result<ReadableMemory> ReadableMemory::Create() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "making a pipe");
  return ReadableMemory(os::UniqueFd(ends[1]), os::UniqueFd(ends[0]));
}

// A write into a pipe answers EFAULT where a read of the memory would end the process.
Result<bool> ReadableMemory::Has(const void* address) {
  const ssize_t written = write(in_.get(), address, 1);
  const int error = errno;
  std::byte back;
  if (written == 1 && read(out_.get(), &back, 1) == 1) return true;
  if (written < 0 && error == EFAULT) return false;
  return ErrnoStatus(error, "asking whether a tensor's memory can be read");
}

Status UnreadableStatus(const void* address, const Status& trouble) {
  return {trouble.code(),
          Cat("memory at ", address, " cannot be read by the CPU, as a GPU's cannot, and ", trouble.message())};
}

}  // namespace lockstep::exporter
