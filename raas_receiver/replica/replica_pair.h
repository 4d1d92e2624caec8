// ReplicaPair: the two replicas of one model, and the directory tree by which engines open them.
//
// One replica is current: whole, verified, published under <root>/<model>/current. The other is the target: it keeps an
// older whole version, to roll back to, until the next sync brings it forward or fills it again. A sync is
//
//   BringForward(steps)   or   BeginFull(layout), bytes into target_block(), CatchUp(steps)
//   [damaged blocks written again, whole, into target_block()]
//   Commit(...)           or   Abandon()
//
// A receiver that is killed at any instant comes back with a whole version or none (FORMAT.md). A sync that fails
// leaves the current replica as it was. A sync that lacks room on disk fails with kResourceExhausted before it changes
// the target.
//
// A replica is marked as damaged when a check finds that one of its blocks does not have its hash. Syncs then check the
// blocks that they take from it, no rollback leads to it, and PublishedVersion says so. The mark stays until the
// replica holds another version.
//
// One thread, the session's, drives the syncs. Calls that any thread may make are marked so.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <stop_token>
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
  VersionRef held;  // version 0: there is no such version
  ManifestDigest digest;
  std::shared_ptr<const model::ModelLayout> layout;
  std::string path;               // the published directory, absolute; empty: it is withdrawn
  int64_t committed_unix_ns = 0;  // when the trainer committed it
  std::string label;              // by the trainer; empty: none
  bool damaged = false;           // some block is known not to have its hash
};

struct VerifyReport {
  VersionRef held;
  ManifestDigest recorded;
  ManifestDigest computed;
  std::vector<ManifestDigest> parts;  // computed, of a joined layout
  std::vector<BlockIndex> bad_blocks;
  std::vector<std::string> bad_tensors;
};

class ReplicaPair {
 public:
  // Takes over <root>/<model>/; errors are those of ReplicaDirectory::Open and RecoverReplicas. REQUIRES `pool` to
  // outlive the pair.
  static Result<std::unique_ptr<ReplicaPair>> Open(ReplicaOptions options, WorkerPool& pool);

  // --- any thread ---
  PublishedVersion current() const;
  PublishedVersion previous() const;  // what SwitchToOther would make current
  // How many files were replaced because a reader still had them, or may have had them.
  uint64_t replaced() const { return replaced_; }
  bool rewrites_files() const { return directory_.leases_see_mappings(); }
  // Returns the kept deltas between two versions, in either order, oldest first; none when one is missing.
  payload::DeltaChain DeltasBetween(const VersionRef& one, const VersionRef& other) const;
  // Recomputes the current replica's hashes from its bytes, and marks damage. kState when there is no current version;
  // kCorrupt when one of its attachments is not as it was pulled.
  Result<VerifyReport> Verify();
  // The current version's manifest; an empty one when there is no current version.
  model::Manifest manifest() const;
  // Copies whole blocks of the current version, from `offset` of its data section on, and returns that version. kState:
  // there is no current version, or it is shorter. kCorrupt: a block does not have its hash.
  Result<VersionRef> CopyCurrent(uint64_t offset, std::span<std::byte> to);
  const ReplicaDirectory& directory() const { return directory_; }

  // --- the session's thread ---
  // Has `found` called, on any thread, after damage was found. Call before other threads use the pair.
  void SetDamageFound(std::function<void()> found) { damage_found_ = std::move(found); }
  // Has `may` asked right before the target's version is gone for good. False: BringForward and BeginFull fail with
  // kCancelled, and the target keeps its version. Call before other threads use the pair.
  void SetMayGiveUp(std::function<bool()> may) { may_give_up_ = std::move(may); }
  // Returns the damage found since the last call, or since the start: the first of each version of a replica.
  std::vector<Damage> TakeDamage();
  // Hashes about `bytes` of replica 0 or 1, from block `first` on, and marks damage. Hashes nothing of a replica that
  // is not whole, or is marked as damaged.
  struct CheckedBlocks {
    BlockIndex next = 0;    // block to go on with; 0: the last one was hashed
    uint64_t bytes = 0;     // hashed
    uint64_t of_bytes = 0;  // of both replicas together
    bool damaged = false;   // this call found damage
  };
  CheckedBlocks Check(size_t replica, BlockIndex first, uint64_t bytes);
  // Reserves the memory of both replicas, where they have none, before any byte of the model is pulled.
  // kResourceExhausted, with the bytes needed and free, when they do not fit; then neither replica has memory.
  Status Allocate(const std::shared_ptr<const model::ModelLayout>& layout);
  // Warms some of the target's memory (ReplicaFile::Warm), for less than a second. Returns false when all is warm.
  bool WarmTarget();

  // BringForward and BeginFull fail with kResourceExhausted, or kCancelled after `stop` or by SetMayGiveUp, only before
  // they change the target, but for the exception in FORMAT.md.

  // Makes the target equal to the current version with `steps`, if any, applied. Returns the blocks, rising, that came
  // out wrong: the caller must write them whole before Commit. REQUIRES steps to be consecutive, to start at the
  // current version, and to be verified against their digests.
  Result<std::vector<BlockIndex>> BringForward(payload::DeltaChain steps, const std::stop_token& stop = {});

