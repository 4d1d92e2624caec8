// Bringing a block forward: decodes the entries of a chain and adds their steps. Receivers and tests use this one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/payload/payload.h"

namespace lockstep::payload {

struct EntryData {
  const PayloadEntry* entry;
  ByteView data;
};

// Replaces `entries` by those of `block` in the steps of `chain` that start at version `from` or later, oldest first. A
// kRaw one replaces whatever was before it: only the first can be one.
void FindEntries(ChainView chain, BlockIndex block, Version from, std::vector<EntryData>& entries);

// Applies `entries`, at least one and as FindEntries puts them, to the block at `bytes` in place, and answers the hash
// of what comes out: right when it is the last entry's target_hash. kCorrupt, naming the block, for an entry that
// cannot be decoded or is of another size; `bytes` are unspecified then.
Result<uint64_t> ApplyEntries(std::span<const EntryData> entries, std::span<std::byte> bytes);

}  // namespace lockstep::payload
