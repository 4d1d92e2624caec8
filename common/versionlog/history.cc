#include "common/versionlog/history.h"

#include <algorithm>
#include <cmath>

#include "common/base/text.h"
#include "common/versionlog/head.h"

namespace lockstep::versionlog {
namespace {

// The newest chunk of each index.
std::vector<const v1::LogChunk*> NewestChunks(const v1::LogHistory& history) {
  std::vector<const v1::LogChunk*> newest;
  for (const v1::LogChunk& chunk : history.chunks()) {
    if (newest.size() <= chunk.index()) newest.resize(chunk.index() + 1);
    newest[chunk.index()] = &chunk;
  }
  return newest;
}

void AddPieces(const v1::LogBytes& whole, std::string_view model, std::string_view kind,
               std::map<std::string, NamedObject>& objects) {
  for (int i = 0; i < whole.pieces_size(); ++i) {
    const uint64_t bytes = std::min(whole.piece_bytes(), whole.bytes() - i * whole.piece_bytes());
    objects.insert({ObjectName(model, kind, whole.pieces(i)), {kind, whole.pieces(i), bytes}});
  }
}

// By version: what the deltas from it on count for. Each is a request and a line of the head, however small it is.
std::map<Version, uint64_t> CostsFrom(const v1::LogHistory& history, uint64_t data_bytes) {
  uint64_t cost = 0;
  std::map<Version, uint64_t> costs{{history.newest().version(), 0}};
  for (int i = history.steps_size() - 1; i >= 0; --i) {
    cost += std::max(history.steps(i).payload().bytes(), data_bytes / (2 * kMostSteps));
    costs[history.steps(i).base()] = cost;
  }
  return costs;
}

}  // namespace

const v1::LogChunk* FindChunk(const v1::LogHistory& history, uint32_t index, Version version) {
  const auto after = std::ranges::upper_bound(
      history.chunks(), std::pair(index, version), {},
      [](const v1::LogChunk& chunk) { return std::pair(chunk.index(), Version{chunk.version()}); });
  if (after == history.chunks().begin() || std::prev(after)->index() != index) return nullptr;
  return &*std::prev(after);
}

std::optional<ManifestDigest> FindDigest(const v1::LogHistory& history, Version version) {
  if (version == history.newest().version()) return ManifestDigest{*Bytes16(history.newest().manifest_digest())};
  const auto step =
      std::ranges::find_if(history.steps(), [&](const v1::LogStep& each) { return each.base() == version; });
  if (step == history.steps().end()) return std::nullopt;
  return ManifestDigest{*Bytes16(step->base_digest())};
}

const v1::LogVersion& Offered(const v1::LogHistory& history) {
  return history.has_current() ? history.current() : history.newest();
}

uint64_t StepBytes(const v1::LogHistory& history, Version version) {
  uint64_t bytes = 0;
  for (const v1::LogStep& step : history.steps()) {
    if (step.base() >= version) bytes += step.payload().bytes();
  }
  return bytes;
}

std::vector<uint32_t> DueChunks(const v1::LogHistory& history, uint64_t data_bytes) {
  std::vector<const v1::LogChunk*> chunks = NewestChunks(history);
  std::ranges::stable_sort(chunks, {}, [](const v1::LogChunk* chunk) { return chunk->version(); });
  const std::map<Version, uint64_t> costs = CostsFrom(history, data_bytes);
  const double n = static_cast<double>(chunks.size());
  size_t due = 0;  // so many of the oldest
  for (size_t i = 0; i < chunks.size(); ++i) {
    const double halves = static_cast<double>(costs.at(chunks[i]->version())) / (data_bytes / 2.0);
    const double needed = std::ceil(static_cast<double>(i) - n * (1 - halves));
    if (needed > 0) due = std::max(due, std::min(i + 1, static_cast<size_t>(needed)));
  }
  std::vector<uint32_t> indices;
  for (size_t i = 0; i < due; ++i) indices.push_back(chunks[i]->index());
  return indices;
}

bool DropOldest(v1::LogHistory& history) {
  const auto step =
      std::ranges::find_if(history.steps(), [&](const v1::LogStep& each) { return each.base() == history.oldest(); });
  if (step == history.steps().end()) return false;
  history.set_oldest(step->target().version());
  if (history.current().version() < history.oldest()) history.clear_current();
  // Of each index the newest chunk that the oldest version can be made from, and those after it.
  v1::LogHistory kept;
  Version first = history.newest().version();
  for (const v1::LogChunk& chunk : history.chunks()) {
    const v1::LogChunk* base = FindChunk(history, chunk.index(), history.oldest());
    if (chunk.version() < base->version()) continue;
    first = std::min<Version>(first, chunk.version());
    *kept.add_chunks() = chunk;
  }
  history.mutable_chunks()->Swap(kept.mutable_chunks());
  int before = 0;
  while (before < history.steps_size() && history.steps(before).base() < first) ++before;
  history.mutable_steps()->DeleteSubrange(0, before);
  return true;
}

void AddObjects(const v1::LogHistory& history, std::string_view model, uint64_t data_bytes,
                std::map<std::string, NamedObject>& objects) {
  AddPieces(history.layout(), model, kLayout, objects);
  AddPieces(history.manifest(), model, kManifest, objects);
  for (const v1::LogStep& step : history.steps()) AddPieces(step.payload(), model, kDelta, objects);
  for (const v1::LogChunk& chunk : history.chunks()) {
    const uint64_t bytes = ChunkRange(history, chunk.index(), data_bytes).bytes;
    objects.insert({ObjectName(model, kChunk, chunk.sha256()), {kChunk, chunk.sha256(), bytes}});
  }
}

std::set<std::string> ObjectNames(const v1::LogHead& head) {
  std::map<std::string, NamedObject> objects;
  AddObjects(head.history(), head.model(), 0, objects);
  AddObjects(head.next(), head.model(), 0, objects);
  std::set<std::string> names;
  for (const auto& [name, object] : objects) names.insert(name);
  return names;
}

uint64_t StoredBytes(const v1::LogHistory& history, uint64_t data_bytes) {
  uint64_t bytes = CostsFrom(history, data_bytes).begin()->second;
  std::set<std::string_view> counted;
  for (const v1::LogChunk& chunk : history.chunks()) {
    if (counted.insert(chunk.sha256()).second) bytes += ChunkRange(history, chunk.index(), data_bytes).bytes;
  }
  return bytes;
}

uint64_t ChunkCount(const v1::LogHistory& history, uint64_t data_bytes) {
  return (data_bytes + history.chunk_bytes() - 1) / history.chunk_bytes();
}

ByteRange ChunkRange(const v1::LogHistory& history, uint32_t index, uint64_t data_bytes) {
  const uint64_t offset = std::min(data_bytes, index * history.chunk_bytes());
  return {offset, std::min(history.chunk_bytes(), data_bytes - offset)};
}

}  // namespace lockstep::versionlog
