#include "trainer_agent/run/model_registry.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/derive/derivation.h"
#include "common/model/parts.h"
#include "common/telemetry/log.h"

namespace lockstep::run {
namespace {

// How long a rank that has gone may take to be let out: its last messages are read, and a draft of its is aborted.
constexpr std::chrono::seconds kMaxLeaving{5};

bool SameTrainer(const DoubleBuffer& buffer, const OpenRequest& request) {
  return buffer.layout()->tensors() == request.layout->tensors() &&
         buffer.layout()->attachments() == request.layout->attachments() && buffer.ranks() == request.ranks;
}

wire::Share ShareOf(const derive::Derivation& derivation) {
  wire::Share share;
  for (size_t part = 0; part < derivation.part_count(); ++part) {
    std::vector<StridedRange> ranges;
    for (const ByteRange& range : derivation.TargetsOf(part)) ranges.push_back(StridedRange::Plain(range));
    share.Add(ranges);
  }
  return share;
}

}  // namespace

ModelRegistry::ModelRegistry(const SegmentHome* home, RegistryOptions options, DiffOptions diff,
                             VersionCatalog* catalog)
    : home_(home), options_(options), diff_(diff), catalog_(catalog) {}

std::shared_ptr<ModelPublisher> ModelRegistry::Install(SegmentHome::StoredRun stored, bool joinable) {
  auto publisher = std::make_shared<ModelPublisher>(
      std::move(stored.buffer), StoreOptions{.directory = stored.directory, .retain_bytes = options_.retain_bytes},
      diff_, catalog_, options_.timeline);
  publisher->Open();
  MutexLock lock(mutex_);
  entries_[publisher->buffer().model()] = Entry{.publisher = publisher, .joinable = joinable};
  return publisher;
}

Status ModelRegistry::Recover() {
  MutexLock open_lock(open_mutex_);
  LS_ASSIGN_OR_RETURN(std::vector<SegmentHome::StoredRun> all, home_->FindAll());
  std::vector<std::shared_ptr<ModelPublisher>> publishers;
  for (SegmentHome::StoredRun& stored : all) publishers.push_back(Install(std::move(stored), false));
  for (const auto& publisher : publishers) {
    const Status derived = OpenDerived(*publisher);
    if (!derived.ok()) telemetry::LogError("derive_failed", derived, {{"source", publisher->buffer().model()}});
  }
  return OkStatus();
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Open(OpenRequest request) {
  LS_RETURN_IF_ERROR(model::CheckModelName(request.model));
  if (request.ranks == 0 || request.rank >= request.ranks) {
    return Status(ErrorCode::kBadData, Cat("rank ", request.rank, " of ", request.ranks));
  }
  // Before the run is ended that an only rank would follow.
  if (request.ranks == 1) LS_RETURN_IF_ERROR(ProveShares(*request.layout, {&request.share}));
  MutexLock open_lock(open_mutex_);
  AwaitLeaving(request.model);
  LS_ASSIGN_OR_RETURN(const OpenAction opening, Decide(request));
  switch (opening) {
    case OpenAction::kJoin:
      return Connect(request);
    case OpenAction::kResume:
      return Resume(request);
    case OpenAction::kStart:
      return Start(request);
  }
  return Status(ErrorCode::kInternal, "an opening of no kind");
}

void ModelRegistry::AwaitLeaving(const std::string& model) {
  MutexLock lock(mutex_);
  left_.wait_for(lock, kMaxLeaving, [&]() LS_REQUIRES(mutex_) {
    const auto at = entries_.find(model);
    if (stopped_ || at == entries_.end()) return true;
    const auto& connected = at->second.connected;
    return std::none_of(connected.begin(), connected.end(), [](const auto& rank) { return rank.second(); });
  });
}

Result<ModelRegistry::OpenAction> ModelRegistry::Decide(const OpenRequest& request) const {
  MutexLock lock(mutex_);
  if (stopped_) return Status(ErrorCode::kUnavailable, "the agent is shutting down");
  const auto at = entries_.find(request.model);
  const Entry* entry = at == entries_.end() ? nullptr : &at->second;
  const bool named = !request.run.IsZero();
  const bool its_run = entry != nullptr && named && entry->publisher->buffer().run() == request.run;
  if (entry != nullptr && entry->connected.count(request.rank) > 0) {
    return Status(ErrorCode::kState, Cat("rank ", request.rank, " of model ", request.model,
                                         " is connected already; end that trainer, or publish another model"));
  }
  if (its_run && !SameTrainer(entry->publisher->buffer(), request)) {
    return Status(ErrorCode::kState,
                  Cat("model ", request.model, ": its tensors, attachments or number of ranks are not those of run ",
                      ToHex(request.run)));
  }
  if (entry != nullptr && entry->source != nullptr) {
    return Status(ErrorCode::kState, Cat("model ", request.model, " is derived from ", entry->source->model(),
                                         " by this agent; publish under another name"));
  }
  const bool joins = !named && entry != nullptr && entry->joinable && !entry->connected.empty() &&
                     entry->seen.count(request.rank) == 0 && SameTrainer(entry->publisher->buffer(), request);
  if (its_run || joins) return OpenAction::kJoin;
  if (entry != nullptr && !named && entry->joinable && !entry->connected.empty() &&
      entry->publisher->buffer().layout()->tensors() == request.layout->tensors() &&
      entry->publisher->buffer().layout()->attachments() != request.layout->attachments()) {
    return Status(ErrorCode::kBadData,
                  Cat("model ", request.model, ": rank ", request.rank, " gives other attachments, or ",
                      "asks for other derived models, than the ranks that opened it"));
  }
  if (entry != nullptr && !entry->connected.empty()) {
    return Status(ErrorCode::kState, Cat("model ", request.model, " is being written by another trainer, in run ",
                                         ToHex(entry->publisher->buffer().run()), " with ", entry->connected.size(),
                                         " ranks connected; end it first, or name its run to take a rank's place"));
  }
  if (!named) return OpenAction::kStart;
  if (!request.fds.empty()) return OpenAction::kResume;
  // The trainer draws the run of a part, so that all parts have one, also those of an agent that lost it.
  if (request.layout->attachments().contains(std::string(model::kPartAttachment))) return OpenAction::kStart;
  const std::string known = entry == nullptr ? "it holds none of this model"
                                             : Cat("of this model it holds ", ToHex(entry->publisher->buffer().run()));
  return Status(ErrorCode::kNotFound, Cat("model ", request.model, ": the agent does not know run ", ToHex(request.run),
                                          "; ", known, "; open without a run to start a new one"));
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Connect(OpenRequest& request) {
  std::shared_ptr<ModelPublisher> publisher;
  {
    MutexLock lock(mutex_);
    publisher = entries_[request.model].publisher;
  }
  LS_RETURN_IF_ERROR(publisher->RankHere(request.rank, std::move(request.share)));
  MutexLock lock(mutex_);
  Entry& entry = entries_[request.model];
  entry.connected.emplace(request.rank, request.gone);
  entry.seen.insert(request.rank);
  return publisher;
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Resume(OpenRequest& request) {
  LS_ASSIGN_OR_RETURN(SegmentHome::StoredRun stored, home_->Adopt(std::move(request.fds)));
  const DoubleBuffer& buffer = *stored.buffer;
  if (buffer.model() != request.model || buffer.run() != request.run || !SameTrainer(buffer, request)) {
    return Status(ErrorCode::kBadData, Cat("the buffers returned are not those of model ", request.model, ", run ",
                                           ToHex(request.run), ", with these tensors, attachments and ranks"));
  }
  EndRun(request.model);
  Install(std::move(stored), false);
  telemetry::Log(telemetry::LogLevel::kInfo, "run_resumed", {{"model", request.model}, {"run", ToHex(request.run)}});
  std::shared_ptr<ModelPublisher> publisher;
  {
    MutexLock lock(mutex_);
    publisher = entries_[request.model].publisher;
  }
  LS_RETURN_IF_ERROR(OpenDerived(*publisher));
  return Connect(request);
}

Result<std::shared_ptr<ModelPublisher>> ModelRegistry::Start(OpenRequest& request) {
  LS_ASSIGN_OR_RETURN(const auto layout, model::ModelLayout::Create(request.layout->tensors(), options_.block_bytes,
                                                                    request.layout->attachments()));
  LS_ASSIGN_OR_RETURN(const auto part, model::PartOf(*layout));
  if (part && layout->attachments().contains(std::string(derive::kRequests))) {
    return Status(ErrorCode::kBadData, Cat("model ", request.model, " is a part, and nothing derives from parts"));
  }
  Derivations derivations;
  {
    // The old run ends before the new one is made, so that there need only be room for one; but not for one that has no
    // room, or whose derived models cannot be.
    std::vector<std::shared_ptr<ModelPublisher>> old;
    std::vector<const DoubleBuffer*> replaced;
    {
      MutexLock lock(mutex_);
      for (const auto& [name, entry] : entries_) {
        if (name != request.model && (entry.source == nullptr || entry.source->model() != request.model)) continue;
        old.push_back(entry.publisher);
        replaced.push_back(&entry.publisher->buffer());
      }
    }
    std::vector<const model::ModelLayout*> layouts{layout.get()};
    LS_RETURN_IF_ERROR(home_->CheckRoom(request.model, layouts, replaced));
    LS_ASSIGN_OR_RETURN(derivations, derive::Derivation::All(*layout));
    LS_RETURN_IF_ERROR(CheckNames(request.model, {}, derivations));
    for (const auto& derivation : derivations) layouts.push_back(derivation->layout().get());
    LS_RETURN_IF_ERROR(home_->CheckRoom(request.model, layouts, replaced));
  }
  EndRun(request.model);
  LS_ASSIGN_OR_RETURN(
      SegmentHome::StoredRun stored,
      home_->Make(request.model, request.run.IsZero() ? RandomId<RunId>() : request.run, *layout, request.ranks));
  const auto publisher = Install(std::move(stored), true);
  telemetry::Log(telemetry::LogLevel::kInfo, "run_started",
                 {{"model", request.model},
                  {"run", ToHex(publisher->buffer().run())},
                  {"tensors", layout->tensors().size()},
                  {"model_bytes", layout->data_bytes()}});
  if (const Status derived = OpenDerived(*publisher, derivations); !derived.ok()) {
    EndRun(request.model);
    return derived;
  }
  return Connect(request);
}

Result<ModelRegistry::DroppedRun> ModelRegistry::Drop(const std::string& model) {
  MutexLock open_lock(open_mutex_);
  AwaitLeaving(model);
  DroppedRun dropped;
  {
    MutexLock lock(mutex_);
    if (stopped_) return Status(ErrorCode::kUnavailable, "the agent is shutting down");
    const auto at = entries_.find(model);
    if (at == entries_.end()) return Status(ErrorCode::kNotFound, Cat("model ", CleanText(model), " is not open here"));
    if (at->second.source != nullptr) {
      return Status(ErrorCode::kState,
                    Cat("model ", model, " is derived from ", at->second.source->model(), "; drop that, and both go"));
    }
    if (const size_t ranks = at->second.connected.size(); ranks != 0) {
      return Status(ErrorCode::kState,
                    Cat("model ", model, ": ", ranks, " ranks of its trainer are connected; end the trainer first"));
    }
    const ModelPublisher& publisher = *at->second.publisher;
    dropped.run = publisher.buffer().run();
    dropped.bytes = 2 * publisher.buffer().image_bytes();
    for (const auto& delta : publisher.served()->deltas().Retained()) dropped.bytes += delta->total_bytes();
  }
  EndRun(model);
  return dropped;
}

void ModelRegistry::EndRun(const std::string& model) {
  std::shared_ptr<ModelPublisher> old;
  std::vector<std::string> derived;
  {
    MutexLock lock(mutex_);
    const auto at = entries_.find(model);
    if (at == entries_.end()) return;
    old = std::move(at->second.publisher);
    entries_.erase(at);
    for (const auto& [name, entry] : entries_) {
      if (entry.source == old->served()) derived.push_back(name);
    }
  }
  for (const std::string& name : derived) EndRun(name);
  old->Stop();
  catalog_->Withdraw(model);
  home_->Remove(old->buffer());
  telemetry::Log(telemetry::LogLevel::kInfo, "run_ended", {{"model", model}, {"run", ToHex(old->buffer().run())}});
}

void ModelRegistry::Close(const std::shared_ptr<ModelPublisher>& publisher, uint32_t rank,
                          std::shared_ptr<const os::PeerProcess> process) {
  // Its draft first: once the rank's place is free, another connection may begin one.
  publisher->RankGone(rank, std::move(process));
  MutexLock lock(mutex_);
  const auto at = entries_.find(publisher->buffer().model());
  if (at != entries_.end() && at->second.publisher == publisher) at->second.connected.erase(rank);
  left_.notify_all();
}

Status ModelRegistry::CheckNames(const std::string& source, const RunId& run, const Derivations& derivations) const {
  MutexLock lock(mutex_);
  for (const auto& derivation : derivations) {
    const std::string& name = derivation->model();
    if (name == source) return {ErrorCode::kBadData, Cat("derived model ", name, " has the name of its source")};
    const auto at = entries_.find(name);
    if (at == entries_.end() || (at->second.source != nullptr && at->second.source->model() == source)) continue;
    if (!run.IsZero() && at->second.publisher->buffer().run() == derivation->RunOf(run)) continue;  // recovered
    return {ErrorCode::kState,
            Cat("derived model ", name, ": a model of that name is open",
                at->second.source == nullptr ? "" : Cat(", derived from ", at->second.source->model()),
                "; give another name, or drop that one")};
  }
  return OkStatus();
}

Status ModelRegistry::OpenDerived(const ModelPublisher& source) {
  LS_ASSIGN_OR_RETURN(const Derivations derivations, derive::Derivation::All(*source.buffer().layout()));
  LS_RETURN_IF_ERROR(CheckNames(source.buffer().model(), source.buffer().run(), derivations));
  return OpenDerived(source, derivations);
}

Status ModelRegistry::OpenDerived(const ModelPublisher& source, const Derivations& derivations) {
  for (const auto& derivation : derivations) {
    const Status opened = OpenDerived(source, derivation);
    if (!opened.ok()) return opened.WithContext(Cat("derived model ", derivation->model()));
  }
  return OkStatus();
}

Status ModelRegistry::OpenDerived(const ModelPublisher& source,
                                  const std::shared_ptr<const derive::Derivation>& derivation) {
  const std::string& name = derivation->model();
  const RunId run = derivation->RunOf(source.buffer().run());
  std::shared_ptr<ModelPublisher> publisher;
  {
    MutexLock lock(mutex_);
    const auto at = entries_.find(name);
    if (at != entries_.end() && at->second.publisher->buffer().run() == run) publisher = at->second.publisher;
  }
  if (publisher == nullptr) {
    LS_RETURN_IF_ERROR(home_->CheckRoom(name, {derivation->layout().get()}, {}));
    EndRun(name);
    LS_ASSIGN_OR_RETURN(SegmentHome::StoredRun stored, home_->Make(name, run, *derivation->layout(), 1));
    publisher = Install(std::move(stored), false);
  }
  LS_RETURN_IF_ERROR(publisher->RankHere(0, ShareOf(*derivation)));
  publisher->served()->SetSource(source.served());
  telemetry::Log(telemetry::LogLevel::kInfo, "derived_model_opened",
                 {{"model", name},
                  {"source", source.buffer().model()},
                  {"run", ToHex(run)},
                  {"format", derivation->format()},
                  {"weights_quantised", derivation->quantised()},
                  {"model_bytes", derivation->layout()->data_bytes()}});
  {
    MutexLock lock(mutex_);
    Entry& entry = entries_[name];
    entry.source = source.served();
    entry.derivation = derivation;
  }
  catalog_->WakeAll();  // the Deriver sees it only now
  return OkStatus();
}

std::vector<ModelSnapshot> ModelRegistry::Snapshot() const {
  MutexLock lock(mutex_);
  std::vector<ModelSnapshot> models;
  for (const auto& [model, entry] : entries_) {
    models.push_back({entry.publisher, static_cast<uint32_t>(entry.connected.size()), entry.source, entry.derivation});
  }
  return models;
}

void ModelRegistry::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  left_.notify_all();
  for (auto& [model, entry] : entries_) entry.publisher->Stop();
}

}  // namespace lockstep::run
