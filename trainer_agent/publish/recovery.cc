#include "common/telemetry/log.h"
#include "trainer_agent/publish/published_run.h"

namespace lockstep::publish {
namespace {

// The version in `slot`, or null when it was dropped; `output` is how it differs from `base` in the other slot.
std::shared_ptr<const model::Manifest> RecoverSlot(PublishedRun& run, size_t slot,
                                                   const std::shared_ptr<const model::Manifest>& base,
                                                   delta::DeltaOutput& output) {
  buffer::DoubleBuffer& buffer = run.buffer();
  delta::DeltaJob job(run.diff_pool(), run.InputOf(slot, base));
  job.BlocksReady(buffer.layout()->AllBlocks());
  output = job.FinishAndWait();
  const Version version = buffer.version(slot);
  auto manifest = run.MakeManifest(version, output.block_hashes);
  const auto recorded = buffer.RecordedManifest(slot);
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

}  // namespace

Version RecoverRun(PublishedRun& run) {
  buffer::DoubleBuffer& buffer = run.buffer();
  const auto newest_slot = buffer.NewestCommitted();
  if (!newest_slot) return 0;
  const size_t older_slot = 1 - *newest_slot;
  delta::DeltaOutput output;
  std::shared_ptr<const model::Manifest> older;
  if (buffer.state(older_slot) == buffer::SlotState::kCommitted) older = RecoverSlot(run, older_slot, nullptr, output);
  const auto newest = RecoverSlot(run, *newest_slot, older, output);
  const int64_t committed_unix_ns = buffer.committed_unix_ns(*newest_slot);
  // The chain on disk may end at either version, by when the agent was killed; the last delta is made again from the
  // slots.
  if (older != nullptr) {
    run.served()->deltas().Load(*older);
    (void)run.Serve({older, buffer.committed_unix_ns(older_slot), buffer.label(older_slot)}, nullptr);
  } else if (newest != nullptr) {
    run.served()->deltas().Load(*newest);
  }
  if (newest == nullptr) return older == nullptr ? 0 : older->held.version;
  if (older != nullptr) run.RetainDelta(*older, *newest, committed_unix_ns, output);
  (void)run.Serve({newest, committed_unix_ns, buffer.label(*newest_slot)}, nullptr);  // the run is not scrubbed yet
  telemetry::Log(telemetry::LogLevel::kInfo, "version_recovered",
                 {{"model", buffer.model()}, {"run", ToHex(buffer.run())}, {"version", newest->held.version}});
  return newest->held.version;
}

}  // namespace lockstep::publish
