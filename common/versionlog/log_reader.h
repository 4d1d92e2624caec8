// LogReader: a model's log, read and proved: its head, layouts, deltas, and the blocks of any version that it has.
//
// Anything may have been written there: an object counts only once its SHA-256 is its name. An object that the head
// named and that is not there makes the head be read again: kAborted, the log has moved on and what is wanted is to be
// asked for again; kCorrupt, the object is lost. Every error names the object.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/objects/object_store.h"
#include "common/payload/payload.h"
#include "common/versionlog/keys.h"
#include "proto/lockstep/v1/log.pb.h"

namespace lockstep::versionlog {

using Head = std::shared_ptr<const v1::LogHead>;

inline constexpr uint64_t kLogMemoryBytes = 256 << 20;  // of deltas at once, unless a reader is told otherwise

class BlockMaker;

// Blocks of one version, made from a chunk and the deltas after it.
struct BlocksToMake {
  std::vector<BlockIndex> blocks;  // rising
  // Where the bytes of a block go, writable until the call returns; called by several threads.
  std::function<std::span<std::byte>(BlockIndex)> place_of;
  // Called for each block that was made, with its hash; by several threads.
  std::function<Status(BlockIndex, uint64_t hash)> on_made;
};

// Thread-safe.
class LogReader {
 public:
  // `transfers` runs reads of the store, a thread each, `workers` what costs CPU; both outlive the reader. Of deltas
  // that MakeBlocks reads, `memory_bytes` are in memory at once, and two at least.
  LogReader(std::shared_ptr<objects::ObjectStore> store, std::string model, TrustedKeys trusted, WorkerPool& transfers,
            WorkerPool& workers, uint64_t memory_bytes = kLogMemoryBytes)
      : store_(std::move(store)),
        model_(std::move(model)),
        trusted_(std::move(trusted)),
        transfers_(transfers),
        workers_(workers),
        memory_bytes_(memory_bytes) {}

  const std::string& url() const { return store_->url(); }

  // The head as it is now. kNotFound: there is none yet. kState, and it is not taken: it does not follow the one that
  // was taken last (CheckFollows). kPermission without keys: other users may write it (ObjectStore::CheckOwn). Else as
  // DecodeHead.
  Result<Head> ReadHead(std::stop_token stop);
  // The same, once it is another than `seen` (null: once there is one), or null when `wait` is over.
  Result<Head> AwaitHead(const Head& seen, std::chrono::milliseconds wait, std::stop_token stop);
  // No head is taken that does not follow this one; of nothing, any is.
  void Remember(std::optional<v1::LogHead> seen);

  // `whole` as for CheckLayout.
  Result<std::shared_ptr<const model::ModelLayout>> ReadLayout(const v1::LogHistory& history, bool whole,
                                                               std::stop_token stop);
  // xxh3-64 of each block of the newest version, and its digest's.
  Result<std::vector<uint64_t>> ReadManifest(const v1::LogHistory& history, std::stop_token stop);
  // The payloads of `steps`, whole.
  Result<payload::DeltaChain> ReadSteps(const v1::LogHistory& history, const model::ModelLayout& layout,
                                        std::span<const v1::LogStep* const> steps, std::stop_token stop);
  // Of `version`, oldest <= version <= newest. OK: every block was made. An error says why some were not; those that
  // were are good.
  Status MakeBlocks(const v1::LogHistory& history, const model::ModelLayout& layout, Version version,
                    const BlocksToMake& wanted, std::stop_token stop);
  // The same of the newest version, also where the log moves on meanwhile: what was read is brought forward before the
  // deltas that lead on from it go. `head` is, before a block is made, the one whose newest version it is of. kAborted:
  // the log has another run or layout by now.
  Status MakeNewest(Head& head, const model::ModelLayout& layout, const BlocksToMake& wanted, std::stop_token stop);

  // The bytes of a chunk, in order. As they come they are not proved yet.
  Status ReadChunk(const v1::LogChunk& chunk, uint64_t bytes, const objects::ObjectStore::Take& take,
                   std::stop_token stop);
  // OK: the object is there and has its name.
  Status CheckObject(std::string_view kind, const std::string& sha256, uint64_t bytes, std::stop_token stop);

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  // `before`: what was taken when the reading began.
  Result<Head> Take(const objects::TaggedObject& object, const Head& before);
  Head taken() const;
  Status ReadObject(std::string_view kind, const std::string& sha256, uint64_t bytes,
                    const objects::ObjectStore::Take& take, const std::stop_token& stop);
  Result<std::vector<Bytes>> ReadAll(std::string_view kind, std::span<const v1::LogBytes* const> wanted,
                                     const std::stop_token& stop);
  Status Missing(const std::string& name, const std::stop_token& stop);
  Status MovedOn() const;
  // Asked for before each chunk: the history that names it. Null: no more chunks are to be read.
  using NextHistory = std::function<std::shared_ptr<const v1::LogHistory>()>;
  Status ReadChunks(BlockMaker& maker, const model::ModelLayout& layout, uint64_t chunk_bytes, Version version,
                    const NextHistory& next, const std::stop_token& stop);
  Status BringTo(BlockMaker& maker, const v1::LogHistory& history, const model::ModelLayout& layout, Version version,
                 const std::stop_token& stop);

  const std::shared_ptr<objects::ObjectStore> store_;
  const std::string model_;
  const TrustedKeys trusted_;
  WorkerPool& transfers_;
  WorkerPool& workers_;
  const uint64_t memory_bytes_;
  std::atomic<uint64_t> bytes_read_ = 0;

  mutable Mutex mutex_;
  std::string tag_ LS_GUARDED_BY(mutex_);  // of the head that was taken last
  Head taken_ LS_GUARDED_BY(mutex_);       // null: none was
};

}  // namespace lockstep::versionlog
