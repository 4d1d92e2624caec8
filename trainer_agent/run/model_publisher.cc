#include "trainer_agent/run/model_publisher.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep::run {
namespace {

// A delta that is larger while it is made is not worth its memory: it is sent when it is whole.
constexpr uint64_t kMaxStreamedBytes = 192 << 20;

// How soon a rank that dies while it waits makes room for another. A process that ends closes its connections a moment
// before: so long after a connection was lost it is not said yet that the process lives.
constexpr std::chrono::milliseconds kLookForGone{100};

}  // namespace

ModelPublisher::ModelPublisher(std::shared_ptr<DoubleBuffer> buffer, StoreOptions store, DiffOptions diff,
                               VersionCatalog* catalog, telemetry::Timeline* timeline)
    : buffer_(std::move(buffer)),
      served_(std::make_shared<ServedRun>(buffer_, std::move(store))),
      diff_(diff),
      catalog_(catalog),
      timeline_(timeline) {}

ModelPublisher::~ModelPublisher() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() LS_REQUIRES(mutex_) { return !finishing_ || finished_; });
}

void ModelPublisher::Open() {
  MutexLock lock(mutex_);
  newest_ = Recover();
  dropped_ = buffer().newest_dropped();
  catalog_->Open(served_);
}

Version ModelPublisher::newest_version() const {
  MutexLock lock(mutex_);
  return newest_;
}

PublisherStatus ModelPublisher::status() const {
  MutexLock lock(mutex_);
  PublisherStatus status = status_;
  status.writing_version = draft_ ? draft_->version : 0;
  return status;
}

void ModelPublisher::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Result<size_t> ModelPublisher::Begin(uint32_t rank, Version version, const std::function<bool()>& gone) {
  MutexLock lock(mutex_);
  while (true) {
    if (stopped_) return Status(ErrorCode::kCancelled, "the agent is shutting down");
    if (version > kMaxVersion) {
      return Status(ErrorCode::kBadData,
                    Cat("model ", buffer().model(), ": version ", version, " is over the limit of ", kMaxVersion));
    }
    LS_RETURN_IF_ERROR(CheckNotDropped(version));
    if (const auto dead = DeadRank()) {
      if (!draft_) {
        return Gone(*dead, Cat("version ", version, " needs it: start it again, in run ", ToHex(buffer().run()),
                               ", or the whole trainer"));
      }
      GiveUpDraft(*dead);
    }
    if (!gone_.empty() && std::chrono::steady_clock::now() < looked_for_gone_) {
      // If the process turns out to have ended, this rank is told. Else it goes on, since the other may come back.
      changed_.wait_until(lock, looked_for_gone_,
                          [&]() LS_REQUIRES(mutex_) { return stopped_ || gone_.empty() || DeadRank(); });
      continue;
    }
    const Version taken = draft_ ? draft_->version - 1 : newest_;
    if (version <= taken) {
      return Status(ErrorCode::kState, Cat("model ", buffer().model(), ": version ", version, " is not greater than ",
                                           draft_ ? "the one being written, " : "the newest, ",
                                           draft_ ? draft_->version : newest_, "; versions of a run only increase"));
    }
    if (draft_ && draft_->version == version) {
      if (!draft_->joined.insert(rank).second) {
        return Status(ErrorCode::kState, Cat("rank ", rank, " has begun version ", version, " already"));
      }
      return draft_->slot;
    }
    // Begun again by this rank alone it would never be whole: the others have aborted it.
    if (version == aborted_.version && aborted_.known_by.insert(rank).second) return aborted_.reason;
    if (draft_ && draft_->done.count(rank) == 0) {
      // This rank will never commit the draft, so waiting for it would never end.
      AbortDraft({ErrorCode::kAborted,
                  Cat("rank ", rank, " went on to version ", version, " without version ", draft_->version)});
      continue;
    }
    if (!draft_ && (!finishing_ || finished_)) break;
    changed_.wait_for(lock, kLookForGone);
    if (gone && gone()) return Status(ErrorCode::kCancelled, Cat("rank ", rank, " has gone while it waited"));
  }
  finishing_.reset();
  StartDraft(version);
  draft_->joined.insert(rank);
  return draft_->slot;
}

