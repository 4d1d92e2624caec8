#include "common/base/hash.h"
#include "common/base/text.h"
#include "common/payload/payload.h"

namespace lockstep::payload {
namespace {

Status RecodeEntry(const PayloadEntry& entry, ByteView data, size_t block_bytes, CodecLevel level, DeltaBlock& block) {
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
  LS_RETURN_IF_ERROR(
      RecodeSparse(data, entry.unit, block_bytes, level, block.data).WithContext(Cat("block ", entry.block)));
  block.data_hash = Hash64(block.data);
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const Payload>> RecodePayload(const model::ModelLayout& layout, const Payload& payload,
                                                     CodecLevel level, WorkerPool& pool) {
  const std::span<const PayloadEntry> entries = payload.entries();
  std::vector<DeltaBlock> blocks(entries.size());
  std::vector<Status> outcomes(entries.size());
  pool.ParallelFor(entries.size(), [&](size_t i) {
    const size_t block_bytes = layout.block_range(entries[i].block).bytes;
    outcomes[i] = RecodeEntry(entries[i], payload.data(entries[i]), block_bytes, level, blocks[i]);
  });
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

}  // namespace lockstep::payload
