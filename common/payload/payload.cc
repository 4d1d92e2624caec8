#include "common/payload/payload.h"

#include <algorithm>
#include <cstddef>

#include "common/base/text.h"
#include "kernels/hash.h"

namespace lockstep::payload {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'D', 'E', 'L', 'T', 'A', '2'};

uint64_t HeaderHash(const PayloadHeader& header) {
  return Hash64(&header, offsetof(PayloadHeader, header_hash));
}

PayloadHeader MakeHeader(const model::ModelLayout& layout, const PayloadIdentity& identity) {
  PayloadHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.format = kPayloadFormat;
  header.header_bytes = sizeof(PayloadHeader);
  header.entry_bytes = sizeof(PayloadEntry);
  header.run = identity.run;
  header.layout = layout.digest();
  header.base = identity.base;
  header.target = identity.target;
  header.base_digest = identity.base_digest;
  header.target_digest = identity.target_digest;
  header.block_bytes = layout.block_bytes();
  header.block_count = layout.block_count();
  header.versions = 1;
  header.committed_unix_ns = identity.committed_unix_ns;
  return header;
}

// Puts the blocks in rising order. kBadData unless each is inside the layout and given once.
Status PutInOrder(const model::ModelLayout& layout, std::vector<const DeltaBlock*>& order) {
  std::sort(order.begin(), order.end(), [](const DeltaBlock* a, const DeltaBlock* b) { return a->block < b->block; });
  for (size_t i = 0; i < order.size(); ++i) {
    const BlockIndex block = order[i]->block;
    if (block >= layout.block_count()) {
      return {ErrorCode::kBadData, Cat("delta block ", block, " is outside the layout's ", layout.block_count())};
    }
    if (i > 0 && order[i - 1]->block == block) {
      return {ErrorCode::kBadData, Cat("delta block ", block, " is given twice")};
    }
  }
  return OkStatus();
}

Payload::Allocator HeapAllocator() {
  return [](size_t bytes) -> Result<std::pair<std::span<std::byte>, std::shared_ptr<const void>>> {
    // All of it is written: not cleared first.
    const auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
    return std::pair(std::span(memory.get(), bytes), std::shared_ptr<const void>(memory));
  };
}

Status CheckHeader(const PayloadHeader& header, const model::ModelLayout& layout, size_t total_bytes) {
  // The last character is the format's: what differs there alone is a payload of another one.
  if (std::memcmp(header.magic, kMagic, sizeof kMagic - 1) != 0) {
    return {ErrorCode::kProtocol, "payload: no payload magic"};
  }
  if (header.format != kPayloadFormat) {
    return {ErrorCode::kProtocol, Cat("payload: format ", header.format, " is not known here (known: ", kPayloadFormat,
                                      "); use matching releases on both ends")};
  }
  if (HeaderHash(header) != header.header_hash) return {ErrorCode::kCorrupt, "payload: its header fails its hash"};
  if (header.magic[7] != kMagic[7] || header.header_bytes != sizeof(PayloadHeader) ||
      header.entry_bytes != sizeof(PayloadEntry) || header.reserved != 0 || header.versions != 1) {
    return {ErrorCode::kProtocol, Cat("payload: its header is none of format ", kPayloadFormat)};
  }
  if (header.layout != layout.digest() || header.block_count != layout.block_count() ||
      header.block_bytes != layout.block_bytes()) {
    return {ErrorCode::kBadData,
            Cat("payload: made for layout ", ToHex(header.layout), ", not ", ToHex(layout.digest()))};
  }
  if (header.base == 0 || header.base >= header.target) {
    return {ErrorCode::kProtocol, Cat("payload: goes from version ", header.base, " to ", header.target)};
  }
  const uint64_t table_bytes = uint64_t{header.entries} * sizeof(PayloadEntry);
  if (header.entries > header.block_count || header.data_bytes > total_bytes ||
      sizeof(PayloadHeader) + table_bytes + header.data_bytes != total_bytes) {
    return {ErrorCode::kCorrupt, Cat("payload: ", total_bytes, " bytes do not hold what its header says")};
  }
  return OkStatus();
}