Status ModelPublisher::CheckNotDropped(Version version) const {
  if (version <= newest_ || version > dropped_) return OkStatus();
  return {ErrorCode::kAborted,
          Cat("model ", buffer().model(), ": version ", dropped_, " was committed once, and its bytes ",
              "did not outlive the agent; no other bytes take its number: publish a newer version")};
}

void ModelPublisher::StartDraft(Version version) {
  const auto newest = served_->Newest();
  const auto base = newest ? newest->manifest : nullptr;
  const size_t slot = buffer_->BeginWrite(version);
  draft_ = std::make_unique<Draft>(
      Draft{.version = version, .slot = slot, .base = base, .coverage = Coverage(*buffer().layout())});
  draft_->spans = std::make_shared<PublishSpans>(timeline_, buffer().model(), VersionRef{buffer().run(), version});
  DeltaInput input = InputOf(slot, base);
  if (base != nullptr) {
    input.on_coded = [spans = draft_->spans](uint64_t bytes) { spans->Coded(bytes); };
    if (served_->feed().followed()) BeginStreaming(input);
  }
  draft_->job = std::make_unique<DeltaJob>(diff_.pool, std::move(input));
}

void ModelPublisher::BeginStreaming(DeltaInput& input) {
  draft_->streaming = served_->feed().Begin(draft_->base->held.version, draft_->version);
  input.max_early_bytes = kMaxStreamedBytes;
  // The job outlives the version's making; the blocks it passed on must not.
  input.on_block = [weak = std::weak_ptr(draft_->streaming)](std::shared_ptr<const payload::DeltaBlock> block) {
    const auto streaming = weak.lock();
    if (streaming == nullptr) return;
    if (block == nullptr) {
      streaming->Abort({ErrorCode::kAborted, "so much changed that it is sent when it is whole"});
    } else {
      streaming->Add(std::move(block));
    }
  };
}

void ModelPublisher::NoteAborted(const Draft& draft, const Status& reason) {
  telemetry::LogWarn("version_aborted", reason, {{"model", buffer().model()}, {"version", draft.version}});
  aborted_ = {.version = draft.version, .reason = reason, .known_by = draft.joined};
  ++status_.versions_aborted;
  status_.last_error = reason.ToString();
  status_.last_error_unix_ns = telemetry::UnixNanos();
}

void ModelPublisher::AbortDraft(const Status& reason) {
  NoteAborted(*draft_, reason);
  const size_t slot = draft_->slot;
  if (draft_->streaming != nullptr) {
    draft_->streaming->Abort({ErrorCode::kAborted, reason.ToString()});
    served_->feed().SetNewest(draft_->base->held.version);
  }
  draft_.reset();  // waits for the blocks at work, which read the slot
  buffer_->Drop(slot);
  changed_.notify_all();
}

void ModelPublisher::RangesDone(uint32_t rank, Version version, std::span<const StridedRange> ranges, Content content) {
  MutexLock lock(mutex_);
  if (!draft_ || draft_->version != version || draft_->joined.count(rank) == 0) return;
  CompletedBlocks completed;
  for (const StridedRange& range : ranges) {
    const Status added = draft_->coverage.Add(range, content, completed);
    if (!added.ok()) return AbortDraft(added.WithContext(Cat("rank ", rank)));
  }
  if (!completed.changed.empty()) draft_->spans->BlocksGiven();
  draft_->job->BlocksReady(std::move(completed.changed));
  draft_->job->BlocksUnchanged(std::move(completed.unchanged));
}

Status ModelPublisher::LabelDraft(uint32_t rank, const std::string& label) {
  if (label.empty()) return OkStatus();
  LS_RETURN_IF_ERROR(model::CheckLabel(label));
  if (draft_->label.empty()) {
    draft_->label = label;
    draft_->labelled_by = rank;
  }
  if (draft_->label == label) return OkStatus();
  return {ErrorCode::kBadData, Cat("rank ", rank, " labels version ", draft_->version, " \"", label, "\", and rank ",
                                   draft_->labelled_by, " \"", draft_->label, "\"; give one label on all ranks")};
}

