// The two replicas of one model, and what engines see of them.
//
// One replica is current: whole, verified, published under <root>/<model>/current. The other is the target: it stays
// what it was, an older whole version to roll back to, until the next sync brings it forward or fills it again. A sync
// is
//
//   BringForward(steps)   or   BeginFull(layout), bytes into target_block(), CatchUp(steps)
//   [damaged blocks written again, whole, into target_block()]
//   Commit(...)           or   Abandon()
//
// Killed at any instant, a receiver comes back with a whole version or none (FORMAT.md). Whatever fails between, the
// current replica is untouched. Where there is no room for what a sync needs it fails with kResourceExhausted before
// the target is touched (FORMAT.md, "Room").
//
// Whatever finds that a block of a replica does not have its hash marks that replica: from then on nothing is made from
// it unseen, no rollback leads to it, and PublishedVersion says so. The mark stays until the replica holds another
// version.
//
// Threads: one thread, the session's, drives the syncs; what may be called from any is marked so.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/model/manifest.h"
#include "raas_receiver/replica/apply.h"
#include "raas_receiver/replica/kept_deltas.h"
#include "raas_receiver/replica/recovery.h"
#include "raas_receiver/replica/replica_directory.h"
#include "raas_receiver/replica/tree.h"

namespace lockstep::replica {

struct ReplicaOptions {
  std::string root;                           // absolute
  std::string model;                          // one directory name, see CheckModelName
  std::string assets;                         // absolute, or empty
  uint64_t keep_delta_bytes = 0;              // of applied deltas, kept to bring the other replica and engines forward
  bool keep_older_deltas = false;             // also those that both replicas have: engines' memory may be behind them
  std::chrono::milliseconds reader_grace{0};  // how long to wait for a reader before its file is replaced
  // Called with a name at every edge of FORMAT.md's tables; tests die there.
  std::function<void(std::string_view edge)> at_edge;
};

struct PublishedVersion {
  VersionRef held;  // nothing: there is no such version
  ManifestDigest digest;
  std::shared_ptr<const model::ModelLayout> layout;
  std::string path;               // the published directory, absolute
  int64_t committed_unix_ns = 0;  // when the trainer committed it
  std::string label;              // what the trainer calls it; empty: nothing
  bool damaged = false;           // some block is known not to have its hash
};

struct VerifyReport {
  VersionRef held;
  ManifestDigest recorded;
  ManifestDigest computed;
  std::vector<BlockIndex> bad_blocks;
  std::vector<std::string> bad_tensors;
};

class ReplicaPair {
 public:
  // Takes over <root>/<model>/ (ReplicaDirectory::Open, RecoverReplicas). REQUIRES `pool` to outlive it.
  static Result<std::unique_ptr<ReplicaPair>> Open(ReplicaOptions options, WorkerPool& pool);

  // --- any thread ---
  PublishedVersion current() const;
  PublishedVersion previous() const;  // what SwitchToOther would make current
  // Files replaced because a reader still had them, or because it cannot be known whether one has.
  uint64_t replaced() const { return replaced_; }
  bool rewrites_files() const { return directory_.leases_see_mappings(); }
  // The kept deltas between two versions, whichever is the older, oldest first. None: not all of them are kept.
  payload::DeltaChain DeltasBetween(const VersionRef& one, const VersionRef& other) const;
  // Recomputes the current replica's hashes from its bytes. kState when nothing is held; kCorrupt when one of its
  // attachments is not as it travelled.
  Result<VerifyReport> Verify();
  // The current version's hashes; of nothing when nothing is held.
  model::Manifest manifest() const;
  // Copies whole blocks of the current version, from `offset` of its data section on, and answers which version that
  // is. kState: nothing is held, or none of that length. kCorrupt: a block does not have its hash.
  Result<VersionRef> CopyCurrent(uint64_t offset, std::span<std::byte> to);
  const ReplicaDirectory& directory() const { return directory_; }

  // --- the session's thread ---
  // `found` is called from any thread after damage was found. Before other threads use this.
  void SetDamageFound(std::function<void()> found) { damage_found_ = std::move(found); }
  // What was found since the last call; at first, what was found at the start. Each replica's first damage alone.
  std::vector<Damage> TakeDamage();
  // Hashes some blocks of replica 0 or 1, about `bytes`, from block `first` on. One that is not whole, or known to be
  // damaged, has none.
  struct Checked {
    BlockIndex next = 0;    // block to go on with; 0: that was the last
    uint64_t bytes = 0;     // hashed
    uint64_t of_bytes = 0;  // that both replicas have
    bool damaged = false;   // it was found to be
  };
  Checked Check(size_t replica, BlockIndex first, uint64_t bytes);
  // Reserves the memory of replicas that have none yet, so that a model that does not fit is known before bytes move:
  // kResourceExhausted, with what they need together and what is free. Then neither has any.
  Status Allocate(const std::shared_ptr<const model::ModelLayout>& layout);
  // Warms some more of the target's memory (ReplicaFile::Warm), for less than a second. False when there is nothing
  // left.
  bool WarmTarget();

  // The next two have kResourceExhausted while the target is still what it was.

