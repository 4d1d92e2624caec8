// The stand-in for NCCL that tests link: communicators between threads of one process, over the stand-in for the CUDA
// runtime. //tests/nccl:nccl_stand_in, testonly, never beside the real one.
//
// It knows communicators that do not block, and shows what those hide:
//
// - What a call begins is in progress until ncclCommGetAsyncError() was asked; only then is its work in the stream.
// What
//   was recorded in the stream before that is before it. A call that comes while another is in progress is a violation.
// - Making a communicator is in progress until all its ranks have come; the first message between two ranks, until
//   both have begun it.
// - A message's work is under way on each side until the other side's stream has come to it, too, or its communicator
//   is aborted.
//
// Sends and receives are among the calls of tests/cuda/stand_in.h, when they come into the stream. Thread-safe.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::nccl {

// Nothing made, failing or dead. Handles from before are gone.
void Reset();

// The `nth` (from 1) call of `name` from now on does nothing and answers `result`.
void FailCall(std::string_view name, uint64_t nth, ncclResult_t result);
// From now on ncclCommGetAsyncError() tells `result` to `rank`, in whatever communicator.
void FailLater(int rank, ncclResult_t result);
// Nothing of `rank`'s moves any more, in whatever communicator.
void Kill(int rank);

uint64_t LiveCommunicators();
// One sentence each.
std::vector<std::string> Violations();

}  // namespace lockstep::nccl
