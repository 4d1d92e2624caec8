// What a ModelPublisher serves of the versions that an earlier agent left.
#include "common/telemetry/log.h"
#include "trainer_agent/run/model_publisher.h"

namespace lockstep::run {

// The version in `slot`, or null when it was dropped; `output` is how it differs from `base` in the other slot.
std::shared_ptr<const model::Manifest> ModelPublisher::RecoverSlot(size_t slot,
                                                                   const std::shared_ptr<const model::Manifest>& base,
                                                                   DeltaOutput& output) {
  DoubleBuffer& buffer = *buffer_;
  DeltaJob job(diff_.pool, InputOf(slot, base));
  job.BlocksReady(buffer.layout()->AllBlocks());
  output = job.FinishAndWait();
  const Version version = buffer.control().version(slot);
  auto manifest = MakeManifest(version, output.block_hashes);
  const auto recorded = buffer.control().RecordedManifest(slot);
  if (recorded && recorded->digest != manifest->digest) {
    telemetry::LogError(
        "recovered_version_corrupt",
        {ErrorCode::kCorrupt, "the slot's bytes differ from its recorded manifest; the version is dropped"},
        {{"model", buffer.model()}, {"version", version}});
    buffer.Drop(slot);
    return nullptr;
  }
  buffer.RecordManifest(slot, *manifest);
  return manifest;
}

Version ModelPublisher::Recover() {
  DoubleBuffer& buffer = *buffer_;
  const auto newest_slot = buffer.NewestCommitted();
  if (!newest_slot) return 0;
  const size_t older_slot = 1 - *newest_slot;
  DeltaOutput output;
  DeltaOutput older_output;
  std::shared_ptr<const model::Manifest> older;
  if (buffer.control().state(older_slot) == SlotState::kCommitted) {
    older = RecoverSlot(older_slot, nullptr, older_output);
  }
  const auto newest = RecoverSlot(*newest_slot, older, output);
  const int64_t committed_unix_ns = buffer.control().committed_unix_ns(*newest_slot);
  // The chain on disk may end at either version, by when the agent was killed; the last delta is made again from the
  // slots.
  if (older != nullptr) {
    served_->deltas().Load(*older);
    (void)ServeVersion({older, buffer.control().committed_unix_ns(older_slot), buffer.control().label(older_slot),
                        ChangesOf(older->held.version, nullptr, std::move(older_output.changes))},
                       nullptr);
  } else if (newest != nullptr) {
    served_->deltas().Load(*newest);
  }
  if (newest == nullptr) return older == nullptr ? 0 : older->held.version;
  if (older != nullptr) RetainDelta(*older, *newest, committed_unix_ns, output);
  (void)ServeVersion({newest, committed_unix_ns, buffer.control().label(*newest_slot),
                      ChangesOf(newest->held.version, older.get(), std::move(output.changes))},
                     nullptr);  // the run is not scrubbed yet
  telemetry::Log(telemetry::LogLevel::kInfo, "version_recovered",
                 {{"model", buffer.model()}, {"run", ToHex(buffer.run())}, {"version", newest->held.version}});
  return newest->held.version;
}

}  // namespace lockstep::run
