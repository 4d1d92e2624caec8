#include "common/telemetry/log.h"
#include "trainer_agent/publish/published_run.h"

namespace lockstep::publish {
namespace {

// The version in `half`, or null when it was dropped; `output` is how it differs from `base` in the other half.
std::shared_ptr<const model::Manifest> RecoverHalf(PublishedRun& run, size_t half,
                                                   const std::shared_ptr<const model::Manifest>& base,
                                                   delta::DeltaOutput& output) {
  buffer::DoubleBuffer& buffer = run.buffer();
  delta::DeltaJob job(run.diff_pool(), run.InputOf(half, base));
  job.BlocksReady(buffer.layout()->AllBlocks());
  output = job.FinishAndWait();
  const Version version = buffer.version(half);
  auto manifest = run.MakeManifest(version, output.block_hashes);
  const auto recorded = buffer.RecordedManifest(half);
  if (recorded && recorded->digest != manifest->digest) {
    telemetry::LogError(
        "recovered_version_corrupt",
        {ErrorCode::kCorrupt, "the half's bytes differ from its recorded manifest; the version is dropped"},
        {{"model", buffer.model()}, {"version", version}});
    buffer.Drop(half);
    return nullptr;
  }
  buffer.RecordManifest(half, *manifest);
  return manifest;
}

}  // namespace

Version RecoverRun(PublishedRun& run) {
  buffer::DoubleBuffer& buffer = run.buffer();
  const auto newest_half = buffer.NewestCommitted();
  if (!newest_half) return 0;
  const size_t older_half = 1 - *newest_half;
  delta::DeltaOutput output;
  std::shared_ptr<const model::Manifest> older;
  if (buffer.state(older_half) == buffer::HalfState::kCommitted) older = RecoverHalf(run, older_half, nullptr, output);
  const auto newest = RecoverHalf(run, *newest_half, older, output);
  const int64_t committed_unix_ns = buffer.committed_unix_ns(*newest_half);
  // The chain on disk may end at either version, by when the agent was killed; the last delta is made again from the
  // halves.
  if (older != nullptr) {
    run.served()->deltas().Load(*older);
    (void)run.Serve({older, buffer.committed_unix_ns(older_half), buffer.label(older_half)}, nullptr);
  } else if (newest != nullptr) {
    run.served()->deltas().Load(*newest);
  }
  if (newest == nullptr) return older == nullptr ? 0 : older->held.version;
  if (older != nullptr) run.RetainDelta(*older, *newest, committed_unix_ns, output);
  (void)run.Serve({newest, committed_unix_ns, buffer.label(*newest_half)}, nullptr);  // nobody scrubs yet
  telemetry::Log(telemetry::LogLevel::kInfo, "version_recovered",
                 {{"model", buffer.model()}, {"run", ToHex(buffer.run())}, {"version", newest->held.version}});
  return newest->held.version;
}

}  // namespace lockstep::publish
