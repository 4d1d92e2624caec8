#include "trainer_agent/run/model_publisher.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep::run {
namespace {

// A delta that is larger while it is made is not worth its memory: it is sent when it is whole.
constexpr uint64_t kMaxStreamedBytes = 192 << 20;

// A process that ends closes its connections a moment before: so long after a connection was lost it is not said yet
// that the process lives.
constexpr std::chrono::milliseconds kLookForGone{100};

}  // namespace

ModelPublisher::ModelPublisher(std::shared_ptr<DoubleBuffer> buffer, StoreOptions store, DiffOptions diff,
                               VersionCatalog* catalog, telemetry::Timeline* timeline)
    : buffer_(std::move(buffer)),
      served_(std::make_shared<ServedRun>(buffer_, std::move(store))),
      diff_(diff),
      catalog_(catalog),
      timeline_(timeline),
      shares_(buffer_->layout(), buffer_->ranks()) {}

ModelPublisher::~ModelPublisher() {
  MutexLock lock(mutex_);
  finished_.wait(lock, [this]() LS_REQUIRES(mutex_) { return state_ != State::kFinishing; });
}

void ModelPublisher::Open() {
  MutexLock lock(mutex_);
  newest_ = Recover();
  dropped_ = buffer().control().newest_dropped();
  catalog_->Open(served_);
}

Version ModelPublisher::newest_version() const {
  MutexLock lock(mutex_);
  return newest_;
}

PublisherStatus ModelPublisher::status() const {
  MutexLock lock(mutex_);
  PublisherStatus status = status_;
  status.writing_version = state_ == State::kWriting ? draft_->version : 0;
  return status;
}

void ModelPublisher::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  WakeRanks();
}

Result<ModelPublisher::Turn> ModelPublisher::Begin(uint32_t rank, Version version, const std::string& guard,
                                                   std::weak_ptr<const void> waiting, Wake wake) {
  MutexLock lock(mutex_);
  if (stopped_) return Status(ErrorCode::kCancelled, "the agent is shutting down");
  if (version > kMaxVersion) {
    return Status(ErrorCode::kBadData,
                  Cat("model ", buffer().model(), ": version ", version, " is over the limit of ", kMaxVersion));
  }
  if (!guard.empty()) {
    const Result<Guard> read = ReadGuard(guard);
    LS_RETURN_IF_ERROR(read);
  }
  LS_RETURN_IF_ERROR(misfit_);
  LS_RETURN_IF_ERROR(CheckNotDropped(version));
  if (Lacks(rank) && version > draft_->version) {
    // This rank will never commit the draft, so waiting for it would never end.
    AbortDraft({ErrorCode::kAborted,
                Cat("rank ", rank, " went on to version ", version, " without version ", draft_->version)});
  }
  if (const auto dead = DeadRank()) {
    if (state_ == State::kWriting) GiveUpDraft(*dead);
    return Gone(*dead, Cat("version ", version, " needs it: start it again, in run ", ToHex(buffer().run()),
                           ", or the whole trainer"));
  }
  // If the process of a lost connection turns out to have ended, this rank is told. Else the other may come back.
  if (MayHaveEnded()) return WaitForTurn(std::move(waiting), std::move(wake));
  LS_RETURN_IF_ERROR(CheckGreater(version));
  if (Writes(version)) return JoinDraft(rank, guard);
  LS_RETURN_IF_ERROR(CheckNotAborted(rank, version));
  if (state_ != State::kIdle) return WaitForTurn(std::move(waiting), std::move(wake));
  StartDraft(version);
  draft_->guard = guard;
  return JoinDraft(rank, guard);
}

Status ModelPublisher::CheckGreater(Version version) const {
  const bool writing = state_ == State::kWriting;
  const Version newest = writing ? draft_->version : newest_;
  if (version > newest || (writing && version == newest)) return OkStatus();
  return {ErrorCode::kState,
          Cat("model ", buffer().model(), ": version ", version, " is not greater than ",
              writing ? "the one being written, " : "the newest, ", newest, "; versions of a run only increase")};
}

// Begun again by this rank alone, the version would never be whole: the others have aborted it.
Status ModelPublisher::CheckNotAborted(uint32_t rank, Version version) {
  const bool untold = version == aborted_.version && aborted_.known_by.insert(rank).second;
  return untold ? aborted_.reason : OkStatus();
}

Result<ModelPublisher::Turn> ModelPublisher::JoinDraft(uint32_t rank, const std::string& guard) {
  if (draft_->guard != guard) {
    AbortDraft({ErrorCode::kBadData, Cat("rank ", rank, " gives version ", draft_->version,
                                         " another guard than the others; give one on all ranks")});
    aborted_.known_by.insert(rank);
    return aborted_.reason;
  }
  if (draft_->joined.insert(rank).second) return Turn{.slot = draft_->slot, .processes = {}};
  return Status(ErrorCode::kState, Cat("rank ", rank, " has begun version ", draft_->version, " already"));
}

