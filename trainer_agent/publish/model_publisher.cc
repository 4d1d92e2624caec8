#include "trainer_agent/publish/model_publisher.h"

#include <algorithm>
#include <numeric>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep {
namespace {

// A delta that is larger while it is made is not worth its memory: it is sent when it is whole.
constexpr uint64_t kMaxLiveBytes = 192 << 20;

class BufferReader : public BlockReader {
 public:
  explicit BufferReader(std::shared_ptr<DoubleBuffer> buffer) : buffer_(std::move(buffer)) {}
  Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) override {
    return buffer_->UseBytes(version, range, use);
  }
  Result<VersionFile> OpenFile(Version version) override {
    LS_ASSIGN_OR_RETURN(UniqueFd file, buffer_->OpenHalf(version));
    return VersionFile{std::move(file), buffer_->data_offset()};
  }

 private:
  const std::shared_ptr<DoubleBuffer> buffer_;
};

std::vector<BlockIndex> AllBlocks(const ModelLayout& layout) {
  std::vector<BlockIndex> blocks(layout.block_count());
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

std::shared_ptr<const Manifest> MakeManifest(const DoubleBuffer& buffer, Version version,
                                             std::vector<uint64_t> hashes) {
  auto manifest = std::make_shared<Manifest>();
  manifest->held = {buffer.run(), version};
  manifest->digest = ComputeManifestDigest(buffer.layout()->digest(), hashes);
  manifest->block_hashes = std::move(hashes);
  return manifest;
}

uint64_t BytesRead(const ModelLayout& layout, const DeltaOutput& output) {
  const uint64_t blocks = layout.block_count() - output.blocks_unread;
  return std::min(blocks * layout.block_bytes(), layout.data_bytes());  // the last block may be a shorter one
}

}  // namespace

ModelPublisher::ModelPublisher(std::shared_ptr<DoubleBuffer> buffer, StoreOptions store, DiffThreads diff,
                               VersionCatalog* catalog, Timeline* timeline)
    : buffer_(std::move(buffer)),
      served_(std::make_shared<ServedRun>(buffer_->model(), buffer_->run(), buffer_->layout(),
                                          std::make_shared<BufferReader>(buffer_), std::move(store))),
      diff_(diff),
      catalog_(catalog),
      timeline_(timeline) {}

ModelPublisher::~ModelPublisher() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !finishing_ || finished_; });
}

DeltaInput ModelPublisher::InputOf(size_t half, const std::shared_ptr<const Manifest>& base, size_t base_half) const {
  return {.layout = buffer_->layout(),
          .target = buffer_->data(half),
          .base = base == nullptr ? nullptr : buffer_->data(base_half),
          .base_manifest = base,
          .max_coded_bytes = served_->deltas().MaxDeltaBytes(),
          .early_tasks = diff_.while_written};
}

void ModelPublisher::AddDelta(const Manifest& base, const Manifest& target, int64_t committed_unix_ns, CodecLevel level,
                              const DeltaOutput& output) {
  Status added{ErrorCode::kResourceExhausted, "so much changed that a delta is not worth its memory"};
  if (!output.too_dense) {
    std::vector<const DeltaBlock*> blocks;
    for (const auto& block : output.blocks) blocks.push_back(block.get());
    added = served_->deltas()
                .Add({.run = buffer_->run(),
                      .base = base.held.version,
                      .target = target.held.version,
                      .base_digest = base.digest,
                      .target_digest = target.digest,
                      .committed_unix_ns = committed_unix_ns},
                     level, blocks)
                .status();
  }
  if (added.ok()) return;
  LogWarn("delta_not_retained", added, {{"model", buffer_->model()}, {"version", target.held.version}});
}

std::shared_ptr<const Manifest> ModelPublisher::RecoverHalf(size_t half, const std::shared_ptr<const Manifest>& base,
                                                            size_t base_half, DeltaOutput& output) {
  DeltaJob job(diff_.pool, InputOf(half, base, base_half));
  job.BlocksReady(AllBlocks(*buffer_->layout()));
  output = job.FinishAndWait();
  const Version version = buffer_->version(half);
  const auto manifest = MakeManifest(*buffer_, version, output.block_hashes);
  const auto recorded = buffer_->RecordedManifest(half);
  if (recorded && recorded->digest != manifest->digest) {
    LogError("recovered_version_corrupt",
             {ErrorCode::kCorrupt, "the half's bytes differ from its recorded manifest; the version is dropped"},
             {{"model", buffer_->model()}, {"version", version}});
    buffer_->Drop(half);
    return nullptr;
  }
  buffer_->RecordManifest(half, *manifest);
  return manifest;
}

