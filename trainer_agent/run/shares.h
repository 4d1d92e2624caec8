// Shares: which bytes of a version each rank writes, as the ranks say when they connect, and which blocks of a draft
// are whole.
//
// A rank's share is a list of batches (wire::Share): each batch is some ranges of the data section, which the rank
// reports together. ProveShares() shows once that the batches of all ranks have every byte exactly once. From then on a
// report is the number of a batch, and a block is whole when each range with a byte of the block was reported.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/layout.h"
#include "common/wire/rank_messages.h"

namespace lockstep::run {

// Pieces that a proof looks at: ranges, cut where tensors end, and single rows where a tensor's rows have two pitches.
inline constexpr size_t kMaxSharePieces = size_t{1} << 24;
// Blocks that a version's reports count, each for every range with a byte of the block.
inline constexpr uint64_t kMaxShareSteps = uint64_t{1} << 31;

// Proves that `shares`, of rank 0 and up, have every byte of `layout` exactly once. The cost follows the number of
// ranges, not of rows.
//   kBadData: no rows, rows that overlap each other, bytes outside the data section; bytes that two batches have, or
//     none. The error names the tensor and the ranks.
//   kResourceExhausted: over one of the limits above.
Status ProveShares(const model::ModelLayout& layout, const std::vector<const wire::Share*>& shares);

// The shares of the ranks of one run. Not thread-safe.
class Shares {
 public:
  Shares(std::shared_ptr<const model::ModelLayout> layout, uint32_t ranks)
      : layout_(std::move(layout)), shares_(ranks) {}

  const model::ModelLayout& layout() const { return *layout_; }
  const wire::Share* Find(uint32_t rank) const { return shares_[rank].get(); }  // null: not known

  // Sets the share of `rank`. Errors as ProveShares(), once all are known; the rank's is not known then.
  Status Set(uint32_t rank, wire::Share share);
  void Forget(uint32_t rank);

  // For each block, how often a draft's reports count it: for each range with a byte of the block, and for each such
  // row of a range whose rows lie in blocks apart. No value while a share is not known.
  const std::optional<std::vector<uint32_t>>& ranges_of_blocks() const { return ranges_of_blocks_; }

 private:
  const std::shared_ptr<const model::ModelLayout> layout_;
  std::vector<std::unique_ptr<const wire::Share>> shares_;  // by rank
  std::optional<std::vector<uint32_t>> ranges_of_blocks_;
};

// How a rank reports a batch as final.
enum class Content : uint8_t {
  kNew,        // the bytes may be anything
  kUnchanged,  // the bytes equal those of the other slot, which holds the version before
};

struct CompletedBlocks {
  std::vector<BlockIndex> changed;    // with a byte reported as new
  std::vector<BlockIndex> unchanged;  // every byte was reported as unchanged
};

// What the ranks reported of one draft. Blocks are counted from the moment on at which all shares are known. Not
// thread-safe.
class DraftProgress {
 public:
  // REQUIRES the shares to outlive this, and no share of a rank that reported something to change.
  explicit DraftProgress(const Shares* shares) : shares_(shares) { (void)Count(); }

  // Marks batches of `rank` as final, and returns the blocks that this completes. kBadData: there is no such batch, or
  // it was reported before.
  Result<CompletedBlocks> Report(uint32_t rank, std::span<const uint32_t> batches, Content content);
  // Starts to count blocks if all shares are known by now, and returns those that are whole already.
  CompletedBlocks Count();
  // kBadData names a tensor of `rank` with a batch that was not reported. REQUIRES the share of `rank` to be known.
  Status CheckWhole(uint32_t rank) const;

 private:
  enum class BatchState : uint8_t { kMissing, kNew, kUnchanged };

  // Where the batch begins, for an error.
  std::string PlaceOf(uint32_t rank, uint32_t batch) const;
  void CountBatch(uint32_t rank, uint32_t batch, BatchState state, CompletedBlocks& completed);

  const Shares* const shares_;
  std::map<uint32_t, std::vector<BatchState>> reported_;  // by rank
  std::vector<uint32_t> missing_;                         // ranges of each block; empty: blocks are not counted yet
  std::vector<bool> changed_;                             // by block: some range was reported as new
};

}  // namespace lockstep::run
