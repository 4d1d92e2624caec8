// Payload: one immutable delta from version `base` to version `target` of a run: header, entry per differing block,
// data.
//
// A payload is one contiguous piece of memory in the format of FORMAT.md, made once and served to any number of
// receivers. A receiver assembles the same object from the frames it gets. Blocks without an entry are equal in both
// versions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/payload/block_codec.h"

namespace lockstep::payload {

inline constexpr uint16_t kPayloadFormat = 2;

struct PayloadHeader {    // 152 bytes, FORMAT.md "Header"
  char magic[8];          // "LSDELTA2"
  uint16_t format;        // kPayloadFormat
  uint16_t header_bytes;  // sizeof(PayloadHeader)
  uint16_t entry_bytes;   // sizeof(PayloadEntry)
  uint16_t reserved;      // 0
  RunId run;
  LayoutDigest layout;
  uint64_t base;
  uint64_t target;
  ManifestDigest base_digest;
  ManifestDigest target_digest;
  uint32_t block_bytes;
  uint32_t block_count;  // of the layout
  uint32_t entries;
  uint32_t versions;  // 1
  uint64_t data_bytes;
  uint64_t changed_elements;
  int64_t committed_unix_ns;  // of the target
  uint64_t entries_hash;      // xxh3-64 of the entry table
  uint64_t header_hash;       // xxh3-64 of the bytes before this field
};
static_assert(sizeof(PayloadHeader) == 152);

struct PayloadEntry {  // 40 bytes, in rising block order
  uint32_t block;
  uint8_t codec;         // Codec
  uint8_t unit;          // the layout's unit for this block
  uint16_t reserved;     // 0
  uint32_t bytes;        // of coded data
  uint32_t changes;      // changed elements
  uint64_t offset;       // into the data, entries back to back
  uint64_t target_hash;  // xxh3-64 of the block's new bytes
  uint64_t data_hash;    // xxh3-64 of the coded data
};
static_assert(sizeof(PayloadEntry) == 40);

inline bool IsRaw(const PayloadEntry& entry) {
  return entry.codec == static_cast<uint8_t>(Codec::kRaw);
}

// The names of a delta, before its entries are known.
struct PayloadIdentity {
  RunId run;
  Version base = 0;
  Version target = 0;
  ManifestDigest base_digest;
  ManifestDigest target_digest;
  int64_t committed_unix_ns = 0;
};

// One differing block on its way into a payload.
struct DeltaBlock {
  BlockIndex block = 0;
  Codec codec = Codec::kRaw;
  uint32_t changes = 0;
  uint64_t target_hash = 0;
  uint64_t data_hash = 0;  // xxh3-64 of bytes()
  Bytes data;
  ByteView lent;  // instead of `data`: memory of the maker, which says for how long

  ByteView bytes() const { return lent.empty() ? ByteView(data) : lent; }
};

class Payload {
 public:
  // The payload's bytes, wherever they live; the owner is kept alive by `keepalive`.
  struct Storage {
    ByteView bytes;
    std::shared_ptr<const void> keepalive;
  };

  // Assembles `blocks` (any order, each block once, made for `layout`). Memory is taken from `allocate(bytes)`, plain
  // heap when it is null. kBadData for a block outside the layout or given twice.
  using Allocator = std::function<Result<std::pair<std::span<std::byte>, std::shared_ptr<const void>>>(size_t bytes)>;
  static Result<std::shared_ptr<const Payload>> Assemble(const model::ModelLayout& layout,
                                                         const PayloadIdentity& identity,
                                                         std::vector<const DeltaBlock*> blocks,
                                                         const Allocator& allocate = {});
  static Result<std::shared_ptr<const Payload>> Assemble(const model::ModelLayout& layout,
                                                         const PayloadIdentity& identity,
                                                         std::span<const DeltaBlock> blocks,
                                                         const Allocator& allocate = {});

  // Checks and adopts stored bytes: magic, format, layout, order and bounds of the entries, every hash, every sum.
  // kCorrupt or kProtocol; kBadData: it was made for another layout.
  static Result<std::shared_ptr<const Payload>> Open(const model::ModelLayout& layout, Storage storage);

  const PayloadHeader& header() const { return *reinterpret_cast<const PayloadHeader*>(storage_.bytes.data()); }
  VersionRef base() const { return {header().run, header().base}; }
  VersionRef target() const { return {header().run, header().target}; }
  std::span<const PayloadEntry> entries() const;
  ByteView data(const PayloadEntry& entry) const;
  const PayloadEntry* Find(BlockIndex block) const;  // null: the block is equal in both versions
  ByteView bytes() const { return storage_.bytes; }  // the whole of it
  size_t total_bytes() const { return storage_.bytes.size(); }

 private:
  explicit Payload(Storage storage) : storage_(std::move(storage)) {}

  Storage storage_;
};

// Consecutive steps of one run and layout, oldest first.
using DeltaChain = std::vector<std::shared_ptr<const Payload>>;
using ChainView = std::span<const std::shared_ptr<const Payload>>;

}  // namespace lockstep::payload
