#include "trainer_agent/store/version_catalog.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {

ServedRun::ServedRun(std::string model, RunId run, std::shared_ptr<const ModelLayout> layout,
                     std::shared_ptr<BlockReader> blocks, StoreOptions store)
    : model_(std::move(model)),
      run_(run),
      layout_(std::move(layout)),
      deltas_(layout_, std::move(store)),
      blocks_(std::move(blocks)) {}

std::optional<ServedVersion> ServedRun::Newest() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

std::shared_ptr<const Manifest> ServedRun::FindManifest(Version version) const {
  std::lock_guard lock(mutex_);
  if (newest_ && newest_->manifest->held.version == version) return newest_->manifest;
  if (previous_ != nullptr && previous_->held.version == version) return previous_;
  return nullptr;
}

Result<ServedRun::BlockInfo> ServedRun::ReadBlock(Version wanted, bool exact, BlockIndex block,
                                                  std::span<std::byte> out) {
  Status status{ErrorCode::kState, Cat("model ", model_, ": nothing is committed yet")};
  // The newest version may itself be overtaken between the look and the read; its successor is then already served.
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::shared_ptr<const Manifest> manifest = FindManifest(wanted);
    if (manifest == nullptr || attempt > 0) {
      if (exact) break;
      const auto newest = Newest();
      if (!newest) break;
      manifest = newest->manifest;
    }
    const std::shared_ptr<BlockReader> blocks = Blocks();
    if (blocks == nullptr) return Status(ErrorCode::kState, Cat("model ", model_, ": the run has ended"));
    status = blocks->ReadBlock(manifest->held.version, block, out);
    if (status.ok()) return BlockInfo{manifest->held.version, manifest->block_hashes[block]};
    if (exact) return status;
  }
  if (exact) return Status(ErrorCode::kState, Cat("model ", model_, ": version ", wanted, " is no longer in memory"));
  return status;
}

Result<ServedRun::Half> ServedRun::OpenHalf(Version wanted) const {
  std::shared_ptr<const Manifest> manifest;
  if (wanted != 0) {
    manifest = FindManifest(wanted);
  } else if (const auto newest = Newest()) {
    manifest = newest->manifest;
  }
  const std::shared_ptr<BlockReader> blocks = Blocks();
  if (manifest == nullptr || blocks == nullptr) {
    return Status(ErrorCode::kState, Cat("model ", model_, ": version ", wanted, " is no longer in memory"));
  }
  LS_ASSIGN_OR_RETURN(VersionFile memory, blocks->OpenFile(manifest->held.version));
  return Half{std::move(memory), std::move(manifest)};
}

std::shared_ptr<BlockReader> ServedRun::Blocks() const {
  std::lock_guard lock(mutex_);
  return blocks_;
}

void ServedRun::End() {
  {
    std::lock_guard lock(mutex_);
    blocks_.reset();
    newest_.reset();
    previous_.reset();
  }
  deltas_.Discard();
}

void VersionCatalog::Open(std::shared_ptr<ServedRun> run) {
  std::lock_guard lock(mutex_);
  runs_[run->model()] = std::move(run);
  changed_.notify_all();
}

void VersionCatalog::Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version) {
  std::lock_guard lock(mutex_);
  {
    std::lock_guard run_lock(run->mutex_);
    if (run->newest_) run->previous_ = run->newest_->manifest;
    run->newest_ = std::move(version);
  }
  changed_.notify_all();
}

void VersionCatalog::Withdraw(const std::string& model) {
  std::shared_ptr<ServedRun> run;
  {
    std::lock_guard lock(mutex_);
    const auto at = runs_.find(model);
    if (at == runs_.end()) return;
    run = at->second;
    runs_.erase(at);
  }
  run->End();
}

std::shared_ptr<ServedRun> VersionCatalog::Find(const std::string& model) const {
  std::lock_guard lock(mutex_);
  const auto at = runs_.find(model);
  return at == runs_.end() ? nullptr : at->second;
}

std::optional<VersionCatalog::News> VersionCatalog::WaitForNews(const std::string& model, const Held& seen,
                                                                std::chrono::milliseconds timeout,
                                                                const std::function<bool()>& give_up) const {
  constexpr std::chrono::milliseconds kGiveUpPoll{100};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (const auto at = runs_.find(model); at != runs_.end()) {
      News news{.newest = {at->second->run(), 0}, .run = at->second, .version = at->second->Newest()};
      if (news.version) news.newest = news.version->manifest->held;
      if (news.newest != seen) return news;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline || give_up()) return std::nullopt;
    changed_.wait_until(lock, std::min(deadline, now + kGiveUpPoll));
  }
  return std::nullopt;
}

void VersionCatalog::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace lockstep
