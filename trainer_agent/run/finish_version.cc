// What becomes of a version after its commit: its manifest and delta are made of the comparison, and it is served.
#include <algorithm>
#include <cmath>

#include "common/base/text.h"
#include "common/os/filesystem.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"
#include "trainer_agent/run/model_publisher.h"

namespace lockstep::run {
namespace {

uint64_t BytesRead(const model::ModelLayout& layout, const DeltaOutput& output) {
  const uint64_t blocks = layout.block_count() - output.blocks_unread;
  return std::min(blocks * layout.block_bytes(), layout.data_bytes());  // the last block may be a shorter one
}

}  // namespace

void ModelPublisher::FinishVersion(DeltaOutput output) {
  Draft* finishing = nullptr;
  {
    MutexLock lock(mutex_);
    finishing = draft_.get();
  }
  Draft& draft = *finishing;  // no other thread touches it in kFinishing
  const auto changes = ChangesOf(draft.version, draft.base.get(), std::move(output.changes));
  std::vector<Wake> wakes;
  Status ended = draft.guard.empty() ? OkStatus() : Judge(draft, *changes);
  if (ended.ok()) ended = ServeDraft(draft, std::move(output), changes, &wakes);
  MutexLock lock(mutex_);
  if (!ended.ok()) {
    NoteAborted(draft, ended);
    buffer_->Drop(draft.slot);
  }
  draft.streaming.reset();
  state_ = State::kIdle;
  finished_.notify_all();
  WakeRanks();
  lock.unlock();
  CallAll(wakes);  // of a thousand receivers' streams: no rank waits for them
}

// A tensor's count is never negative: of bytes that were wrongly reported unchanged more may go than came.
std::shared_ptr<const changes::VersionChanges> ModelPublisher::ChangesOf(
    Version version, const model::Manifest* base, std::vector<changes::TensorChange> tensors) const {
  const auto before = base == nullptr ? nullptr : served_->ChangesOf(base->held.version);
  for (size_t tensor = 0; before != nullptr && tensor < tensors.size(); ++tensor) {
    tensors[tensor].nonfinite = std::max<int64_t>(tensors[tensor].nonfinite + before->tensors[tensor].nonfinite, 0);
  }
  return std::make_shared<changes::VersionChanges>(
      changes::SumUp(*buffer().layout(), version, base == nullptr ? 0 : base->held.version, std::move(tensors)));
}

Status ModelPublisher::Judge(const Draft& draft, const changes::VersionChanges& changes) {
  LS_ASSIGN_OR_RETURN(const Guard guard, ReadGuard(draft.guard));
  Status kept = CheckGuard(guard, *buffer().layout(), changes)
                    .WithContext(Cat("version ", draft.version, " of model ", buffer().model()));
  if (kept.ok()) kept = served_->CheckBase(draft.base.get());
  MutexLock lock(mutex_);
  if (kept.ok()) {
    NoteCommitted();
    WakeRanks();
  } else {
    AbortStreaming(draft, kept);
  }
  return kept;
}

Status ModelPublisher::ServeDraft(const Draft& draft, DeltaOutput output,
                                  std::shared_ptr<const changes::VersionChanges> changes, std::vector<Wake>* wakes) {
  const auto manifest = MakeManifest(draft.version, std::move(output.block_hashes));
  draft.spans->Compared(BytesRead(*buffer().layout(), output));
  EndStreaming(draft, output);
  buffer_->RecordManifest(draft.slot, *manifest);
  if (draft.base != nullptr) {
    const telemetry::Moment storing;
    RetainDelta(*draft.base, *manifest, draft.committed_unix_ns, output);
    if (!output.too_dense) draft.spans->Stored(storing);
  }
  const changes::VersionChanges& counted = *changes;
  LS_RETURN_IF_ERROR(
      ServeVersion({manifest, draft.committed_unix_ns, draft.label, std::move(changes)}, draft.base.get(), wakes));
  LogCommitted(draft, output, counted);
  return OkStatus();
}

DeltaInput ModelPublisher::InputOf(size_t slot, const std::shared_ptr<const model::Manifest>& base) const {
  return {.layout = buffer_->layout(),
          .target = buffer_->data(slot),
          .base = base == nullptr ? nullptr : buffer_->data(1 - slot),
          .base_manifest = base,
          .max_coded_bytes = served_->deltas().MaxDeltaBytes(),
          .level = diff_.codec};
}

std::shared_ptr<const model::Manifest> ModelPublisher::MakeManifest(Version version,
                                                                    std::vector<uint64_t> block_hashes) const {
  auto manifest = std::make_shared<model::Manifest>();
  manifest->held = {buffer_->run(), version};
  manifest->digest = model::ComputeManifestDigest(buffer_->layout()->digest(), block_hashes);
  manifest->block_hashes = std::move(block_hashes);
  return manifest;
}

void ModelPublisher::RetainDelta(const model::Manifest& base, const model::Manifest& target, int64_t committed_unix_ns,
                                 const DeltaOutput& output) {
  const uint64_t model_bytes = buffer_->layout()->data_bytes();
  const uint64_t most = served_->deltas().MaxDeltaBytes();
  Status added{ErrorCode::kResourceExhausted, most < model_bytes ? Cat("its delta takes more than --retain-bytes, ",
                                                                       os::ExactBytes(most), "; give more")
                                                                 : "its delta takes more than the model"};
  if (!output.too_dense) {
    std::vector<const payload::DeltaBlock*> blocks;
    for (const auto& block : output.blocks) blocks.push_back(block.get());
    added = served_->deltas().Add({.run = buffer_->run(),
                                   .base = base.held.version,
                                   .target = target.held.version,
                                   .base_digest = base.digest,
                                   .target_digest = target.digest,
                                   .committed_unix_ns = committed_unix_ns},
                                  blocks);
  }
  if (!added.ok()) {
    telemetry::LogWarn("delta_retain_failed", added, {{"model", buffer_->model()}, {"version", target.held.version}});
  }
  const uint64_t bytes = output.too_dense ? most : served_->deltas().StepTo(target.held.version).data_bytes;
  const bool large = bytes > model_bytes / 2;
  if (large_deltas_.exchange(large) == large || !large) return;
  telemetry::Log(telemetry::LogLevel::kWarn, "delta_pays_little",
                 {{"model", buffer_->model()},
                  {"version", target.held.version},
                  {"delta_bytes", bytes},
                  {"model_bytes", model_bytes},
                  {"message",
                   "a delta of this model takes more than half of its bytes; if that stays so, deltas save little here "
                   "(docs/is-it-for-me.md)"}});
}

Status ModelPublisher::ServeVersion(ServedVersion version, const model::Manifest* base, std::vector<Wake>* wakes) {
  // First: a receiver that is notified of the version may ask for the next at once.
  served_->feed().SetNewest(version.manifest->held.version);
  Status status = catalog_->Publish(served_, std::move(version), base, wakes);
  if (!status.ok()) served_->deltas().Discard();
  return status;
}

void ModelPublisher::LogCommitted(const Draft& draft, const DeltaOutput& output,
                                  const changes::VersionChanges& changes) const {
  const changes::TensorChange& all = changes.all;
  telemetry::Log(telemetry::LogLevel::kInfo, "version_committed",
                 {{"model", buffer().model()},
                  {"run", ToHex(buffer().run())},
                  {"version", draft.version},
                  {"label", draft.label},
                  {"changed_blocks", output.blocks.size()},
                  {"unread_blocks", output.blocks_unread},
                  {"changed_elements", all.elements},
                  {"nonfinite_elements", all.nonfinite},
                  {"change_norm", std::sqrt(all.squares)},
                  {"diff_tail_s", static_cast<double>(telemetry::UnixNanos() - draft.committed_unix_ns) * 1e-9}});
  const auto before = draft.base == nullptr ? nullptr : served_->ChangesOf(draft.base->held.version);
  if (all.nonfinite == (before == nullptr ? 0 : before->all.nonfinite)) return;  // a buffer may have them for ever
  telemetry::Log(telemetry::LogLevel::kWarn, "version_not_finite",
                 {{"model", buffer().model()},
                  {"version", draft.version},
                  {"nonfinite_elements", all.nonfinite},
                  {"tensors", NamesOfNonfinite(*buffer().layout(), changes)},
                  {"message",
                   "elements of this version are NaN or Inf; a guard refuses such versions "
                   "(docs/howto/guards.md)"}});
}

void ModelPublisher::EndStreaming(const Draft& draft, const DeltaOutput& output) {
  if (draft.streaming == nullptr) return;
  if (output.too_dense) {
    draft.streaming->Abort(
        {ErrorCode::kAborted, Cat("so much changed in version ", draft.version, " that it has no delta")});
  } else {
    draft.streaming->Seal();
  }
}

}  // namespace lockstep::run
