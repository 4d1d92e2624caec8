// The export plugin's C ABI for a C++ trainer: one model, one rank, Status instead of codes, and the time it took.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "export_plugin/lockstep.h"

namespace lockstep::demo {

// Move-only. Destruction closes the model; a version being written is aborted.
class Publisher {
 public:
  Publisher(Publisher&& other) noexcept : model_(std::exchange(other.model_, nullptr)), blocked_(other.blocked_) {}
  Publisher& operator=(Publisher&&) = delete;
  ~Publisher() { lockstep_close(model_); }

  // The agent's own errors, with its sentence.
  static Result<Publisher> Open(const std::string& socket, const std::string& model, const model::ModelLayout& layout);

  // Where to write the data section of `version`, valid until Commit().
  Result<std::byte*> Begin(Version version);
  Status RangeDone(ByteRange range);
  Status Commit();

  // Milliseconds that the trainer has spent inside the calls above since the last TakeBlockedMs().
  double TakeBlockedMs();

 private:
  explicit Publisher(lockstep_model* model) : model_(model) {}
  template <typename Call>
  Status Timed(std::string_view what, const Call& call);

  lockstep_model* model_;
  std::chrono::steady_clock::duration blocked_{};
};

}  // namespace lockstep::demo
