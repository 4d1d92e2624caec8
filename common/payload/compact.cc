#include "common/base/hash.h"
#include "common/base/text.h"
#include "common/payload/payload.h"

namespace lockstep {
namespace {

Status CompactEntry(const PayloadEntry& entry, ByteView data, DeltaBlock& block) {
  block = {.block = entry.block,
           .codec = static_cast<Codec>(entry.codec),
           .changes = entry.changes,
           .target_hash = entry.target_hash,
           .data_hash = entry.data_hash};
  if (block.codec != Codec::kSparse) {
    block.data.assign(data.begin(), data.end());
    return OkStatus();
  }
  block.data.reserve(data.size());
  LS_RETURN_IF_ERROR(CompactSparse(data, entry.unit, block.data).WithContext(Cat("block ", entry.block)));
  block.data_hash = Hash64(block.data);
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const Payload>> CompactPayload(const ModelLayout& layout, const Payload& payload,
                                                      WorkerPool& pool) {
  const std::span<const PayloadEntry> entries = payload.entries();
  std::vector<DeltaBlock> blocks(entries.size());
  std::vector<Status> outcomes(entries.size());
  pool.ParallelFor(entries.size(),
                   [&](size_t i) { outcomes[i] = CompactEntry(entries[i], payload.data(entries[i]), blocks[i]); });
  for (const Status& outcome : outcomes) LS_RETURN_IF_ERROR(outcome);
  const PayloadHeader& header = payload.header();
  return Payload::Assemble(layout,
                           {.run = header.run,
                            .base = header.base,
                            .target = header.target,
                            .base_digest = header.base_digest,
                            .target_digest = header.target_digest,
                            .steps_folded = header.steps_folded,
                            .committed_unix_ns = header.committed_unix_ns},
                           blocks);
}

}  // namespace lockstep
