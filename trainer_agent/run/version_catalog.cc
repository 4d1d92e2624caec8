#include "trainer_agent/run/version_catalog.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"

namespace lockstep::run {

ServedRun::ServedRun(std::shared_ptr<DoubleBuffer> buffer, StoreOptions store)
    : model_(buffer->model()),
      run_(buffer->run()),
      layout_(buffer->layout()),
      deltas_(layout_, std::move(store)),
      buffer_(std::move(buffer)) {}

std::optional<ServedVersion> ServedRun::Newest() const {
  MutexLock lock(mutex_);
  return newest_;
}

Result<ServedVersion> ServedRun::RequireNewest() const {
  MutexLock lock(mutex_);
  if (newest_) return *newest_;
  if (!withdrawn_.ok()) return withdrawn_;
  return Status(ErrorCode::kState, Cat("model ", model_, ": no version is committed yet"));
}

Status ServedRun::CheckBase(const model::Manifest* base) const {
  MutexLock lock(mutex_);
  return CheckBaseLocked(base);
}

Status ServedRun::CheckBaseLocked(const model::Manifest* base) const {
  if (base == nullptr || (newest_ && newest_->manifest.get() == base)) return OkStatus();
  return {ErrorCode::kAborted, Cat("model ", model_, ": version ", base->held.version, ", which it was compared with, ",
                                   "was withdrawn meanwhile; publish a newer version, which goes out in full")};
}

std::shared_ptr<const model::Manifest> ServedRun::FindManifest(Version version) const {
  MutexLock lock(mutex_);
  if (newest_ && (version == 0 || newest_->manifest->held.version == version)) return newest_->manifest;
  if (previous_ != nullptr && previous_->held.version == version) return previous_;
  return nullptr;
}

std::string ServedRun::LabelOf(Version version) const {
  MutexLock lock(mutex_);
  for (auto at = labels_.rbegin(); at != labels_.rend() && at->first >= version; ++at) {
    if (at->first == version) return at->second;
  }
  return {};
}

Version ServedRun::NewestLabelled(const std::string& label) const {
  Version newest = 0;
  std::shared_ptr<ServedRun> source;
  {
    MutexLock lock(mutex_);
    const auto at =
        std::find_if(labels_.rbegin(), labels_.rend(), [&](const auto& has) { return has.second == label; });
    if (at != labels_.rend()) newest = at->first;
    source = source_.lock();
  }
  return source == nullptr ? newest : std::max(newest, source->NewestLabelled(label));
}

std::shared_ptr<const changes::VersionChanges> ServedRun::ChangesOf(Version version) const {
  MutexLock lock(mutex_);
  const auto found = std::ranges::lower_bound(changes_, version, {}, [](const auto& each) { return each->version; });
  return found == changes_.end() || (*found)->version != version ? nullptr : *found;
}

void ServedRun::Remember(const ServedVersion& version) {
  if (!version.label.empty()) labels_.emplace_back(version.manifest->held.version, version.label);
  if (labels_.size() > kRememberedLabels) labels_.pop_front();
  if (version.changes != nullptr) changes_.push_back(version.changes);
  const size_t most = std::max<size_t>(kRememberedChanges / (sizeof(changes::VersionChanges) +
                                                             layout_->tensors().size() * sizeof(changes::TensorChange)),
                                       2);
  if (changes_.size() > most) changes_.pop_front();
}

void ServedRun::SetSource(const std::shared_ptr<ServedRun>& source) {
  MutexLock lock(mutex_);
  source_ = source;
}

Status ServedRun::UseBlocks(Version wanted, bool exact, BlockIndex first, uint32_t count, const UseOfBlocks& use) {
  const uint64_t begin = layout_->block_range(first).offset;
  const ByteRange range{begin, layout_->block_range(first + count - 1).end() - begin};
  Status status;
  // The newest version may itself be overtaken between the two calls; its successor is then already served.
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::shared_ptr<const model::Manifest> manifest = FindManifest(wanted);
    if (manifest == nullptr || attempt > 0) {
      if (exact) break;
      LS_ASSIGN_OR_RETURN(const ServedVersion newest, RequireNewest());
      manifest = newest.manifest;
    }
    const std::shared_ptr<DoubleBuffer> buffer = Buffer();
    if (buffer == nullptr) return {ErrorCode::kState, Cat("model ", model_, ": the run has ended")};
    status = buffer->UseBytes(manifest->held.version, range, [&](ByteView bytes) { use(*manifest, bytes); });
    if (status.ok() || exact) return status;
  }
  if (exact) return {ErrorCode::kState, Cat("model ", model_, ": version ", wanted, " is no longer in memory")};
  return status;
}

