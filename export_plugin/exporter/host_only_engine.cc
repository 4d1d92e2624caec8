#include "export_plugin/exporter/host_only_engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <unordered_set>

#include "common/base/text.h"
#include "common/os/unique_fd.h"

namespace lockstep::exporter {
namespace {

class HostOnlyEngine : public CopyEngine {
 public:
  HostOnlyEngine(WorkerPool* pool, Status trouble, os::UniqueFd in, os::UniqueFd out)
      : host_(NewHostCopyEngine(pool)), trouble_(std::move(trouble)), in_(std::move(in)), out_(std::move(out)) {}

  Status Start(std::span<const PlacedCopy> copies) override {
    readable_.clear();
    for (const PlacedCopy& placed : copies) {
      LS_RETURN_IF_ERROR(CheckReadable(placed.source + placed.copy.source_offset, placed.source));
      LS_RETURN_IF_ERROR(CheckReadable(placed.target + placed.copy.target_offset, placed.target));
    }
    return host_->Start(copies);
  }

 private:
  // A write into a pipe answers EFAULT for memory whose reading would end the process. Once for each memory: tensors
  // may move between calls.
  Status CheckReadable(const std::byte* address, const std::byte* memory) {
    if (!readable_.insert(memory).second) return OkStatus();
    const ssize_t written = write(in_.get(), address, 1);
    const int error = errno;
    std::byte back;
    if (written == 1 && read(out_.get(), &back, 1) == 1) return OkStatus();
    if (written >= 0 || error != EFAULT) return ErrnoStatus(error, "asking whether a tensor's memory can be read");
    return {trouble_.code(),
            Cat("memory at ", address, " cannot be read by the CPU, as a GPU's cannot, and ", trouble_.message())};
  }

  const std::unique_ptr<CopyEngine> host_;
  const Status trouble_;
  const os::UniqueFd in_;
  const os::UniqueFd out_;
  std::unordered_set<const std::byte*> readable_;
};

}  // namespace

Result<std::unique_ptr<CopyEngine>> NewHostOnlyEngine(WorkerPool* pool, Status trouble) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "making a pipe");
  return std::unique_ptr<CopyEngine>(
      std::make_unique<HostOnlyEngine>(pool, std::move(trouble), os::UniqueFd(ends[1]), os::UniqueFd(ends[0])));
}

}  // namespace lockstep::exporter
