#include "trainer_agent/publish/model_registry.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

bool SameTrainer(const DoubleBuffer& buffer, const OpenRequest& request) {
  return buffer.layout()->tensors() == request.layout->tensors() && buffer.ranks() == request.ranks;
}

}  // namespace

ModelRegistry::ModelRegistry(const SegmentHome* home, RegistryOptions options, WorkerPool* pool,
                             VersionCatalog* catalog)
    : home_(home), options_(options), pool_(pool), catalog_(catalog) {}

std::shared_ptr<ModelPublisher> ModelRegistry::Install(SegmentHome::Stored stored) {
  auto publisher = std::make_shared<ModelPublisher>(
      std::move(stored.buffer), StoreOptions{.directory = stored.directory, .retain_bytes = options_.retain_bytes},
      pool_, catalog_);
  publisher->Recover();
  publisher->Open();
  std::lock_guard lock(mutex_);
  entries_[publisher->buffer().model()] = Entry{.publisher = publisher};
  return publisher;
}

void ModelRegistry::Recover() {
  std::lock_guard open_lock(open_mutex_);
  for (SegmentHome::Stored& stored : home_->FindAll()) {
    const auto publisher = Install(std::move(stored));
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[publisher->buffer().model()];
    for (uint32_t rank = 0; rank < publisher->buffer().ranks(); ++rank) entry.seen.insert(rank);
  }
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Open(OpenRequest request) {
  LS_RETURN_IF_ERROR(CheckModelName(request.model));
  if (request.ranks == 0 || request.rank >= request.ranks) {
    return Status(ErrorCode::kBadData, Cat("rank ", request.rank, " of ", request.ranks));
  }
  std::lock_guard open_lock(open_mutex_);
  Entry* entry = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return Status(ErrorCode::kUnavailable, "the agent is shutting down");
    if (const auto at = entries_.find(request.model); at != entries_.end()) entry = &at->second;
    if (entry != nullptr && entry->connected.count(request.rank) > 0) {
      return Status(ErrorCode::kState,
                    Cat("rank ", request.rank, " of model ", request.model, " is connected already"));
    }
  }
  return request.run.IsZero() ? Start(request, entry) : Rejoin(request, entry);
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Rejoin(OpenRequest& request, Entry* entry) {
  if (entry != nullptr && entry->publisher->buffer().run() == request.run) return Join(request, *entry);
  if (entry != nullptr && !entry->connected.empty()) {
    return Status(ErrorCode::kState, Cat("model ", request.model, " is now written by another trainer, in run ",
                                         ToHex(entry->publisher->buffer().run())));
  }
  if (request.fds.empty()) {
    return Status(ErrorCode::kNotFound, Cat("run ", ToHex(request.run), " of model ", request.model,
                                            " is not held here; open without a run to start a new one"));
  }
  LS_ASSIGN_OR_RETURN(SegmentHome::Stored stored, home_->Adopt(std::move(request.fds)));
  if (stored.buffer->model() != request.model || stored.buffer->run() != request.run) {
    return Status(ErrorCode::kBadData, "the buffers handed back are of another model or run");
  }
  const auto publisher = Install(std::move(stored));
  Log(LogLevel::kInfo, "run_handed_back", {{"model", request.model}, {"run", ToHex(request.run)}});
  std::lock_guard lock(mutex_);
  Entry& adopted = entries_[request.model];
  for (uint32_t rank = 0; rank < publisher->buffer().ranks(); ++rank) adopted.seen.insert(rank);
  if (!SameTrainer(publisher->buffer(), request)) {
    return Status(ErrorCode::kState,
                  Cat("model ", request.model, ": its tensors or ranks are not those of run ", ToHex(request.run)));
  }
  adopted.connected.insert(request.rank);
  return publisher;
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Join(const OpenRequest& request, Entry& entry) {
  std::lock_guard lock(mutex_);
  if (!SameTrainer(entry.publisher->buffer(), request)) {
    return Status(ErrorCode::kState,
                  Cat("model ", request.model, ": its tensors or its number of ranks are not those of run ",
                      ToHex(entry.publisher->buffer().run())));
  }
  entry.connected.insert(request.rank);
  entry.seen.insert(request.rank);
  return entry.publisher;
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Start(const OpenRequest& request, Entry* entry) {
  if (entry != nullptr) {
    const bool room = entry->seen.count(request.rank) == 0 && SameTrainer(entry->publisher->buffer(), request);
    if (room) return Join(request, *entry);
    if (!entry->connected.empty()) {
      return Status(ErrorCode::kState, Cat("model ", request.model, " is being written by another trainer, with ",
                                           entry->connected.size(), " ranks connected; end it first"));
    }
  }
  // The old run goes before the new one comes: there is room for one.
  if (entry != nullptr) {
    const auto old = entry->publisher;
    {
      std::lock_guard lock(mutex_);
      entries_.erase(request.model);
    }
    old->Stop();
    home_->Remove(old->buffer());
    Log(LogLevel::kInfo, "run_ended", {{"model", request.model}, {"run", ToHex(old->buffer().run())}});
  }
  LS_ASSIGN_OR_RETURN(const auto layout, ModelLayout::Create(request.layout->tensors(), options_.block_bytes));
  LS_ASSIGN_OR_RETURN(SegmentHome::Stored stored,
                      home_->Make(request.model, RandomId<RunId>(), *layout, request.ranks));
  const auto publisher = Install(std::move(stored));
  Log(LogLevel::kInfo, "run_started",
      {{"model", request.model},
       {"run", ToHex(publisher->buffer().run())},
       {"tensors", layout->tensors().size()},
       {"model_bytes", layout->data_bytes()}});
  std::lock_guard lock(mutex_);
  Entry& fresh = entries_[request.model];
  fresh.connected.insert(request.rank);
  fresh.seen.insert(request.rank);
  return publisher;
}

void ModelRegistry::Close(const std::shared_ptr<ModelPublisher>& publisher, uint32_t rank) {
  {
    std::lock_guard lock(mutex_);
    const auto at = entries_.find(publisher->buffer().model());
    if (at != entries_.end() && at->second.publisher == publisher) at->second.connected.erase(rank);
  }
  publisher->RankGone(rank);
}

std::vector<ModelSnapshot> ModelRegistry::Snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<ModelSnapshot> models;
  for (const auto& [model, entry] : entries_) {
    models.push_back({entry.publisher, static_cast<uint32_t>(entry.connected.size())});
  }
  return models;
}

void ModelRegistry::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (auto& [model, entry] : entries_) entry.publisher->Stop();
}

}  // namespace lockstep
