#include "trainer_agent/run/version_catalog.h"

#include <utility>

#include "common/base/text.h"

namespace lockstep::run {

ServedRun::ServedRun(std::string model, RunId run, std::shared_ptr<const model::ModelLayout> layout,
                     std::shared_ptr<BlockReader> blocks, StoreOptions store)
    : model_(std::move(model)),
      run_(run),
      layout_(std::move(layout)),
      deltas_(layout_, std::move(store)),
      blocks_(std::move(blocks)) {}

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
  return labels_.Of(version);
}

Version ServedRun::NewestLabelled(const std::string& label) const {
  MutexLock lock(mutex_);
  return labels_.Newest(label);
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
    const std::shared_ptr<BlockReader> blocks = Blocks();
    if (blocks == nullptr) return {ErrorCode::kState, Cat("model ", model_, ": the run has ended")};
    status = blocks->UseBytes(manifest->held.version, range, [&](ByteView bytes) { use(*manifest, bytes); });
    if (status.ok() || exact) return status;
  }
  if (exact) return {ErrorCode::kState, Cat("model ", model_, ": version ", wanted, " is no longer in memory")};
  return status;
}

Result<ServedRun::Slot> ServedRun::OpenSlot(Version wanted) const {
  std::shared_ptr<const model::Manifest> manifest = FindManifest(wanted);
  const std::shared_ptr<BlockReader> blocks = Blocks();
  if (manifest == nullptr || blocks == nullptr) {
    return Status(ErrorCode::kState, Cat("model ", model_, ": version ", wanted, " is no longer in memory"));
  }
  LS_ASSIGN_OR_RETURN(VersionFile memory, blocks->OpenFile(manifest->held.version));
  return Slot{std::move(memory), std::move(manifest)};
}

std::shared_ptr<BlockReader> ServedRun::Blocks() const {
  MutexLock lock(mutex_);
  return blocks_;
}

void ServedRun::End() {
  {
    MutexLock lock(mutex_);
    blocks_.reset();
    newest_.reset();
    previous_.reset();
  }
  feed_.End();
  deltas_.Discard();
}

void VersionCatalog::Open(std::shared_ptr<ServedRun> run) {
  const std::string model = run->model();
  {
    MutexLock lock(mutex_);
    runs_[model] = std::move(run);
  }
  Announce(model);
}

Status VersionCatalog::Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version,
                               const model::Manifest* base) {
  {
    MutexLock lock(mutex_);
    MutexLock run_lock(run->mutex_);
    LS_RETURN_IF_ERROR(run->CheckBaseLocked(base));
    if (run->newest_) run->previous_ = run->newest_->manifest;
    run->labels_.Add(version.manifest->held.version, version.label);
    run->newest_ = std::move(version);
    run->withdrawn_ = OkStatus();
  }
  Announce(run->model());
  return OkStatus();
}

void VersionCatalog::Retract(const std::shared_ptr<ServedRun>& run, Version version, const Status& why) {
  {
    MutexLock lock(mutex_);
    MutexLock run_lock(run->mutex_);
    if (!run->newest_ || run->newest_->manifest->held.version != version) return;
    run->newest_.reset();
    run->withdrawn_ = why;
  }
  run->deltas_.Discard();
  Announce(run->model());
}

std::vector<std::shared_ptr<ServedRun>> VersionCatalog::Runs() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ServedRun>> runs;
  for (const auto& [model, run] : runs_) runs.push_back(run);
  return runs;
}

void VersionCatalog::Withdraw(const std::string& model) {
  std::shared_ptr<ServedRun> run;
  {
    MutexLock lock(mutex_);
    const auto at = runs_.find(model);
    if (at == runs_.end()) return;
    run = at->second;
    runs_.erase(at);
  }
  run->End();
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
  const std::shared_ptr<ServedRun> run = Find(model);
  if (run == nullptr) return std::nullopt;
  Update update{.newest = {run->run(), 0}, .run = run, .version = run->Newest()};
  if (update.version) update.newest = update.version->manifest->held;
  if (update.newest == seen) return std::nullopt;
  return update;
}

VersionCatalog::Watch::Watch(const VersionCatalog* catalog, std::string model, std::function<void()> changed)
    : catalog_(catalog), model_(std::move(model)), changed_(std::move(changed)) {
  MutexLock lock(catalog_->watches_mutex_);
  catalog_->watches_.insert(this);
}

VersionCatalog::Watch::~Watch() {
  MutexLock lock(catalog_->watches_mutex_);
  catalog_->watches_.erase(this);
}

VersionCatalog::~VersionCatalog() {
  {
    MutexLock lock(announced_mutex_);
    ending_ = true;
    announced_changed_.notify_all();
  }
  notifier_.join();
}

void VersionCatalog::Announce(const std::string& model) {
  MutexLock lock(announced_mutex_);
  announced_.insert(model);
  announced_changed_.notify_all();
}

void VersionCatalog::Notify() {
  MutexLock lock(announced_mutex_);
  while (true) {
    announced_changed_.wait(lock, [this]() LS_REQUIRES(announced_mutex_) { return ending_ || !announced_.empty(); });
    if (announced_.empty()) return;
    const std::set<std::string> models = std::exchange(announced_, {});
    lock.unlock();
    for (const std::string& model : models) CallWatches(model);
    lock.lock();
  }
}

void VersionCatalog::CallWatches(const std::string& model) const {
  MutexLock lock(watches_mutex_);
  for (const Watch* watch : watches_) {
    if (model.empty() || watch->model_ == model) watch->changed_();
  }
}

void VersionCatalog::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  Announce("");
}

bool VersionCatalog::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace lockstep::run