  // Makes the target writable memory of `layout`, with unspecified content. The target holds no version from then on.
  Status BeginFull(const std::shared_ptr<const model::ModelLayout>& layout, const std::stop_token& stop = {});
  std::span<std::byte> target_block(BlockIndex block) const { return target().file.block(block); }
  // Applies to each block of a full target the steps from the block's version on. Returns blocks as BringForward.
  std::vector<BlockIndex> CatchUp(const payload::DeltaChain& steps, const std::vector<Version>& versions);

  // Records the target as whole, publishes it and makes it current. `steps` led to it from the version before; empty
  // after a full pull. REQUIRES that the caller has checked every block of the target against `manifest`.
  Status Commit(model::Manifest manifest, int64_t committed_unix_ns, const payload::DeltaChain& steps,
                std::string label = {});
  // Ends a sync without a commit. The target keeps its memory for the next sync, and its version if that was not given
  // up yet.
  void Abandon() { EndWriting(); }

  // Makes the target's version current. kState when the target is not whole, or is damaged.
  Status SwitchToOther();
  // Withdraws the target's version, and does not ask SetMayGiveUp's function. The target holds none from then on.
  Status DropOther();
  // Returns the version that `engine` was last marked to serve. The marks outlive a restart, so that a receiver that
  // was killed before it notified an engine does so afterwards. The marks do not outlive a reboot, as no engine does.
  VersionRef served(const std::string& engine) const { return directory_.served()[engine]; }
  Status MarkServed(const std::string& engine, const VersionRef& held) {
    MutexLock lock(served_mutex_);  // the notes of all engines are one file
    return directory_.MarkServed(engine, held);
  }
  // Returns the operator's rollback, which outlives restarts, while it counts: while the version that stays is current,
  // or the version that is skipped is not. Any thread.
  Rollback rollback() const;
  // Notes the rollback, and calls SwitchToOther() where the rollback changes the current version.
  Status RollBack(const Rollback& chosen);
  // Ends the rollback. After an error a restart may still find it.
  Status EndRollback();

  // Hashes of the current version. REQUIRES one.
  const std::vector<uint64_t>& current_hashes() const { return replicas_[current_].whole->manifest.block_hashes; }
  // The data sections of the current version, and of the one that SwitchToOther would make current; empty when there is
  // none. Their bytes do not change before the next sync begins.
  std::span<const std::byte> current_data() const;
  std::span<const std::byte> previous_data() const;

 private:
  ReplicaPair(ReplicaOptions options, WorkerPool& pool, ReplicaDirectory directory, VersionTree tree,
              ReplicasAtStart start);

  payload::DeltaChain ChainOfTarget() const;
  Result<bool> MakeWritable(const std::shared_ptr<const model::ModelLayout>& layout, const std::stop_token& stop);
  Result<bool> RewriteFile(const std::shared_ptr<const model::ModelLayout>& layout, bool whole);
  Status ReplaceFile(const std::shared_ptr<const model::ModelLayout>& layout, bool whole);
  bool FitsInPlaceAlone(const model::ModelLayout& layout) const;
  Status WithdrawTarget();
  Status RemoveTargetState();
  bool AwaitReaders(const std::stop_token& stop);
  Status GiveUpTarget();
  Status Kept() const;
  void RestoreTarget();
  Status PublishTarget();
  void KeepRoom();
  void EndWriting();
  void DropFile(size_t replica);
  void Edge(std::string_view edge) const;
  PublishedVersion Describe(size_t replica) const;
  // Marks the replica as damaged and reports `blocks`, unless there are none or it is marked. `by` names the finder in
  // logs. REQUIRES that the bytes of the replica cannot change meanwhile; so does MarkDamagedAmong.
  void MarkDamaged(size_t replica, const VersionRef& held, std::vector<BlockIndex> blocks, std::string_view by);
  // Of the blocks `copied`, whose copies lack their hash, marks those that lack it in the replica itself.
  void MarkDamagedAmong(size_t replica, const ReplicaState& state, std::vector<BlockIndex> copied, std::string_view by);
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
  std::unique_lock<std::shared_mutex> writing_;  // of the target, once its version is given up
  std::atomic<uint64_t> replaced_ = 0;
  // The marks of the replicas: some block is known not to have its hash. Set by MarkDamaged() alone.
  std::array<std::atomic<bool>, 2> damaged_{};
  std::function<void()> damage_found_;
  std::function<bool()> may_give_up_;
  Mutex served_mutex_;
  Mutex damage_mutex_;                                       // taken last
  std::vector<Damage> damage_ LS_GUARDED_BY(damage_mutex_);  // not taken yet

  // Guards current_, and each replica's `whole` and `name`, which other threads read and only the session's changes.
  // Taken before bytes_mutexes_.
  mutable Mutex mutex_;
  int current_;                              // -1: nothing is held
  Rollback rollback_ LS_GUARDED_BY(mutex_);  // as it was noted last
};

}  // namespace lockstep::replica