Status ModelPublisher::Commit(uint32_t rank, Version version, const std::string& label) {
  MutexLock lock(mutex_);
  if (draft_ && draft_->version == version && draft_->joined.count(rank) > 0) {
    if (const Status labelled = LabelDraft(rank, label); !labelled.ok()) {
      AbortDraft(labelled);
      return labelled;
    }
    draft_->done.insert(rank);
    return draft_->done.size() < buffer().ranks() ? OkStatus() : SealDraft();
  }
  if (version == aborted_.version) return aborted_.reason;
  LS_RETURN_IF_ERROR(CheckNotDropped(version));
  if (version == newest_ && version != 0) return OkStatus();  // committed again after a reconnection
  return {ErrorCode::kState, Cat("rank ", rank, " has not begun version ", version)};
}

Status ModelPublisher::CheckDraft() const {
  if (const auto first = draft_->coverage.FirstMissing()) {
    const model::ModelLayout& layout = *buffer().layout();
    return {ErrorCode::kBadData,
            Cat("version ", draft_->version, " of model ", buffer().model(), ": ", draft_->coverage.missing_bytes(),
                " bytes were never written, the first of them ", "at ", *first, ", in tensor \"",
                layout.tensors()[layout.TensorAt(*first)].name, "\"")};
  }
  return served_->CheckBase(draft_->base.get());
}

Status ModelPublisher::SealDraft() {
  if (const Status reason = CheckDraft(); !reason.ok()) {
    AbortDraft(reason);
    return reason;
  }
  draft_->committed_unix_ns = telemetry::UnixNanos();
  buffer_->Commit(draft_->slot, draft_->committed_unix_ns, draft_->label);
  newest_ = draft_->version;
  ++status_.versions_committed;
  status_.last_error.clear();
  finishing_ = std::move(draft_);
  finishing_->spans->Committed(buffer().layout()->data_bytes());
  finished_ = false;
  finishing_->job->Finish([this](DeltaOutput output) { FinishVersion(std::move(output)); });
  changed_.notify_all();
  return OkStatus();
}

Status ModelPublisher::Abort(uint32_t rank, Version version, const std::string& reason) {
  MutexLock lock(mutex_);
  if (draft_ && draft_->version == version) {
    AbortDraft(
        {ErrorCode::kAborted, Cat("rank ", rank, " aborted version ", version, reason.empty() ? "" : ": ", reason)});
    return OkStatus();
  }
  if (version == aborted_.version) return OkStatus();
  return {ErrorCode::kState, Cat("version ", version, " is not being written")};
}

void ModelPublisher::RankHere(uint32_t rank) {
  MutexLock lock(mutex_);
  gone_.erase(rank);
  changed_.notify_all();
}

void ModelPublisher::RankGone(uint32_t rank, std::shared_ptr<const os::PeerProcess> process) {
  MutexLock lock(mutex_);
  const auto lacks = [&]() LS_REQUIRES(mutex_) { return draft_ && draft_->done.count(rank) == 0; };
  // One that has not begun the draft may come back and do so, if its process lives; one that ends closes its
  // connections a moment before.
  if (lacks() && draft_->joined.count(rank) == 0) {
    changed_.wait_for(lock, kLookForGone, [&]() LS_REQUIRES(mutex_) { return process->Ended(); });
  }
  const bool ended = process->Ended();
  gone_[rank] = std::move(process);
  if (!ended) looked_for_gone_ = std::chrono::steady_clock::now() + kLookForGone;
  if (lacks() && (ended || draft_->joined.count(rank) > 0)) GiveUpDraft(rank);
}

Status ModelPublisher::Gone(uint32_t rank, std::string_view outcome) const {
  const os::PeerProcess& process = *gone_.at(rank);
  return {ErrorCode::kAborted,
          Cat("rank ", rank, process.pid() > 0 ? Cat(" (pid ", process.pid(), ")") : "", " is gone: its ",
              process.Ended() ? "process" : "connection", " has ended; ", outcome)};
}

void ModelPublisher::GiveUpDraft(uint32_t rank) {
  AbortDraft(Gone(rank, Cat("version ", draft_->version, " was aborted, and what is served stays")));
  aborted_.known_by.insert(rank);
}

std::optional<uint32_t> ModelPublisher::DeadRank() const {
  for (const auto& [rank, process] : gone_) {
    const bool done = draft_ && draft_->done.count(rank) > 0;
    if (!done && process->Ended()) return rank;
  }
  return std::nullopt;
}

}  // namespace lockstep::run