void ModelPublisher::Recover() {
  const auto newest_half = buffer_->NewestCommitted();
  if (!newest_half) return;
  const size_t older_half = 1 - *newest_half;
  DeltaOutput output;
  std::shared_ptr<const Manifest> older;
  if (buffer_->state(older_half) == HalfState::kCommitted) older = RecoverHalf(older_half, nullptr, 0, output);
  std::shared_ptr<const Manifest> newest = RecoverHalf(*newest_half, older, older_half, output);
  if (older != nullptr) {
    // The chain on disk may end at either version, by when the agent was killed; the last delta is made anew from the
    // halves.
    served_->deltas().Load(*older);
    catalog_->Publish(served_, {older, buffer_->committed_unix_ns(older_half)});
    newest_ = older->held.version;
    served_->live().SetNewest(newest_);
  } else if (newest != nullptr) {
    served_->deltas().Load(*newest);
  }
  if (newest == nullptr) return;
  const int64_t committed_unix_ns = buffer_->committed_unix_ns(*newest_half);
  if (older != nullptr) {
    AddDelta(*older, *newest, committed_unix_ns, CodecLevel::kFast, output);
  }
  catalog_->Publish(served_, {newest, committed_unix_ns});
  newest_ = newest->held.version;
  served_->live().SetNewest(newest_);
  Log(LogLevel::kInfo, "version_recovered",
      {{"model", buffer_->model()}, {"run", ToHex(buffer_->run())}, {"version", newest_}});
}

Version ModelPublisher::newest_version() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

PublisherStatus ModelPublisher::status() const {
  std::lock_guard lock(mutex_);
  PublisherStatus status = status_;
  status.writing_version = draft_ ? draft_->version : 0;
  return status;
}

void ModelPublisher::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Result<size_t> ModelPublisher::Begin(uint32_t rank, Version version) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (stopped_) return Status(ErrorCode::kCancelled, "the agent is shutting down");
    if (version > kMaxVersion) {
      return Status(ErrorCode::kBadData,
                    Cat("model ", buffer_->model(), ": version ", version, " is over the limit of ", kMaxVersion));
    }
    const Version taken = draft_ ? draft_->version - 1 : newest_;
    if (version <= taken) {
      return Status(ErrorCode::kState, Cat("model ", buffer_->model(), ": version ", version, " is not greater than ",
                                           draft_ ? "the one being written, " : "the newest, ",
                                           draft_ ? draft_->version : newest_, "; versions of a run only increase"));
    }
    if (draft_ && draft_->version == version) {
      if (!draft_->joined.insert(rank).second) {
        return Status(ErrorCode::kState, Cat("rank ", rank, " has begun version ", version, " already"));
      }
      return draft_->half;
    }
    // Without this rank's part it would never be whole, were it begun anew: the others have given it up.
    if (version == aborted_version_ && aborted_known_by_.insert(rank).second) return aborted_reason_;
    if (draft_ && draft_->done.count(rank) == 0) {
      // This rank will never commit the draft: waiting for it would be waiting for ever.
      AbortDraft({ErrorCode::kAborted,
                  Cat("rank ", rank, " went on to version ", version, " without version ", draft_->version)});
    }
    if (!draft_ && (!finishing_ || finished_)) break;
    changed_.wait(lock);
  }
  finishing_.reset();
  StartDraft(version);
  draft_->joined.insert(rank);
  return draft_->half;
}

void ModelPublisher::StartDraft(Version version) {
  const auto base_half = buffer_->NewestCommitted();
  const auto newest = served_->Newest();
  const auto base = newest ? newest->manifest : nullptr;
  const size_t half = buffer_->BeginWrite(version);
  draft_ = std::make_unique<Draft>(
      Draft{.version = version, .half = half, .base = base, .coverage = Coverage(*buffer_->layout())});
  draft_->spans = std::make_shared<PublishSpans>(timeline_, buffer_->model(), Held{buffer_->run(), version});
  DeltaInput input = InputOf(half, base, base_half.value_or(0));
  if (base != nullptr) {
    draft_->level = input.level = served_->live().level();
    input.on_coded = [spans = draft_->spans](uint64_t bytes) { spans->Coded(bytes); };
    if (served_->live().followed()) BeginLive(input);
  }
  draft_->job = std::make_unique<DeltaJob>(diff_.pool, std::move(input));
}

void ModelPublisher::BeginLive(DeltaInput& input) {
  draft_->live = served_->live().Begin(draft_->base->held.version, draft_->version);
  input.max_early_bytes = kMaxLiveBytes;
  // The job outlives the version's being made; what it told must not.
  input.on_block = [weak = std::weak_ptr(draft_->live)](std::shared_ptr<const DeltaBlock> block) {
    const auto live = weak.lock();
    if (live == nullptr) return;
    if (block == nullptr) {
      live->Abort({ErrorCode::kAborted, "so much changed that it is sent when it is whole"});
    } else {
      live->Add(std::move(block));
    }
  };
}

