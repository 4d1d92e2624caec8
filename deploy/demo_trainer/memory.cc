#include "deploy/demo_trainer/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <string>

#include "common/base/text.h"

namespace lockstep::demo {
namespace {

// Nothing where /proc does not say.
std::optional<uint64_t> MemAvailable() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (meminfo >> key >> kib && std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

LazyMemory::~LazyMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<LazyMemory> LazyMemory::Create(uint64_t bytes) {
  LazyMemory memory;
  if (bytes == 0) return memory;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, Cat("reserving ", HumanBytes(bytes), " for the optimizer's state"));
  (void)::madvise(data, bytes, MADV_HUGEPAGE);  // a wish: kernels without huge pages say no
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

Status CheckMemoryAvailable(uint64_t bytes, const char* what) {
  const std::optional<uint64_t> available = MemAvailable();
  if (!available || *available >= bytes) return OkStatus();
  return Status(ErrorCode::kResourceExhausted,
                Cat(what, " need ", HumanBytes(bytes), ", and ", HumanBytes(*available),
                    " of memory are available: choose a smaller model or free memory (files in /dev/shm count)"));
}

}  // namespace lockstep::demo
