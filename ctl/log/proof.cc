#include "ctl/log/proof.h"

#include <algorithm>
#include <map>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/changes/version_changes.h"
#include "common/changes/version_changes_proto.h"
#include "common/model/manifest.h"
#include "common/payload/block_apply.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"

namespace lockstep::ctl {
namespace {

constexpr int kAttempts = 5;

std::span<std::byte> BlockOf(const model::ModelLayout& layout, std::span<std::byte> data, BlockIndex block) {
  const ByteRange range = layout.block_range(block);
  return data.subspan(range.offset, range.bytes);
}

Status CheckDigest(const v1::LogHistory& history, const model::ModelLayout& layout, Version version,
                   const std::vector<uint64_t>& hashes) {
  if (model::ComputeManifestDigest(layout.digest(), hashes) == versionlog::FindDigest(history, version)) {
    return OkStatus();
  }
  return {ErrorCode::kCorrupt, Cat("version ", version, " does not have the digest that the head names")};
}

// The data section, as it is in one version after another.
class Replay {
 public:
  Replay(versionlog::LogReader& reader, const v1::LogHistory& history, std::shared_ptr<const model::ModelLayout> layout,
         WorkerPool& workers)
      : reader_(reader),
        history_(history),
        layout_(std::move(layout)),
        workers_(workers),
        data_(layout_->data_bytes()) {}

  Status Begin(Version oldest) {
    LS_ASSIGN_OR_RETURN(hashes_, MakeVersion(reader_, history_, *layout_, oldest, data_));
    return CheckChunks(oldest);
  }

  // `seen` is given each block that changes, as it was and as it is; by any thread.
  using SeenBlock = std::function<void(BlockIndex block, ByteView before, ByteView now)>;
  Status Step(const v1::LogStep& step, const SeenBlock& seen = {}) {
    const v1::LogStep* const one = &step;
    LS_ASSIGN_OR_RETURN(const payload::DeltaChain chain, reader_.ReadSteps(history_, *layout_, {&one, 1}, {}));
    const auto entries = chain[0]->entries();
    LS_RETURN_IF_ERROR(workers_.ParallelTry(entries.size(), [&](size_t i) -> Status {
      const payload::EntryData entry{&entries[i], chain[0]->data(entries[i])};
      const std::span<std::byte> bytes = BlockOf(*layout_, data_, entry.entry->block);
      const Bytes before(seen ? bytes.begin() : bytes.end(), bytes.end());
      LS_ASSIGN_OR_RETURN(hashes_[entry.entry->block], payload::ApplyEntries({&entry, 1}, bytes));
      if (seen) seen(entry.entry->block, before, bytes);
      if (hashes_[entry.entry->block] == entry.entry->target_hash) return OkStatus();
      return {ErrorCode::kCorrupt, Cat("block ", entry.entry->block, " of version ", step.target().version(),
                                       " does not come out as its delta promises")};
    }));
    LS_RETURN_IF_ERROR(CheckDigest(history_, *layout_, step.target().version(), hashes_));
    return CheckChunks(step.target().version());
  }

  ByteView data() const { return data_; }

  Status CheckManifest() const {
    LS_ASSIGN_OR_RETURN(const std::vector<uint64_t> manifest, reader_.ReadManifest(history_, {}));
    if (manifest == hashes_) return OkStatus();
    return {ErrorCode::kCorrupt, "the manifest is not that of the newest version"};
  }

 private:
  Status CheckChunks(Version version) const {
    for (const v1::LogChunk& chunk : history_.chunks()) {
      if (chunk.version() != version) continue;
      const ByteRange range = versionlog::ChunkRange(history_, chunk.index(), layout_->data_bytes());
      ByteView rest = ByteView(data_).subspan(range.offset, range.bytes);
      const auto compare = [&](ByteView bytes) -> Status {
        const bool equal = std::ranges::equal(bytes, rest.first(bytes.size()));
        rest = rest.subspan(bytes.size());
        if (equal) return OkStatus();
        return {ErrorCode::kCorrupt, Cat("chunk ", chunk.index(), " of version ", version, " is not what deltas give")};
      };
      LS_RETURN_IF_ERROR(reader_.ReadChunk(chunk, range.bytes, compare, {}));
    }
    return OkStatus();
  }

