// LogReader: reads and proves a model's log: its head, layouts and deltas, and the blocks of any version in it.
//
// A reader trusts no object until its SHA-256 is its name. When an object that the head names is missing, the reader
// reads the head again. The call then fails with kAborted when the new head no longer names the object: the caller must
// ask again, by the new head. It fails with kCorrupt when the object is lost. Every error names the object.
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

// The blocks that a caller wants of one version. The reader makes each from a chunk and the deltas after it.
struct BlocksToMake {
  std::vector<BlockIndex> blocks;  // rising
  // Returns the caller's memory for a block, writable until the reader's call returns. Called by several threads.
  std::function<std::span<std::byte>(BlockIndex)> place_of;
  // Called with each block that was made, and its hash, by several threads.
  std::function<Status(BlockIndex, uint64_t hash)> on_made;
};

// Thread-safe.
class LogReader {
 public:
  // `transfers` runs the reads of the store, one on each thread, and `workers` the decoding and hashing; both outlive
  // the reader. MakeBlocks keeps at most `memory_bytes` of deltas in memory, but always two deltas.
  LogReader(std::shared_ptr<objects::ObjectStore> store, std::string model, TrustedKeys trusted, WorkerPool& transfers,
            WorkerPool& workers, uint64_t memory_bytes = kLogMemoryBytes)
      : store_(std::move(store)),
        model_(std::move(model)),
        trusted_(std::move(trusted)),
        transfers_(transfers),
        workers_(workers),
        memory_bytes_(memory_bytes) {}

  const std::string& url() const { return store_->url(); }

  // Reads the head and takes it: later heads must follow it. kNotFound: there is none yet. kState: the head does not
  // follow the one that was taken last (CheckFollows), and is not taken. kPermission without keys: other users may
  // write the head (ObjectStore::CheckOwn). Other errors as DecodeHead.
  Result<Head> ReadHead(std::stop_token stop);
  // As ReadHead, but waits until the head is another than `seen` (null: until there is one). Returns null after `wait`.
  Result<Head> AwaitHead(const Head& seen, std::chrono::milliseconds wait, std::stop_token stop);
  // Sets the head that later heads must follow; with no value, the next head may be any.
  void Remember(std::optional<v1::LogHead> seen);

  // `whole` as for CheckLayout.
  Result<std::shared_ptr<const model::ModelLayout>> ReadLayout(const v1::LogHistory& history, bool whole,
                                                               std::stop_token stop);
  // Returns the xxh3-64 of each block of the newest version, checked against the version's digest.
  Result<std::vector<uint64_t>> ReadManifest(const v1::LogHistory& history, std::stop_token stop);
  // The payloads of `steps`, whole.
  Result<payload::DeltaChain> ReadSteps(const v1::LogHistory& history, const model::ModelLayout& layout,
                                        std::span<const v1::LogStep* const> steps, std::stop_token stop);
  // Makes the `wanted` blocks of `version`. OK: every block was made. An error says why some were not; blocks that
  // on_made was called with are good. REQUIRES oldest <= version <= newest.
  Status MakeBlocks(const v1::LogHistory& history, const model::ModelLayout& layout, Version version,
                    const BlocksToMake& wanted, std::stop_token stop);
  // Makes the `wanted` blocks of the newest version, even when the log moves on meanwhile: the reader brings the bytes
  // that it has forward before their deltas leave the log. Sets `head`, before it calls on_made, to the head whose
  // newest version the blocks are of. kAborted: the log has another run or layout by now.
  Status MakeNewest(Head& head, const model::ModelLayout& layout, const BlocksToMake& wanted, std::stop_token stop);

  // Hands the bytes of a chunk to `take`, in order. They are proved only once the call has returned OK.
  Status ReadChunk(const v1::LogChunk& chunk, uint64_t bytes, const objects::ObjectStore::Take& take,
                   std::stop_token stop);
  // Reads the object whole. OK when its SHA-256 is its name.
  Status CheckObject(std::string_view kind, const std::string& sha256, uint64_t bytes, std::stop_token stop);

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  // `before`: the head that was taken when the read began.
  Result<Head> Take(const objects::TaggedObject& object, const Head& before);
  Head taken() const;
  Status ReadObject(std::string_view kind, const std::string& sha256, uint64_t bytes,
                    const objects::ObjectStore::Take& take, const std::stop_token& stop);
  Result<std::vector<Bytes>> ReadAll(std::string_view kind, std::span<const v1::LogBytes* const> wanted,
                                     const std::stop_token& stop);
  Status Missing(const std::string& name, const std::stop_token& stop);
  Status MovedOn() const;
  // Called before each chunk is read: returns the history that names the chunk; null ends the reading.
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