void ModelPublisher::AbortDraft(const Status& reason) {
  LogWarn("version_aborted", reason, {{"model", buffer_->model()}, {"version", draft_->version}});
  aborted_version_ = draft_->version;
  aborted_reason_ = reason;
  aborted_known_by_ = draft_->joined;
  ++status_.versions_aborted;
  status_.last_error = reason.ToString();
  const size_t half = draft_->half;
  if (draft_->live != nullptr) {
    draft_->live->Abort({ErrorCode::kAborted, reason.ToString()});
    served_->live().SetNewest(draft_->base->held.version);
  }
  draft_.reset();  // waits for the blocks at work, which read the half
  buffer_->Abort(half);
  changed_.notify_all();
}

void ModelPublisher::RangesDone(uint32_t rank, Version version, std::span<const StridedRange> ranges, Content content) {
  std::lock_guard lock(mutex_);
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

Status ModelPublisher::Commit(uint32_t rank, Version version) {
  std::lock_guard lock(mutex_);
  if (draft_ && draft_->version == version && draft_->joined.count(rank) > 0) {
    draft_->done.insert(rank);
    return draft_->done.size() < buffer_->ranks() ? OkStatus() : SealDraft();
  }
  if (version == aborted_version_) return aborted_reason_;
  if (version == newest_ && version != 0) return OkStatus();  // told again after a reconnection
  return {ErrorCode::kState, Cat("rank ", rank, " has not begun version ", version)};
}

Status ModelPublisher::SealDraft() {
  if (const auto first = draft_->coverage.FirstMissing()) {
    const ModelLayout& layout = *buffer_->layout();
    const Status reason{ErrorCode::kBadData,
                        Cat("version ", draft_->version, " of model ", buffer_->model(), ": ",
                            draft_->coverage.missing_bytes(), " bytes were never written, the first of them at ",
                            *first, ", in tensor \"", layout.tensors()[layout.TensorAt(*first)].name, "\"")};
    AbortDraft(reason);
    return reason;
  }
  draft_->committed_unix_ns = UnixNanos();
  buffer_->Commit(draft_->half, draft_->committed_unix_ns);
  newest_ = draft_->version;
  ++status_.versions_committed;
  status_.last_error.clear();
  finishing_ = std::move(draft_);
  finishing_->spans->Committed(buffer_->layout()->data_bytes());
  finished_ = false;
  finishing_->job->Finish([this](DeltaOutput output) { FinishVersion(std::move(output)); });
  changed_.notify_all();
  return OkStatus();
}

void ModelPublisher::FinishVersion(DeltaOutput output) {
  // Nobody touches finishing_ until finished_ is set.
  const Draft& draft = *finishing_;
  const auto manifest = MakeManifest(*buffer_, draft.version, std::move(output.block_hashes));
  draft.spans->Compared(BytesRead(*buffer_->layout(), output));
  EndLive(draft, output);
  buffer_->RecordManifest(draft.half, *manifest);
  if (draft.base != nullptr) {
    const Moment storing;
    AddDelta(*draft.base, *manifest, draft.committed_unix_ns, draft.level, output);
    if (!output.too_dense) draft.spans->Stored(storing);
  }
  served_->live().SetNewest(draft.version);  // who hears of it may ask for the next at once
  catalog_->Publish(served_, {manifest, draft.committed_unix_ns});
  Log(LogLevel::kInfo, "version_committed",
      {{"model", buffer_->model()},
       {"run", ToHex(buffer_->run())},
       {"version", draft.version},
       {"changed_blocks", output.blocks.size()},
       {"unread_blocks", output.blocks_unread},
       {"diff_tail_s", static_cast<double>(UnixNanos() - draft.committed_unix_ns) * 1e-9}});
  std::lock_guard lock(mutex_);
  finishing_->live.reset();
  finished_ = true;
  changed_.notify_all();
}

void ModelPublisher::EndLive(const Draft& draft, const DeltaOutput& output) {
  if (draft.live == nullptr) return;
  if (output.too_dense) {
    draft.live->Abort(
        {ErrorCode::kAborted, Cat("so much changed in version ", draft.version, " that it has no delta")});
  } else {
    draft.live->Seal();
  }
}

Status ModelPublisher::Abort(uint32_t rank, Version version, const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (draft_ && draft_->version == version) {
    AbortDraft({ErrorCode::kAborted,
                Cat("rank ", rank, " gave version ", version, " up", reason.empty() ? "" : ": ", reason)});
    return OkStatus();
  }
  if (version == aborted_version_) return OkStatus();
  return {ErrorCode::kState, Cat("version ", version, " is not being written")};
}

void ModelPublisher::RankGone(uint32_t rank) {
  std::lock_guard lock(mutex_);
  if (!draft_ || draft_->done.count(rank) > 0) return;
  AbortDraft({ErrorCode::kAborted, Cat("rank ", rank, " vanished while version ", draft_->version,
                                       " was being written; publish a newer one")});
  aborted_known_by_.insert(rank);
}

}  // namespace lockstep
