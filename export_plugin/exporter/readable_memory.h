// ReadableMemory: whether the CPU can read memory, which it cannot of a GPU's own. The kernel says so; CUDA is not
// asked.
#pragma once

#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::exporter {

// Not thread-safe.
class ReadableMemory {
 public:
  static Result<ReadableMemory> Create();

  // Of the byte there.
  Result<bool> Has(const void* address);

 private:
  ReadableMemory(os::UniqueFd in, os::UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {}

  os::UniqueFd in_;
  os::UniqueFd out_;
};

// The error of memory that is not, in a process that reaches no GPU because of `trouble`. REQUIRES !trouble.ok().
Status UnreadableStatus(const void* address, const Status& trouble);

}  // namespace lockstep::exporter