  versionlog::LogReader& reader_;
  const v1::LogHistory& history_;
  const std::shared_ptr<const model::ModelLayout> layout_;
  WorkerPool& workers_;
  Bytes data_;
  std::vector<uint64_t> hashes_;
};

// How many versions were made.
Result<uint64_t> MakeAll(versionlog::LogReader& reader, const v1::LogHistory& history,
                         const std::shared_ptr<const model::ModelLayout>& layout, WorkerPool& workers) {
  Replay replay(reader, history, layout, workers);
  LS_RETURN_IF_ERROR(replay.Begin(history.oldest()));
  uint64_t versions = 1;
  for (const v1::LogStep& step : history.steps()) {
    if (step.base() < history.oldest()) continue;
    LS_RETURN_IF_ERROR(replay.Step(step));
    ++versions;
  }
  const Status manifest = replay.CheckManifest();
  if (!manifest.ok() && manifest.code() != ErrorCode::kAborted) return manifest;  // there is a newer one
  return versions;
}

}  // namespace

Result<std::vector<uint64_t>> MakeVersion(versionlog::LogReader& reader, const v1::LogHistory& history,
                                          const model::ModelLayout& layout, Version version,
                                          std::span<std::byte> data) {
  std::vector<uint64_t> hashes(layout.block_count());
  const versionlog::BlocksToMake wanted{.blocks = layout.AllBlocks(),
                                        .place_of = [&](BlockIndex block) { return BlockOf(layout, data, block); },
                                        .on_made =
                                            [&](BlockIndex block, uint64_t hash) {
                                              hashes[block] = hash;
                                              return OkStatus();
                                            }};
  LS_RETURN_IF_ERROR(reader.MakeBlocks(history, layout, version, wanted, {}));
  LS_RETURN_IF_ERROR(CheckDigest(history, layout, version, hashes));
  return hashes;
}

Result<std::vector<v1::VersionChanges>> CountSteps(versionlog::LogReader& reader, const v1::LogHistory& history,
                                                   std::shared_ptr<const model::ModelLayout> layout, Version first,
                                                   Version last, WorkerPool& workers) {
  Replay replay(reader, history, layout, workers);
  LS_RETURN_IF_ERROR(replay.Begin(first));
  Mutex mutex;
  std::vector<changes::TensorChange> counted(layout->tensors().size());
  const auto add = [&](const changes::BlockChange& changes) {
    MutexLock lock(mutex);
    for (const auto& [tensor, change] : changes) counted[tensor].Add(change);
  };
  workers.ParallelFor(layout->block_count(), [&](size_t block) {
    const ByteRange range = layout->block_range(static_cast<BlockIndex>(block));
    add(changes::CountNonfinite(*layout, static_cast<BlockIndex>(block),
                                replay.data().subspan(range.offset, range.bytes)));
  });
  std::vector<v1::VersionChanges> all;
  for (const v1::LogStep& step : history.steps()) {
    if (step.base() < first || step.target().version() > last) continue;
    for (changes::TensorChange& change : counted) change = {.nonfinite = change.nonfinite};
    LS_RETURN_IF_ERROR(replay.Step(step, [&](BlockIndex block, ByteView before, ByteView now) {
      add(changes::CountChanges(*layout, block, before, now));
    }));
    all.push_back(changes::ToProto(*layout, RunId{*Bytes16(history.run())}, step.target().label(),
                                   changes::SumUp(*layout, step.target().version(), step.base(), counted)));
  }
  return all;
}

Result<LogProof> ProveLog(versionlog::LogReader& reader, const v1::LogHead& head, WorkerPool& transfers,
                          WorkerPool& workers) {
  LogProof proof;
  std::map<std::string, versionlog::NamedObject> objects;
  std::shared_ptr<const model::ModelLayout> layout;
  for (const v1::LogHistory* history : {&head.history(), &head.next()}) {
    if (history->run().empty()) continue;
    auto read = reader.ReadLayout(*history, history == &head.history(), {});
    if (read.status().code() == ErrorCode::kCorrupt) {
      proof.damaged.push_back(read.status().message());
      return proof;
    }
    LS_RETURN_IF_ERROR(read);
    versionlog::AddObjects(*history, head.model(), (*read)->data_bytes(), objects);
    if (history == &head.history()) layout = *std::move(read);
  }
  std::vector<versionlog::NamedObject> all;
  for (auto& [name, object] : objects) all.push_back(std::move(object));
  Mutex mutex;
  LS_RETURN_IF_ERROR(transfers.ParallelTry(all.size(), [&](size_t i) {
    const Status checked = reader.CheckObject(all[i].kind, all[i].sha256, all[i].bytes, {});
    if (checked.code() == ErrorCode::kAborted) return OkStatus();  // its writer goes on meanwhile, and needs it no more
    if (checked.code() != ErrorCode::kCorrupt) return checked;
    MutexLock lock(mutex);
    proof.damaged.push_back(checked.message());
    return OkStatus();
  }));
  proof.objects = all.size();
  for (const versionlog::NamedObject& object : all) proof.bytes += object.bytes;
  std::ranges::sort(proof.damaged);
  if (!proof.damaged.empty() || layout == nullptr) return proof;

  v1::LogHistory history = head.history();
  for (int attempt = 1;; ++attempt) {
    const Result<uint64_t> made = MakeAll(reader, history, layout, workers);
    if (made.ok()) {
      proof.versions = *made;
      return proof;
    }
    // Its writer has removed the oldest meanwhile: from the oldest that there is now.
    if (made.status().code() != ErrorCode::kAborted || attempt == kAttempts) return made.status();
    LS_ASSIGN_OR_RETURN(const versionlog::Head now, reader.ReadHead({}));
    if (now->history().layout_digest() != history.layout_digest()) return made.status();
    history = now->history();
  }
}

}  // namespace lockstep::ctl