Status CheckEntries(const Payload& payload, const model::ModelLayout& layout) {
  const auto corrupt = [](const PayloadEntry& entry, const char* problem) {
    return Status(ErrorCode::kCorrupt, Cat("payload: block ", entry.block, ": ", problem));
  };
  const std::span<const PayloadEntry> entries = payload.entries();
  if (Hash64(std::as_bytes(entries)) != payload.header().entries_hash) {
    return {ErrorCode::kCorrupt, "payload: its entry table fails its hash"};
  }
  uint64_t offset = 0;
  uint64_t changes = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PayloadEntry& entry = entries[i];
    if (entry.block >= layout.block_count() || (i > 0 && entry.block <= entries[i - 1].block)) {
      return corrupt(entry, "out of order or outside the layout");
    }
    if (entry.offset != offset || entry.bytes > payload.header().data_bytes - offset)
      return corrupt(entry, "out of bounds");
    if (entry.bytes == 0 || entry.bytes > layout.block_range(entry.block).bytes)
      return corrupt(entry, "an impossible size");
    if (entry.codec != static_cast<uint8_t>(Codec::kRaw) && entry.codec != static_cast<uint8_t>(Codec::kSparse)) {
      return corrupt(entry, "an unknown codec");
    }
    if (entry.reserved != 0) return corrupt(entry, "its reserved bytes are not 0");
    if (entry.unit != layout.block_unit(entry.block)) return corrupt(entry, "its unit is not the layout's");
    if (Hash64(payload.data(entry)) != entry.data_hash) return corrupt(entry, "its data fails its hash");
    offset += entry.bytes;
    changes += entry.changes;
  }
  if (offset != payload.header().data_bytes) return {ErrorCode::kCorrupt, "payload: bytes after the last entry"};
  if (changes != payload.header().changed_elements) {
    return {ErrorCode::kCorrupt, Cat("payload: its entries have ", changes, " changed elements, not ",
                                     payload.header().changed_elements, " as its header says")};
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const Payload>> Payload::Assemble(const model::ModelLayout& layout,
                                                         const PayloadIdentity& identity,
                                                         std::span<const DeltaBlock> blocks,
                                                         const Allocator& allocate) {
  std::vector<const DeltaBlock*> order;
  order.reserve(blocks.size());
  for (const DeltaBlock& block : blocks) order.push_back(&block);
  return Assemble(layout, identity, std::move(order), allocate);
}

Result<std::shared_ptr<const Payload>> Payload::Assemble(const model::ModelLayout& layout,
                                                         const PayloadIdentity& identity,
                                                         std::vector<const DeltaBlock*> order,
                                                         const Allocator& allocate) {
  LS_RETURN_IF_ERROR(PutInOrder(layout, order));
  PayloadHeader header = MakeHeader(layout, identity);
  header.entries = static_cast<uint32_t>(order.size());
  for (const DeltaBlock* block : order) {
    header.data_bytes += block->bytes().size();
    header.changed_elements += block->changes;
  }
  const size_t table_bytes = order.size() * sizeof(PayloadEntry);
  const size_t total = sizeof header + table_bytes + header.data_bytes;
  LS_ASSIGN_OR_RETURN(auto memory, allocate ? allocate(total) : HeapAllocator()(total));
  std::byte* const table = memory.first.data() + sizeof header;
  std::byte* const data = table + table_bytes;
  uint64_t offset = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const DeltaBlock& block = *order[i];
    const PayloadEntry entry{.block = block.block,
                             .codec = static_cast<uint8_t>(block.codec),
                             .unit = static_cast<uint8_t>(layout.block_unit(block.block)),
                             .reserved = 0,
                             .bytes = static_cast<uint32_t>(block.bytes().size()),
                             .changes = block.changes,
                             .offset = offset,
                             .target_hash = block.target_hash,
                             .data_hash = block.data_hash};
    std::memcpy(table + i * sizeof entry, &entry, sizeof entry);
    std::memcpy(data + offset, block.bytes().data(), block.bytes().size());
    offset += block.bytes().size();
  }
  header.entries_hash = Hash64(table, table_bytes);
  header.header_hash = HeaderHash(header);
  std::memcpy(memory.first.data(), &header, sizeof header);
  return std::shared_ptr<const Payload>(new Payload({memory.first, std::move(memory.second)}));
}

Result<std::shared_ptr<const Payload>> Payload::Open(const model::ModelLayout& layout, Storage storage) {
  if (storage.bytes.size() < sizeof(PayloadHeader)) return Status(ErrorCode::kCorrupt, "payload: truncated header");
  std::shared_ptr<const Payload> payload(new Payload(std::move(storage)));
  LS_RETURN_IF_ERROR(CheckHeader(payload->header(), layout, payload->total_bytes()));
  LS_RETURN_IF_ERROR(CheckEntries(*payload, layout));
  return payload;
}

std::span<const PayloadEntry> Payload::entries() const {
  return {reinterpret_cast<const PayloadEntry*>(storage_.bytes.data() + sizeof(PayloadHeader)), header().entries};
}

ByteView Payload::data(const PayloadEntry& entry) const {
  const size_t data_at = sizeof(PayloadHeader) + size_t{header().entries} * sizeof(PayloadEntry);
  return storage_.bytes.subspan(data_at + entry.offset, entry.bytes);
}

const PayloadEntry* Payload::Find(BlockIndex block) const {
  const auto all = entries();
  const auto at = std::lower_bound(all.begin(), all.end(), block,
                                   [](const PayloadEntry& entry, BlockIndex wanted) { return entry.block < wanted; });
  return at != all.end() && at->block == block ? &*at : nullptr;
}

}  // namespace lockstep::payload