ModelPublisher::Turn ModelPublisher::WaitForTurn(std::weak_ptr<const void> waiting, Wake wake) {
  waiting_.Add(std::move(waiting), std::move(wake));
  Turn turn;
  for (const auto& [rank, process] : gone_) {
    if (IsMissed(rank)) turn.processes.push_back(process);
  }
  if (MayHaveEnded()) turn.until = looked_for_gone_;
  return turn;
}

bool ModelPublisher::MayHaveEnded() const {
  return !gone_.empty() && std::chrono::steady_clock::now() < looked_for_gone_;
}

void ModelPublisher::WakeRanks() {
  std::vector<Wake> wakes;
  waiting_.Take(wakes);
  CallAll(wakes);
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
  std::erase_if(finished_ones_, [](const auto& draft) { return draft->job->idle(); });
  if (draft_ != nullptr) finished_ones_.push_back(std::move(draft_));
  draft_ = std::make_unique<Draft>(
      Draft{.version = version, .slot = slot, .base = base, .progress = DraftProgress(&shares_)});
  draft_->spans = std::make_shared<PublishSpans>(timeline_, buffer().model(), VersionRef{buffer().run(), version});
  DeltaInput input = InputOf(slot, base);
  if (base != nullptr) {
    input.on_coded = [spans = draft_->spans](uint64_t bytes) { spans->Coded(bytes); };
    if (served_->feed().followed()) BeginStreaming(input);
  }
  draft_->job = std::make_unique<DeltaJob>(diff_.pool, std::move(input));
  state_ = State::kWriting;
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
  DropDraft(reason);
}

void ModelPublisher::Skip(Version version, const std::string& reason) {
  MutexLock lock(mutex_);
  if (Writes(version)) DropDraft({ErrorCode::kAborted, Cat("version ", version, " is left out: ", reason)});
}

void ModelPublisher::DropDraft(const Status& reason) {
  const size_t slot = draft_->slot;
  AbortStreaming(*draft_, reason);
  draft_.reset();  // waits for the blocks at work, which read the slot
  buffer_->Drop(slot);
  state_ = State::kIdle;
  WakeRanks();
}

void ModelPublisher::AbortStreaming(const Draft& draft, const Status& reason) {
  if (draft.streaming == nullptr) return;
  draft.streaming->Abort({ErrorCode::kAborted, reason.ToString()});
  served_->feed().SetNewest(draft.base->held.version);
}

void ModelPublisher::BatchesDone(uint32_t rank, Version version, std::span<const uint32_t> batches, Content content) {
  MutexLock lock(mutex_);
  if (!Writes(version) || draft_->joined.count(rank) == 0) return;
  Result<CompletedBlocks> completed = draft_->progress.Report(rank, batches, content);
  if (!completed.ok()) return AbortDraft(completed.status());
  GiveBlocks(*std::move(completed));
}

void ModelPublisher::GiveBlocks(CompletedBlocks completed) {
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
  if (Writes(version) && draft_->joined.count(rank) > 0) {
    Status ready = LabelDraft(rank, label);
    if (ready.ok()) ready = draft_->progress.CheckWhole(rank);
    if (!ready.ok()) {
      ready = ready.WithContext(Cat("version ", version, " of model ", buffer().model()));
      AbortDraft(ready);
      return ready;
    }
    draft_->done.insert(rank);
    return draft_->done.size() < buffer().ranks() ? OkStatus() : SealDraft();
  }
  // Committed again after a reconnection.
  if ((version == newest_ && version != 0) || IsJudged(rank, version)) return OkStatus();
  if (version == aborted_.version) return aborted_.reason;
  LS_RETURN_IF_ERROR(CheckNotDropped(version));
  return {ErrorCode::kState, Cat("rank ", rank, " has not begun version ", version)};
}

Status ModelPublisher::SealDraft() {
  if (const Status reason = served_->CheckBase(draft_->base.get()); !reason.ok()) {
    AbortDraft(reason);
    return reason;
  }
  draft_->committed_unix_ns = telemetry::UnixNanos();
  if (draft_->guard.empty()) NoteCommitted();
  state_ = State::kFinishing;
  draft_->spans->Committed(buffer().layout()->data_bytes());
  draft_->job->Finish([this](DeltaOutput output) { FinishVersion(std::move(output)); });
  WakeRanks();
  return OkStatus();
}

