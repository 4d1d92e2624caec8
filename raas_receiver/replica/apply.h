// Brings the blocks of a replica forward by a chain of deltas.
//
// Cost follows what changed: a block without an entry in any step is neither read nor written, its hash is carried
// over. A block with entries goes through all of its steps while it is in cache, and is then hashed once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"

namespace lockstep::replica {

// The block hashes that `chain` promises for blocks that now have `hashes` and are of `versions`. A block takes the
// steps of a chain that start at its version or later.
std::vector<uint64_t> HashesAfter(payload::ChainView chain, std::span<const Version> versions,
                                  std::vector<uint64_t> hashes);

// Applies `chain` in place to `data`, a whole data section of `layout` with blocks of `versions`. Returns the blocks,
// rising, that do not have the promised hash afterwards. They are damaged and must be replaced in full. REQUIRES
// data.size() == layout.data_bytes().
std::vector<BlockIndex> ApplyChain(const model::ModelLayout& layout, payload::ChainView chain,
                                   std::span<const Version> versions, std::span<std::byte> data, WorkerPool& pool);

// Copies every block of `layout` from one data section to another. Returns the blocks, rising, that do not have their
// hash of `hashes` in the copy. REQUIRES both to be of layout.data_bytes(), and a hash for each block.
std::vector<BlockIndex> CopyBlocks(const model::ModelLayout& layout, std::span<const uint64_t> hashes,
                                   std::span<const std::byte> from, std::span<std::byte> to, WorkerPool& pool);

// Gives every block of `to` its hash of `hashes`: one that lacks it is copied from `from`, and none is overwritten that
// has it. Answers the blocks, rising, that have it in neither. REQUIRES as CopyBlocks.
std::vector<BlockIndex> CompleteBlocks(const model::ModelLayout& layout, std::span<const uint64_t> hashes,
                                       std::span<const std::byte> from, std::span<std::byte> to, WorkerPool& pool);

// The blocks, rising, whose hashes are not those that are recorded. REQUIRES as many of the one as of the other.
std::vector<BlockIndex> Differing(std::span<const uint64_t> hashes, std::span<const uint64_t> recorded);

// The hash of every block of `data`, as it is now. REQUIRES data.size() == layout.data_bytes().
std::vector<uint64_t> HashBlocks(const model::ModelLayout& layout, std::span<const std::byte> data, WorkerPool& pool);

}  // namespace lockstep::replica
