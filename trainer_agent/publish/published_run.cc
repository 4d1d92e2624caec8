#include "trainer_agent/publish/published_run.h"

#include "common/base/text.h"
#include "common/os/filesystem.h"
#include "common/telemetry/log.h"

namespace lockstep::publish {
namespace {

class BufferReader : public store::BlockReader {
 public:
  explicit BufferReader(std::shared_ptr<buffer::DoubleBuffer> buffer) : buffer_(std::move(buffer)) {}
  Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) override {
    return buffer_->UseBytes(version, range, use);
  }
  Result<store::VersionFile> OpenFile(Version version) override {
    LS_ASSIGN_OR_RETURN(os::UniqueFd file, buffer_->OpenSlot(version));
    return store::VersionFile{std::move(file), buffer_->data_offset()};
  }

 private:
  const std::shared_ptr<buffer::DoubleBuffer> buffer_;
};

}  // namespace

PublishedRun::PublishedRun(std::shared_ptr<buffer::DoubleBuffer> buffer, store::StoreOptions store, DiffOptions diff,
                           store::VersionCatalog* catalog)
    : buffer_(std::move(buffer)),
      served_(std::make_shared<store::ServedRun>(buffer_->model(), buffer_->run(), buffer_->layout(),
                                                 std::make_shared<BufferReader>(buffer_), std::move(store))),
      diff_(diff),
      catalog_(catalog) {}

delta::DeltaInput PublishedRun::InputOf(size_t slot, const std::shared_ptr<const model::Manifest>& base) const {
  return {.layout = buffer_->layout(),
          .target = buffer_->data(slot),
          .base = base == nullptr ? nullptr : buffer_->data(1 - slot),
          .base_manifest = base,
          .max_coded_bytes = served_->deltas().MaxDeltaBytes(),
          .level = diff_.codec};
}

std::shared_ptr<const model::Manifest> PublishedRun::MakeManifest(Version version,
                                                                  std::vector<uint64_t> block_hashes) const {
  auto manifest = std::make_shared<model::Manifest>();
  manifest->held = {buffer_->run(), version};
  manifest->digest = model::ComputeManifestDigest(buffer_->layout()->digest(), block_hashes);
  manifest->block_hashes = std::move(block_hashes);
  return manifest;
}

void PublishedRun::RetainDelta(const model::Manifest& base, const model::Manifest& target, int64_t committed_unix_ns,
                               const delta::DeltaOutput& output) {
  const uint64_t model_bytes = buffer_->layout()->data_bytes();
  const uint64_t most = served_->deltas().MaxDeltaBytes();
  Status added{ErrorCode::kResourceExhausted, most < model_bytes ? Cat("its delta takes more than --retain-bytes, ",
                                                                       os::ExactBytes(most), "; give more")
                                                                 : "its delta takes more than the model"};
  if (!output.too_dense) {
    std::vector<const payload::DeltaBlock*> blocks;
    for (const auto& block : output.blocks) blocks.push_back(block.get());
    added = served_->deltas()
                .Add({.run = buffer_->run(),
                      .base = base.held.version,
                      .target = target.held.version,
                      .base_digest = base.digest,
                      .target_digest = target.digest,
                      .committed_unix_ns = committed_unix_ns},
                     blocks)
                .status();
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

Status PublishedRun::Serve(store::ServedVersion version, const model::Manifest* base) {
  // First: a receiver that is notified of the version may ask for the next at once.
  served_->feed().SetNewest(version.manifest->held.version);
  Status status = catalog_->Publish(served_, std::move(version), base);
  if (!status.ok()) served_->deltas().Discard();
  return status;
}

}  // namespace lockstep::publish
