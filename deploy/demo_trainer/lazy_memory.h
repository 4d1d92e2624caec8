// The trainer's private memory.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/status.h"
#include "common/base/text.h"

namespace lockstep::demo {

// Zeroed memory that costs nothing until it is touched: pages are faulted in by whoever first writes them, which on a
// virtual machine is the slowest thing a trainer does at start. Huge pages where the kernel gives them. Move-only.
class LazyMemory {
 public:
  LazyMemory() = default;
  LazyMemory(LazyMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  LazyMemory& operator=(LazyMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~LazyMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  // Fails with errno's code when the address space is not available.
  static Result<LazyMemory> Create(uint64_t bytes) {
    LazyMemory memory;
    if (bytes == 0) return memory;
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      return ErrnoStatus(errno, Cat("reserving ", HumanBytes(bytes), " for the optimizer's state"));
    (void)::madvise(data, bytes, MADV_HUGEPAGE);  // best effort: some kernels have no huge pages
    memory.data_ = static_cast<std::byte*>(data);
    memory.bytes_ = bytes;
    return memory;
  }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace lockstep::demo
