// Functions over a history of the log (v1::LogHistory, FORMAT.md): what readers find in it, and what writers drop.
//
// REQUIRES of every history: CheckHistory (head.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "proto/lockstep/v1/log.pb.h"

namespace lockstep::versionlog {

// The newest chunk `index` that is no newer than `version`; null: there is none.
const v1::LogChunk* FindChunk(const v1::LogHistory& history, uint32_t index, Version version);

// The digest of the version's manifest; nothing: it is none of this history.
std::optional<ManifestDigest> FindDigest(const v1::LogHistory& history, Version version);

// The version that a reader takes: the one that the writer was rolled back to, or the newest.
const v1::LogVersion& Offered(const v1::LogHistory& history);

// Bytes of the deltas from `version` on.
uint64_t StepBytes(const v1::LogHistory& history, Version version);

// The chunks to be renewed, the oldest first, so that no chunk ever lacks more than half a model of deltas, or more
// than kMostSteps, and they do not come due together: of n chunks by age, the i-th oldest may lack (1 - i/n) halves.
// REQUIRES a chunk of each index.
inline constexpr uint64_t kMostSteps = 4096;
std::vector<uint32_t> DueChunks(const v1::LogHistory& history, uint64_t data_bytes);

// Drops the oldest version, and the objects that no other version needs. Returns false, and changes nothing, when only
// the newest is left. REQUIRES a chunk of each index.
bool DropOldest(v1::LogHistory& history);

// An object that a history names.
struct NamedObject {
  std::string_view kind;
  std::string sha256;  // 32 raw bytes
  uint64_t bytes = 0;
};
// By its name. The chunks are of `data_bytes` in all.
void AddObjects(const v1::LogHistory& history, std::string_view model, uint64_t data_bytes,
                std::map<std::string, NamedObject>& objects);
std::set<std::string> ObjectNames(const v1::LogHead& head);

// Bytes of deltas, as DueChunks counts them, and of chunks of `data_bytes` in all; one that lies there under one name
// twice counts once.
uint64_t StoredBytes(const v1::LogHistory& history, uint64_t data_bytes);

// How many chunks all of the data section has, and how long chunk `index` is.
uint64_t ChunkCount(const v1::LogHistory& history, uint64_t data_bytes);
ByteRange ChunkRange(const v1::LogHistory& history, uint32_t index, uint64_t data_bytes);

}  // namespace lockstep::versionlog
