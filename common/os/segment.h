// Shared memory: a file of known size, mapped for as long as its owner lives.
//
// A segment is a file on a tmpfs (it has a name and outlives its processes) or a memfd (it lives as long as a process
// holds it). Its pages are allocated when it is made, so that a full tmpfs is an error here and not a SIGBUS at some
// later write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

enum class Access { kReadOnly, kReadWrite };

// Move-only owner of a mapping (MAP_SHARED) and of its descriptor. Moving keeps data() where it is. What is in the
// memory is not synchronised here: the processes that share a segment agree on that themselves.
class MappedSegment {
 public:
  MappedSegment() = default;  // maps nothing

  bool valid() const { return data() != nullptr; }
  std::byte* data() const { return data_.get(); }  // REQUIRES Access::kReadWrite for writes
  uint64_t bytes() const { return data_.get_deleter().bytes; }
  std::span<std::byte> span() const { return {data(), bytes()}; }
  int fd() const { return fd_.get(); }
  // Keeps the mapping and closes the descriptor: for segments that are many.
  void CloseFd() { fd_ = UniqueFd(); }
  // Keeps the mapping and gives the descriptor to the caller.
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  friend Result<MappedSegment> AdoptSegment(UniqueFd, uint64_t, Access, const std::string&);
  struct Unmap {
    uint64_t bytes;
    void operator()(std::byte* data) const;
  };
  MappedSegment(UniqueFd fd, std::byte* data, uint64_t bytes) : fd_(std::move(fd)), data_(data, Unmap{bytes}) {}

  UniqueFd fd_;
  std::unique_ptr<std::byte, Unmap> data_;
};

// Makes the file, mode 0600, all zero. kState when `path` exists; kResourceExhausted, naming path, size and free space,
// when there is no room. A failure leaves no file behind. The file stays when the segment goes: unlink it to be rid of
// it.
Result<MappedSegment> CreateTmpfsSegment(const std::string& path, uint64_t bytes);

// Anonymous memory, all zero, sealed so that no holder of the descriptor can change its size. `name` shows in /proc.
Result<MappedSegment> CreateMemfdSegment(const std::string& name, uint64_t bytes);

// Maps an existing file. kNotFound when there is none; kBadData when it is not a regular file of exactly `bytes`.
Result<MappedSegment> OpenSegment(const std::string& path, uint64_t bytes, Access access);

// Takes room for `bytes` in the segment's file where it has fewer, and changes nothing else: a process that has it
// mapped sees no difference, and Resize() to as many finds it. kResourceExhausted as CreateTmpfsSegment; then nothing
// is taken.
Status ReserveRoom(const MappedSegment& segment, uint64_t bytes, const std::string& name);

// The segment with `bytes`, its pages allocated, mapped anew; those that it had keep their content. REQUIRES no
// other process to have it mapped. `name` is for messages only, here and above.
Result<MappedSegment> Resize(MappedSegment segment, uint64_t bytes, const std::string& name);

// Maps a descriptor, as received from another process. kBadData as above; `name` is for messages only.
Result<MappedSegment> AdoptSegment(UniqueFd fd, uint64_t bytes, Access access, const std::string& name);

// OK when the file of a descriptor that another process gave may be mapped for long: a process that touches what was
// cut off a mapped file is killed by SIGBUS. It is sealed against shrinking or, where it cannot be (a file with a
// name), belongs to our own user. kBadData otherwise.
Status CheckLasts(int fd, const std::string& name);

}  // namespace lockstep::os
