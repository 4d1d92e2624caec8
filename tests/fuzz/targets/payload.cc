// A stored or received delta (common/payload/payload.h), for a model of three blocks.
#include "common/payload/payload.h"

#include "common/payload/block_apply.h"
#include "kernels/hash.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace lockstep::fuzz {
namespace {

using payload::CodecLevel;
using payload::Payload;
using payload::PayloadEntry;
using payload::PayloadHeader;

payload::DeltaBlock Sparse(BlockIndex block, CodecLevel level, const payload::Changes& changes) {
  payload::DeltaBlock delta{.block = block,
                            .codec = payload::Codec::kSparse,
                            .changes = static_cast<uint32_t>(changes.size()),
                            .target_hash = 17};
  payload::EncodeSparse(changes, SmallLayout()->block_unit(block), level, delta.data);
  delta.data_hash = Hash64(delta.data);
  return delta;
}

payload::DeltaBlock Raw(BlockIndex block) {
  payload::DeltaBlock delta{.block = block, .changes = 2, .target_hash = 18};
  delta.data.assign(SmallLayout()->block_range(block).bytes, std::byte{3});
  delta.data_hash = Hash64(delta.data);
  return delta;
}

Bytes Assembled(const std::vector<payload::DeltaBlock>& blocks) {
  const payload::PayloadIdentity identity{.run = SmallRun(),
                                          .base = 1,
                                          .target = 2,
                                          .base_digest = SmallManifest(1).digest,
                                          .target_digest = SmallManifest(2).digest,
                                          .committed_unix_ns = 1'000'000'000};
  return Copy((*Payload::Assemble(*SmallLayout(), identity, blocks))->bytes());
}

// The same with every hash put right that lies inside.
Bytes Sealed(ByteView input) {
  Bytes bytes = Copy(input);
  PayloadHeader header;
  if (bytes.size() < sizeof header) return bytes;
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t entries = std::min<size_t>(header.entries, (bytes.size() - sizeof header) / sizeof(PayloadEntry));
  const size_t data_at = sizeof header + entries * sizeof(PayloadEntry);
  for (size_t i = 0; i < entries; ++i) {
    std::byte* const at = bytes.data() + sizeof header + i * sizeof(PayloadEntry);
    PayloadEntry entry;
    std::memcpy(&entry, at, sizeof entry);
    const size_t room = bytes.size() - data_at;
    if (entry.offset <= room && entry.bytes <= room - entry.offset) {
      entry.data_hash = Hash64(bytes.data() + data_at + entry.offset, entry.bytes);
    }
    std::memcpy(at, &entry, sizeof entry);
  }
  header.layout = SmallLayout()->digest();
  header.data_bytes = bytes.size() - data_at;
  header.entries_hash = Hash64(bytes.data() + sizeof header, entries * sizeof(PayloadEntry));
  header.header_hash = Hash64(&header, offsetof(PayloadHeader, header_hash));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

// Assembled again of its own blocks it has the same bytes.
void CheckAssembling(const Payload& payload) {
  std::vector<payload::DeltaBlock> blocks;
  for (const PayloadEntry& entry : payload.entries()) {
    LS_FUZZ_RULE(payload.Find(entry.block) == &entry);
    blocks.push_back({.block = entry.block,
                      .codec = static_cast<payload::Codec>(entry.codec),
                      .changes = entry.changes,
                      .target_hash = entry.target_hash,
                      .data_hash = entry.data_hash,
                      .data = Copy(payload.data(entry))});
  }
  const PayloadHeader& header = payload.header();
  const auto again = Payload::Assemble(*SmallLayout(),
                                       {.run = header.run,
                                        .base = header.base,
                                        .target = header.target,
                                        .base_digest = header.base_digest,
                                        .target_digest = header.target_digest,
                                        .committed_unix_ns = header.committed_unix_ns},
                                       blocks);
  LS_FUZZ_RULE(again.ok());
  LS_FUZZ_RULE(Copy((*again)->bytes()) == Copy(payload.bytes()));
}

// Every block brought forward from zeros, each in memory of its own; nothing when an entry cannot be decoded.
std::vector<Bytes> Applied(const Payload& payload) {
  std::vector<Bytes> blocks;
  for (BlockIndex block = 0; block < SmallLayout()->block_count(); ++block) {
    Bytes& bytes = blocks.emplace_back(SmallLayout()->block_range(block).bytes);
    const PayloadEntry* entry = payload.Find(block);
    if (entry == nullptr) continue;
    const payload::EntryData data{entry, payload.data(*entry)};
    const Result<uint64_t> hash = payload::ApplyEntries({&data, 1}, bytes);
    if (!hash.ok()) {
      CheckRefusal(hash.status(), {ErrorCode::kCorrupt});
      return {};
    }
    LS_FUZZ_RULE(*hash == Hash64(bytes));
  }
  return blocks;
}

void TestBytes(const Bytes& bytes, ByteView input) {
  const auto opened = Payload::Open(*SmallLayout(), {bytes, nullptr});
  if (!opened.ok()) {
    return CheckRefusal(opened.status(), {ErrorCode::kProtocol, ErrorCode::kCorrupt, ErrorCode::kBadData});
  }
  CheckAssembling(**opened);
  const std::vector<Bytes> applied = Applied(**opened);
  const PayloadHeader& header = (*opened)->header();
  Accepted(input, {!applied.empty(), header.entries == 2, header.target > 1'000'000, header.base > 1000});
}

}  // namespace

std::vector<Bytes> Seeds() {
  payload::Changes few{.positions = {3, 30, 31}, .steps = {1, 0xff, 0x80}};
  payload::Changes many;
  for (uint32_t i = 0; i < 64; ++i) {
    many.positions.push_back(3 * i + 2);
    many.steps.push_back(1);
  }
  return {
      HexBlock("common/payload/FORMAT.md", "payload"),
      Assembled({}),
      Assembled({Sparse(1, CodecLevel::kFast, few)}),
      Assembled({Sparse(0, CodecLevel::kCompact, many), Raw(2)}),
  };
}

void TestInput(ByteView input) {
  TestBytes(Copy(input), input);
  TestBytes(Sealed(input), input);
}

}  // namespace lockstep::fuzz
