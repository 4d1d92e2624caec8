// What a ReplicaPair finds out about the bytes that it holds: for the scrub, an operator, a log's writer and its own
// syncs.
#include <algorithm>
#include <cstring>

#include "common/base/text.h"
#include "common/model/manifest.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::replica {

void ReplicaPair::MarkDamaged(size_t replica, const VersionRef& held, std::vector<BlockIndex> blocks,
                              std::string_view by) {
  if (!blocks.empty() && !damaged_[replica].exchange(true)) Report(held, std::move(blocks), by);
}

void ReplicaPair::MarkDamagedAmong(size_t replica, const ReplicaState& state, std::vector<BlockIndex> copied,
                                   std::string_view by) {
  std::erase_if(copied, [&](BlockIndex block) {
    return model::BlockHash(replicas_[replica].file.block(block)) == state.manifest.block_hashes[block];
  });
  MarkDamaged(replica, state.manifest.held, std::move(copied), by);
}

void ReplicaPair::Report(const VersionRef& held, std::vector<BlockIndex> blocks, std::string_view by) {
  Status what{ErrorCode::kCorrupt,
              Cat("the bytes of block ", blocks[0], " of version ", held.version, " have changed in memory")};
  {
    MutexLock lock(damage_mutex_);
    damage_.push_back({held, std::move(blocks), by, std::move(what)});
  }
  if (damage_found_) damage_found_();
}

std::vector<Damage> ReplicaPair::TakeDamage() {
  MutexLock lock(damage_mutex_);
  return std::exchange(damage_, {});
}

ReplicaPair::CheckedBlocks ReplicaPair::Check(size_t index, BlockIndex first, uint64_t bytes) {
  const Replica& replica = replicas_[index];
  if (!replica.whole || damaged_[index]) return {};
  const ReplicaState& state = *replica.whole;
  const uint32_t blocks = state.layout->block_count();
  CheckedBlocks checked{.of_bytes = 2 * state.layout->data_bytes()};
  std::vector<BlockIndex> bad;
  BlockIndex block = first;
  for (; block < blocks && checked.bytes < bytes; ++block) {
    const std::span<const std::byte> data = replica.file.block(block);
    if (model::BlockHash(data) != state.manifest.block_hashes[block]) bad.push_back(block);
    checked.bytes += data.size();
  }
  checked.next = block < blocks ? block : 0;
  checked.damaged = !bad.empty();
  MarkDamaged(index, state.manifest.held, std::move(bad), "scrub");
  return checked;
}

Result<VerifyReport> ReplicaPair::Verify() {
  MutexLock lock(mutex_);
  if (current_ < 0) return Status(ErrorCode::kState, Cat("model ", options_.model, " holds no version to verify yet"));
  const auto index = static_cast<size_t>(current_);
  const Replica& replica = replicas_[index];
  const std::shared_lock reading(bytes_mutexes_[index]);
  const ReplicaState state = *replica.whole;
  // Under the lock: what is current is not withdrawn.
  LS_RETURN_IF_ERROR(tree_.CheckTexts(replica.name, state));
  lock.unlock();

  const std::vector<uint64_t> hashes = HashBlocks(*state.layout, replica.file.data(), pool_);
  VerifyReport report{.held = state.manifest.held,
                      .recorded = state.manifest.digest,
                      .computed = model::ComputeManifestDigest(*state.layout, hashes),
                      .parts = model::PartDigests(*state.layout, hashes),
                      .bad_blocks = {},
                      .bad_tensors = {}};
  report.bad_blocks = Differing(hashes, state.manifest.block_hashes);
  MarkDamaged(index, state.manifest.held, report.bad_blocks, "verify");
  report.bad_tensors = model::TensorsInBlocks(*state.layout, report.bad_blocks);
  return report;
}

model::Manifest ReplicaPair::manifest() const {
  MutexLock lock(mutex_);
  return current_ < 0 ? model::Manifest() : replicas_[current_].whole->manifest;
}

Result<VersionRef> ReplicaPair::CopyCurrent(uint64_t offset, std::span<std::byte> to) {
  MutexLock lock(mutex_);
  if (current_ < 0) return Status(ErrorCode::kState, Cat("model ", options_.model, " holds no version yet"));
  const auto index = static_cast<size_t>(current_);
  const Replica& replica = replicas_[index];
  const std::shared_lock reading(bytes_mutexes_[index]);
  const ReplicaState state = *replica.whole;
  lock.unlock();

  const model::ModelLayout& layout = *state.layout;
  if (offset > layout.data_bytes() || to.size() > layout.data_bytes() - offset) {
    return Status(ErrorCode::kState, Cat("model ", options_.model, " is shorter by now"));
  }
  std::memcpy(to.data(), replica.file.data().data() + offset, to.size());
  const auto first = static_cast<BlockIndex>(offset / layout.block_bytes());
  const auto blocks = static_cast<BlockIndex>((to.size() + layout.block_bytes() - 1) / layout.block_bytes());
  const auto check = [&](size_t i) -> Status {
    const auto block = static_cast<BlockIndex>(first + i);
    const ByteRange range = layout.block_range(block);
    if (model::BlockHash(to.subspan(range.offset - offset, range.bytes)) == state.manifest.block_hashes[block]) {
      return OkStatus();
    }
    MarkDamagedAmong(index, state, {block}, "archive");
    return {ErrorCode::kCorrupt, Cat("block ", block, " of version ", state.manifest.held.version, " is damaged")};
  };
  LS_RETURN_IF_ERROR(pool_.ParallelTry(blocks, check));
  return state.manifest.held;
}

}  // namespace lockstep::replica
