#include "raas_receiver/placement/writes/translate.h"

#include <algorithm>
#include <bit>

#include "common/base/text.h"
#include "common/payload/block_codec.h"

namespace lockstep::placement {
namespace {

// A unit of a list is an offset and a value. From this part of a block on, the list is not worth it.
constexpr uint64_t kWholeBlockRatio = 6;

bool ListIsWorthIt(size_t units, uint32_t unit, uint64_t block_bytes) {
  return units * (sizeof(uint32_t) + unit) * kWholeBlockRatio < block_bytes;
}

// Positions of several steps, each once: a bit for each unit of a block.
class PositionSet {
 public:
  void Add(std::span<const uint32_t> positions) {
    for (const uint32_t position : positions) words_[position / 64] |= uint64_t{1} << (position % 64);
  }

  // Takes all out, rising.
  void Drain(std::vector<uint32_t>& positions) {
    positions.clear();
    for (uint32_t word = 0; word < words_.size(); ++word) {
      for (uint64_t bits = words_[word]; bits != 0; bits &= bits - 1) {
        positions.push_back(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
      }
      words_[word] = 0;
    }
  }

  void Clear() { std::fill(words_.begin(), words_.end(), 0); }

 private:
  std::vector<uint64_t> words_ = std::vector<uint64_t>(model::kMaxBlockBytes / 64);
};

// The first of `positions` after `from` that is not below `limit`. Runs are often a few units, or all that are
// left.
size_t EndOfByteRun(std::span<const uint32_t> positions, size_t from, uint64_t limit) {
  if (positions.back() < limit) return positions.size();
  size_t low = from + 1;
  size_t step = 1;
  while (low + step < positions.size() && positions[low + step] < limit) {
    low += step;
    step *= 2;
  }
  const auto first = positions.begin() + static_cast<ptrdiff_t>(low);
  const auto last = positions.begin() + static_cast<ptrdiff_t>(std::min(low + step, positions.size()));
  return static_cast<size_t>(std::lower_bound(first, last, limit) - positions.begin());
}

}  // namespace

struct Translator::Scratch {
  std::vector<uint32_t> positions;
  PositionSet set;
  bool whole = false;  // the block is to be copied; else `positions` are what changes
  WriteListBuilder builder;
};

Result<WriteList> Translator::Translate(std::span<const BlockIndex> blocks) const {
  thread_local Scratch scratch;
  scratch.builder.SetBuffers(buffers_);
  ScatterCursor cursor(index_);
  for (const BlockIndex block : blocks) {
    const Status status = AddBlock(block, cursor, scratch);
    if (status.ok()) continue;
    scratch.builder.Clear();
    return status;
  }
  return scratch.builder.Finish();
}

Status Translator::AddBlock(BlockIndex block, ScatterCursor& cursor, Scratch& scratch) const {
  const ByteRange range = layout_.block_range(block);
  const uint32_t unit = layout_.block_unit(block);
  LS_RETURN_IF_ERROR(FindPositions(block, scratch));
  if (!scratch.whole && ListIsWorthIt(scratch.positions.size(), unit, range.bytes)) {
    AddUnits(range, unit, cursor, scratch);
    return OkStatus();
  }
  const uint64_t bytes = CopiesOfRange(
      index_, range, [&](uint32_t buffer, const layout::StridedCopy& copy) { scratch.builder.AddCopy(buffer, copy); });
  scratch.builder.CountPositions(bytes / unit);
  return OkStatus();
}

Status Translator::FindPositions(BlockIndex block, Scratch& scratch) const {
  const uint64_t bytes = layout_.block_range(block).bytes;
  const uint32_t unit = layout_.block_unit(block);
  scratch.whole = false;
  size_t entries = 0;
  for (const auto& step : chain_) {
    const payload::PayloadEntry* entry = step->Find(block);
    if (entry == nullptr) continue;
    if (entry->codec == static_cast<uint8_t>(payload::Codec::kRaw)) {
      scratch.whole = true;
      continue;
    }
    if (entries++ == 1) scratch.set.Add(scratch.positions);
    const Status status = payload::DecodePositions(step->data(*entry), unit, bytes, scratch.positions);
    if (!status.ok()) {
      scratch.set.Clear();
      return status.WithContext(Cat("version ", step->target().version, ", block ", block));
    }
    if (entries > 1) scratch.set.Add(scratch.positions);
  }
  if (entries > 1) scratch.set.Drain(scratch.positions);
  return OkStatus();
}

void Translator::AddUnits(ByteRange range, uint32_t unit, ScatterCursor& cursor, Scratch& scratch) const {
  std::vector<uint32_t>& positions = scratch.positions;
  for (uint32_t& position : positions) position *= unit;
  for (size_t from = 0; from < positions.size();) {
    const ByteRun run = cursor.At(range.offset + positions[from]);
    const size_t to = EndOfByteRun(positions, from, run.end - range.offset);
    const std::span<const uint32_t> units = std::span(positions).subspan(from, to - from);
    from = to;
    for (const TargetOffset& target : run.targets) {
      const uint64_t to_byte = range.offset + target.shift + run.row * target.row_shift;
      if (&target == run.targets.data()) {
        scratch.builder.Add(target.buffer, unit, data_.data() + range.offset, to_byte, units);
      } else {
        scratch.builder.AddAgain(target.buffer, unit, to_byte, units);
      }
    }
    if (!run.targets.empty()) scratch.builder.CountPositions(units.size());
  }
}

Result<std::vector<BlockIndex>> Translator::Blocks() const {
  std::vector<bool> touched(layout_.block_count());
  for (const auto& step : chain_) {
    for (const payload::PayloadEntry& entry : step->entries()) {
      if (entry.block >= layout_.block_count()) {
        return Status(ErrorCode::kCorrupt, Cat("version ", step->target().version, " changes block ", entry.block,
                                               " of ", layout_.block_count()));
      }
      touched[entry.block] = true;
    }
  }
  std::vector<BlockIndex> blocks;
  for (BlockIndex block = 0; block < layout_.block_count(); ++block) {
    if (touched[block]) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace lockstep::placement