Result<ServedRun::Slot> ServedRun::OpenSlot(Version wanted) const {
  std::shared_ptr<const model::Manifest> manifest = FindManifest(wanted);
  const std::shared_ptr<DoubleBuffer> buffer = Buffer();
  if (manifest == nullptr || buffer == nullptr) {
    return Status(ErrorCode::kState, Cat("model ", model_, ": version ", wanted, " is no longer in memory"));
  }
  LS_ASSIGN_OR_RETURN(VersionFile memory, buffer->OpenFile(manifest->held.version));
  return Slot{std::move(memory), std::move(manifest)};
}

bool ServedRun::IsWritten() const {
  const std::shared_ptr<DoubleBuffer> buffer = Buffer();
  return buffer != nullptr &&
         (buffer->control().state(0) == SlotState::kWriting || buffer->control().state(1) == SlotState::kWriting);
}

std::shared_ptr<DoubleBuffer> ServedRun::Buffer() const {
  MutexLock lock(mutex_);
  return buffer_;
}

void ServedRun::End() {
  {
    MutexLock lock(mutex_);
    buffer_.reset();
    newest_.reset();
    previous_.reset();
  }
  feed_.End();
  deltas_.Discard();
}

void VersionCatalog::Open(std::shared_ptr<ServedRun> run) {
  std::vector<Wake> wakes;
  {
    MutexLock lock(mutex_);
    waiting_.Take(wakes);
    runs_[run->model()] = run;
  }
  CallAll(wakes);
}

Status VersionCatalog::Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version,
                               const model::Manifest* base, std::vector<Wake>* wakes) {
  std::vector<Wake> called_here;
  {
    MutexLock lock(mutex_);
    MutexLock run_lock(run->mutex_);
    LS_RETURN_IF_ERROR(run->CheckBaseLocked(base));
    if (run->newest_) run->previous_ = run->newest_->manifest;
    run->Remember(version);
    run->newest_ = std::move(version);
    run->withdrawn_ = OkStatus();
    waiting_.Take(wakes != nullptr ? *wakes : called_here);
  }
  CallAll(called_here);
  return OkStatus();
}

void VersionCatalog::Retract(const std::shared_ptr<ServedRun>& run, Version version, const Status& why) {
  std::vector<Wake> wakes;
  {
    MutexLock lock(mutex_);
    MutexLock run_lock(run->mutex_);
    if (!run->newest_ || run->newest_->manifest->held.version != version) return;
    run->newest_.reset();
    run->withdrawn_ = why;
    waiting_.Take(wakes);
  }
  run->deltas_.Discard();
  CallAll(wakes);
}

std::vector<std::shared_ptr<ServedRun>> VersionCatalog::Runs() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ServedRun>> runs;
  for (const auto& [model, run] : runs_) runs.push_back(run);
  return runs;
}

void VersionCatalog::Withdraw(const std::string& model) {
  std::shared_ptr<ServedRun> run;
  std::vector<Wake> wakes;
  {
    MutexLock lock(mutex_);
    const auto at = runs_.find(model);
    if (at == runs_.end()) return;
    run = at->second;
    runs_.erase(at);
    waiting_.Take(wakes);
  }
  run->End();
  CallAll(wakes);
}

std::shared_ptr<ServedRun> VersionCatalog::Find(const std::string& model) const {
  MutexLock lock(mutex_);
  const auto at = runs_.find(model);
  return at == runs_.end() ? nullptr : at->second;
}

Result<std::shared_ptr<ServedRun>> VersionCatalog::FindOpen(const std::string& model) const {
  auto run = Find(model);
  if (run != nullptr) return run;
  return Status(ErrorCode::kNotFound,
                Cat("model \"", model.substr(0, 128), "\" is not open here; start its trainer first"));
}

std::optional<VersionCatalog::Update> VersionCatalog::UpdateSince(const std::string& model,
                                                                  const VersionRef& seen) const {
  MutexLock lock(mutex_);
  return UpdateSinceLocked(model, seen);
}

std::optional<VersionCatalog::Update> VersionCatalog::UpdateSinceLocked(const std::string& model,
                                                                        const VersionRef& seen) const {
  const auto at = runs_.find(model);
  if (at == runs_.end()) return std::nullopt;
  const std::shared_ptr<ServedRun>& run = at->second;
  Update update{.newest = {run->run(), 0}, .run = run, .version = run->Newest()};
  if (update.version) update.newest = update.version->manifest->held;
  if (update.newest == seen) return std::nullopt;
  return update;
}

bool VersionCatalog::WakeOnUpdate(const std::string& model, const VersionRef& seen, std::weak_ptr<const void> reader,
                                  Wake wake) const {
  MutexLock lock(mutex_);
  if (closed_ || UpdateSinceLocked(model, seen)) return false;
  waiting_.Add(std::move(reader), std::move(wake));
  return true;
}

void VersionCatalog::WakeAll() {
  std::vector<Wake> wakes;
  {
    MutexLock lock(mutex_);
    waiting_.Take(wakes);
  }
  CallAll(wakes);
}

void VersionCatalog::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  WakeAll();
}

bool VersionCatalog::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace lockstep::run
