// The trainer's private memory, and the question whether it will fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/status.h"

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
  ~LazyMemory();

  // kResourceExhausted when the address space is not to be had.
  static Result<LazyMemory> Create(uint64_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// OK when the machine can still give `bytes`; else kResourceExhausted with both figures. `what` names who wants it.
Status CheckMemoryAvailable(uint64_t bytes, const char* what);

}  // namespace lockstep::demo