void ModelPublisher::NoteCommitted() {
  buffer_->Commit(draft_->slot, draft_->committed_unix_ns, draft_->label);
  newest_ = draft_->version;
  ++status_.versions_committed;
  status_.last_error.clear();
}

bool ModelPublisher::IsSettled(uint32_t rank, Version version) const {
  MutexLock lock(mutex_);
  return !AwaitsVerdict(rank, version);
}

// A draft that has a guard, which the rank has committed: others write it, or it is compared.
bool ModelPublisher::AwaitsVerdict(uint32_t rank, Version version) const {
  return IsJudged(rank, version) || (Writes(version) && draft_->done.contains(rank) && !draft_->guard.empty());
}

Result<ModelPublisher::Turn> ModelPublisher::Outcome(uint32_t rank, Version version, std::weak_ptr<const void> waiting,
                                                     Wake wake) {
  MutexLock lock(mutex_);
  if (version <= newest_) return Turn{.slot = 0, .processes = {}};
  if (!AwaitsVerdict(rank, version)) {
    if (version == aborted_.version) return aborted_.reason;
    if (version < aborted_.version) return Status(ErrorCode::kAborted, Cat("version ", version, " was aborted, too"));
    return Status(ErrorCode::kState, Cat("rank ", rank, " has not committed version ", version));
  }
  if (stopped_) return Status(ErrorCode::kCancelled, "the agent is shutting down");
  // A rank that will never commit it: nobody else asks for that while all others wait here.
  if (Writes(version)) {
    if (const auto dead = DeadRank()) {
      GiveUpDraft(*dead);
      return aborted_.reason;
    }
    if (!misfit_.ok()) {
      AbortDraft(misfit_);
      return aborted_.reason;
    }
    return WaitForTurn(std::move(waiting), std::move(wake));
  }
  waiting_.Add(std::move(waiting), std::move(wake));
  return Turn();
}

bool ModelPublisher::IsJudged(uint32_t rank, Version version) const {
  return state_ == State::kFinishing && draft_->version == version && newest_ < version && draft_->done.contains(rank);
}

Status ModelPublisher::Abort(uint32_t rank, Version version, const std::string& reason) {
  MutexLock lock(mutex_);
  if (Writes(version)) {
    AbortDraft(
        {ErrorCode::kAborted, Cat("rank ", rank, " aborted version ", version, reason.empty() ? "" : ": ", reason)});
    return OkStatus();
  }
  if (version == aborted_.version) return OkStatus();
  return {ErrorCode::kState, Cat("version ", version, " is not being written")};
}

Status ModelPublisher::RankHere(uint32_t rank, wire::Share share) {
  MutexLock lock(mutex_);
  const wire::Share* const known = shares_.Find(rank);
  if (known != nullptr && !(*known == share)) {
    if (state_ == State::kWriting) {
      AbortDraft({ErrorCode::kAborted,
                  Cat("rank ", rank, " came back, and writes other bytes than before; publish a newer version")});
    }
    // The other ranks that are away may come back so, too.
    for (const auto& [away, process] : gone_) shares_.Forget(away);
  }
  misfit_ = shares_.Set(rank, std::move(share)).WithContext(Cat("rank ", rank, " is not let in"));
  if (!misfit_.ok()) {
    WakeRanks();
    return misfit_;
  }
  gone_.erase(rank);
  if (state_ == State::kWriting) GiveBlocks(draft_->progress.Count());
  WakeRanks();
  return OkStatus();
}

void ModelPublisher::RankGone(uint32_t rank, std::shared_ptr<const os::PeerProcess> process) {
  MutexLock lock(mutex_);
  // A rank that has not begun the draft may come back and do so, if its process lives.
  if (Lacks(rank) && draft_->joined.count(rank) == 0) {
    lock.unlock();
    (void)process->Ended(kLookForGone);
    lock.lock();
  }
  const bool ended = process->Ended();
  gone_[rank] = std::move(process);
  if (!ended) looked_for_gone_ = std::chrono::steady_clock::now() + kLookForGone;
  if (Lacks(rank) && (ended || draft_->joined.count(rank) > 0)) return GiveUpDraft(rank);
  WakeRanks();
}

bool ModelPublisher::Writes(Version version) const {
  return state_ == State::kWriting && draft_->version == version;
}

bool ModelPublisher::IsMissed(uint32_t rank) const {
  return state_ != State::kWriting || Lacks(rank);
}

bool ModelPublisher::Lacks(uint32_t rank) const {
  return state_ == State::kWriting && draft_->done.count(rank) == 0;
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
    if (IsMissed(rank) && process->Ended()) return rank;
  }
  return std::nullopt;
}

}  // namespace lockstep::run