  // Makes the target equal to the current version with `steps`, if any, applied. Answers the damaged blocks, rising: of
  // a current version that is damaged those that are whole in neither replica, and those of ApplyChain. REQUIRES steps
  // to be consecutive and start at the current version, verified against their digests.
  Result<std::vector<BlockIndex>> BringForward(payload::DeltaChain steps);

  // Makes the target writable memory of `layout`, content unspecified, and no version.
  Status BeginFull(const std::shared_ptr<const model::ModelLayout>& layout);
  std::span<std::byte> target_block(BlockIndex block) const { return target().file.block(block); }
  // Applies to each block of a full target the steps from its version on. Answers the damaged blocks.
  std::vector<BlockIndex> CatchUp(const payload::DeltaChain& steps, const std::vector<Version>& versions);

  // Records the target as whole, publishes it and makes it current. The caller has checked every block hash of
  // `manifest` against the bytes. `steps` led here from the version before; empty after a full pull.
  Status Commit(model::Manifest manifest, int64_t committed_unix_ns, const payload::DeltaChain& steps,
                std::string label = {});
  // What was written is of no use; the memory is kept for the next attempt.
  void Abandon() { EndWriting(); }

  // Makes the other replica's version current. kState when it holds no whole one, or a damaged one.
  Status SwitchToOther();
  // The other replica holds nothing from here on, and is not published.
  Status DropOther();
  // What an engine was last known to serve; remembered across restarts, so that a receiver killed before it notified
  // the engine does so when it comes back, but not across reboots, which no engine survives.
  VersionRef served(const std::string& engine) const { return directory_.served()[engine]; }
  Status MarkServed(const std::string& engine, const VersionRef& held) { return directory_.MarkServed(engine, held); }
  // What was chosen, across restarts, and still counts: a version that stays is current, one that is skipped is not.
  // Any thread.
  Rollback rollback() const;
  // Remembers the choice, and SwitchToOther() where it says so.
  Status RollBack(const Rollback& chosen);
  // Nothing is chosen any more; an error says that a restart may not know.
  Status EndRollback();

  // Hashes of the current version. REQUIRES one.
  const std::vector<uint64_t>& current_hashes() const { return replicas_[current_].whole->manifest.block_hashes; }
  // The data section of the current version, and of the one that SwitchToOther would make current; empty when there is
  // none. It stays as it is until the next sync begins.
  std::span<const std::byte> current_data() const;
  std::span<const std::byte> previous_data() const;

 private:
  ReplicaPair(ReplicaOptions options, WorkerPool& pool, ReplicaDirectory directory, VersionTree tree,
              ReplicasAtStart start);

  payload::DeltaChain ChainOfTarget() const;
  Result<bool> MakeWritable(const std::shared_ptr<const model::ModelLayout>& layout);
  Result<bool> RewriteFile(const std::shared_ptr<const model::ModelLayout>& layout, bool whole);
  Status ReplaceFile(const std::shared_ptr<const model::ModelLayout>& layout, bool whole);
  bool FitsInPlaceAlone(const model::ModelLayout& layout) const;
  void Restore(ReplicaState version);
  Status PublishTarget();
  void KeepRoom();
  void EndWriting();
  Status Retract(Replica& replica);
  Status RemoveState(const Replica& replica) const;
  void DropFile(size_t replica);
  void Edge(std::string_view edge) const;
  PublishedVersion Describe(size_t replica) const;
  void Found(size_t replica, const VersionRef& held, std::vector<BlockIndex> blocks, std::string_view by);
  void FoundOf(size_t replica, const ReplicaState& state, std::vector<BlockIndex> copied, std::string_view by);
  void Report(const VersionRef& held, std::vector<BlockIndex> blocks, std::string_view by);

  size_t target_index() const { return current_ == 0 ? 1 : 0; }
  Replica& target() { return replicas_[target_index()]; }
  const Replica& target() const { return replicas_[target_index()]; }

  const ReplicaOptions options_;
  WorkerPool& pool_;
  ReplicaDirectory directory_;
  VersionTree tree_;
  KeptDeltas kept_;
  std::array<Replica, 2> replicas_;
  // Each replica's bytes: exclusive while the session writes or drops them, shared while they are verified.
  std::array<std::shared_mutex, 2> bytes_mutexes_;
  std::unique_lock<std::shared_mutex> writing_;
  std::atomic<uint64_t> replaced_ = 0;
  // Of each replica's bytes as they are now: some block is known not to have its hash. Set while the bytes cannot
  // change, by one that reads them.
  std::array<std::atomic<bool>, 2> damaged_{};
  std::function<void()> damage_found_;
  Mutex damage_mutex_;                                       // taken last
  std::vector<Damage> damage_ LS_GUARDED_BY(damage_mutex_);  // not taken yet

  // Guards current_, and each replica's `whole` and `name`, which other threads read and only the session's changes.
  // Taken before bytes_mutexes_.
  mutable Mutex mutex_;
  int current_;                              // -1: nothing is held
  Rollback rollback_ LS_GUARDED_BY(mutex_);  // as it was noted last
};

}  // namespace lockstep::replica
