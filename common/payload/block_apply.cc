#include "common/payload/block_apply.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/text.h"
#include "common/model/manifest.h"
#include "kernels/apply.h"

namespace lockstep::payload {
namespace {

// So many steps of a block are added in one pass over it. More would keep more decoded than it is worth.
constexpr size_t kStepsAtOnce = 4;

Status CopyRaw(const EntryData& raw, std::span<std::byte> bytes) {
  if (raw.data.size() != bytes.size()) {
    return {ErrorCode::kCorrupt,
            Cat("block ", raw.entry->block, ": ", raw.data.size(), " raw bytes for a block of ", bytes.size())};
  }
  std::memcpy(bytes.data(), raw.data.data(), bytes.size());
  return OkStatus();
}

// At most kStepsAtOnce. All are decoded before the first is added: then the block comes from memory once.
Result<uint64_t> AddEntries(std::span<const EntryData> entries, std::span<std::byte> bytes) {
  thread_local std::array<Changes, kStepsAtOnce> changes;  // kept at full size
  const uint32_t unit = entries.front().entry->unit;
  std::array<kernels::BlockChanges, kStepsAtOnce> deltas;
  kernels::FetchFront(bytes.data(), bytes.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const Status decoded = DecodeSparse(entries[i].data, unit, bytes.size(), changes[i]);
    if (!decoded.ok()) return decoded.WithContext(Cat("block ", entries[i].entry->block));
    deltas[i] = {changes[i].positions.data(), changes[i].steps.data(), changes[i].size()};
  }
  return kernels::AddStepsAndHash(bytes.data(), bytes.size(), unit, std::span(deltas).first(entries.size()));
}

}  // namespace

void FindEntries(ChainView chain, BlockIndex block, Version from, std::vector<EntryData>& entries) {
  entries.clear();
  for (const auto& step : chain) {
    const PayloadEntry* entry = step->base().version >= from ? step->Find(block) : nullptr;
    if (entry == nullptr) continue;
    if (IsRaw(*entry)) entries.clear();
    entries.push_back({entry, step->data(*entry)});
  }
}

Result<uint64_t> ApplyEntries(std::span<const EntryData> entries, std::span<std::byte> bytes) {
  if (IsRaw(*entries.front().entry)) {
    LS_RETURN_IF_ERROR(CopyRaw(entries.front(), bytes));
    entries = entries.subspan(1);
    if (entries.empty()) return model::BlockHash(bytes);
  }
  uint64_t hash = 0;
  for (; !entries.empty(); entries = entries.subspan(std::min(entries.size(), kStepsAtOnce))) {
    LS_ASSIGN_OR_RETURN(hash, AddEntries(entries.first(std::min(entries.size(), kStepsAtOnce)), bytes));
  }
  return hash;
}

}  // namespace lockstep::payload
