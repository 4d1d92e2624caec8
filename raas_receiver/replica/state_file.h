// The state file: says which version a replica file holds, and lies next to it (FORMAT.md, "replica-K.state").
//
// The file exists only while its replica is whole: it is removed before the replica's first byte changes and written
// after the last one was verified. So a decoded state is a claim about the replica's bytes, to be proved by hashing
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/model/manifest.h"

namespace lockstep::replica {

inline constexpr uint16_t kReplicaStateFormat = 1;

struct ReplicaStateHeader {  // 88 bytes
  char magic[8];             // "LSREPL01"
  uint16_t format;           // kReplicaStateFormat
  uint16_t header_bytes;     // sizeof(ReplicaStateHeader)
  uint32_t block_count;
  RunId run;
  uint64_t version;
  LayoutDigest layout_digest;
  ManifestDigest manifest_digest;
  int64_t committed_unix_ns;
  uint64_t layout_bytes;
};
static_assert(sizeof(ReplicaStateHeader) == 88);

struct ReplicaState {
  std::shared_ptr<const model::ModelLayout> layout;
  model::Manifest manifest;
  int64_t committed_unix_ns = 0;  // of the manifest's version, by the trainer's clock
  std::string label = {};         // what the trainer calls that version; empty: nothing
};

// The most bytes that EncodeReplicaState makes of a version of `layout`.
uint64_t MaxReplicaStateBytes(const model::ModelLayout& layout);

Bytes EncodeReplicaState(const ReplicaState& state);

// kProtocol for another format, kCorrupt for anything else that EncodeReplicaState would not have written; for its
// layout as ModelLayout::Decode.
Result<ReplicaState> DecodeReplicaState(ByteView encoded);

// Replaces the file at `path` in one step: written under another name, synced, renamed.
Status WriteReplicaState(const std::string& path, const ReplicaState& state);

// kNotFound when there is no such file; otherwise as DecodeReplicaState, naming the path.
Result<ReplicaState> ReadReplicaState(const std::string& path);

}  // namespace lockstep::replica
