// SealedMemfd: anonymous memory that is written once, from its begin to its end, and that cannot be changed afterwards,
// neither its bytes nor its size: for another process, which may rely on what it has checked.
//
// The memory is written by system calls: the kernel clears no page of it first, and maps none of it here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

class SealedMemfd {
 public:
  static constexpr uint64_t kMostAtOnce = 256 << 10;  // bytes that Take gives

  // `name` shows in /proc. What goes wrong is said by Seal.
  explicit SealedMemfd(const std::string& name);

  // The next bytes.
  void Append(ByteView bytes);
  // Room for the next `bytes`, at most kMostAtOnce: to be filled before anything else is called.
  std::byte* Take(uint64_t bytes);
  uint64_t size() const { return written_ + used_; }

  // kResourceExhausted where there was no room.
  Result<UniqueFd> Seal() &&;

 private:
  void Flush();
  void Write(ByteView bytes);

  const std::string name_;
  UniqueFd fd_;
  Status status_;
  std::vector<std::byte> buffer_;
  uint64_t used_ = 0;     // of the buffer
  uint64_t written_ = 0;  // to the descriptor
};

}  // namespace lockstep::os
