// ModelPublisher: makes served versions out of what the ranks of one run write into the double buffer.
//
//   kIdle ──Begin──> kWriting(v) ──last rank's Commit──> kFinishing(v) ──diff done──> v is served; kIdle
//                      │  a rank is gone, aborts, reports a     │  the version that v was
//                      │  batch twice or leaves one out         │  compared with is withdrawn
//                      └────────────────────────────────────────┴──> kIdle; v is aborted, the next Begin works
//
// The diff runs while ranks still write: a block goes to the diff as soon as all of its bytes are reported, provided
// that the shares of all ranks are known (shares.h). A rank that begins a version waits for a finishing one, because
// that version's diff still reads the slot that Begin gives out. No rank waits for receivers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/worker_pool.h"
#include "common/os/unix_socket.h"
#include "common/telemetry/timeline.h"
#include "trainer_agent/run/delta_job.h"
#include "trainer_agent/run/double_buffer.h"
#include "trainer_agent/run/guard.h"
#include "trainer_agent/run/publish_spans.h"
#include "trainer_agent/run/shares.h"
#include "trainer_agent/run/version_catalog.h"
#include "trainer_agent/run/wake_list.h"

namespace lockstep::run {

// How versions are compared. The threads compete with the ranks' own copies for cores and memory bandwidth.
struct DiffOptions {
  WorkerPool* pool = nullptr;
  payload::CodecLevel codec = payload::CodecLevel::kFast;  // of all deltas
};

struct PublisherStatus {
  Version writing_version = 0;  // 0: none
  uint64_t versions_committed = 0;
  uint64_t versions_aborted = 0;
  std::string last_error;          // why the last version was aborted; empty once one is committed
  int64_t last_error_unix_ns = 0;  // when it was
};

// Thread-safe. Calls of one rank do not overlap, but for BatchesDone().
class ModelPublisher {
 public:
  // REQUIRES the pool, catalog and timeline (null: nothing is recorded) to outlive this.
  ModelPublisher(std::shared_ptr<DoubleBuffer> buffer, StoreOptions store, DiffOptions diff, VersionCatalog* catalog,
                 telemetry::Timeline* timeline = nullptr);
  // Aborts a draft, and waits for a finishing version.
  ~ModelPublisher();

  const DoubleBuffer& buffer() const { return *buffer_; }
  const std::shared_ptr<ServedRun>& served() const { return served_; }

  // Serves the versions that an earlier agent left in the buffer, and makes the run visible to receivers. REQUIRES to
  // be the first call.
  void Open();

  // Begin's answer. A rank without a slot waits: until the version before is finished, or the other ranks are done with
  // a draft that this rank has committed. The rank asks again after its wake, once one of `processes` has ended, or at
  // `until`.
  struct Turn {
    std::optional<size_t> slot;                                     // to write into
    std::vector<std::shared_ptr<const os::PeerProcess>> processes;  // of ranks that had a connection, and have none
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  };
  // Joins `rank` to the draft of `version`; the first rank's call makes the draft. Aborts a draft that this rank has
  // not committed. `wake`, for a rank that must wait, is called under a lock.
  //   kState: `version` is not greater than every version of the run, or the rank has joined it already.
  //   kAborted: a rank's process has ended and no other has taken its place; `version` was aborted before this rank
  //     joined it (told once); or it was committed once and lost with an earlier agent.
  //   kBadData: another rank was not let in, because its share does not fit; no version could be whole. Or `guard`
  //     (guard.h; empty: none) is not one, or another than another rank's.
  //   kCancelled: after Stop().
  Result<Turn> Begin(uint32_t rank, Version version, const std::string& guard, std::weak_ptr<const void> waiting,
                     Wake wake);
  // Reports the bytes of these batches of the rank's share as final. A batch that is wrong aborts the draft, and Commit
  // returns why. A block whose every byte is kUnchanged is not read, provided that the draft has a base.
  void BatchesDone(uint32_t rank, Version version, std::span<const uint32_t> batches, Content content);
  // Commits `rank`'s part of the version; the last rank's call commits the version. `label` is this rank's label of the
  // version; empty: this rank gives none.
  //   kBadData: a batch was not reported, or twice; or `label` is no label, or differs from another rank's.
  //   kAborted: another rank aborted the version, or its base was withdrawn.
  //   kState: the rank has not begun the version.
  Status Commit(uint32_t rank, Version version, const std::string& label = {});
  // False: the version that the rank has committed has a guard, and Outcome is to be asked.
  bool IsSettled(uint32_t rank, Version version) const;
  // What became of a version that the rank has committed. With a guard the version is committed only once all ranks are
  // done and it was compared: until then the turn has no slot. Without a guard, and afterwards, the slot is 0.
  //   As Commit. kBadData: the version breaks the guard, and is aborted. kAborted: also when a rank that it lacks is
  //   dead. kCancelled: after Stop().
  Result<Turn> Outcome(uint32_t rank, Version version, std::weak_ptr<const void> waiting, Wake wake);
  Status Abort(uint32_t rank, Version version, const std::string& reason);
  // Ends a draft that is not wanted any more, as Abort() does, but as no error. Does nothing when it is not being
  // written.
  void Skip(Version version, const std::string& reason);
  // Records that the rank is connected, and what it writes. Aborts a draft when the rank came back with another share.
  // Errors as Shares::Set(): the rank is not to be let in.
  Status RankHere(uint32_t rank, wire::Share share);
  // Records that the rank's connection ended; `process` had made it. Aborts the draft if the rank has not committed it.
  // Waits a moment for the end of a process that may end.
  void RankGone(uint32_t rank, std::shared_ptr<const os::PeerProcess> process);

  void Stop();  // wakes ranks that wait; Begin fails with kCancelled from now on
  Version newest_version() const;
  PublisherStatus status() const;

 private:
  enum class State { kIdle, kWriting, kFinishing };

  struct Draft {
    Version version = 0;
    size_t slot = 0;
    std::shared_ptr<const model::Manifest> base;  // null: the first version
    int64_t committed_unix_ns = 0;
    std::string label;
    uint32_t labelled_by = 0;  // the first rank that gave it
    std::string guard;         // as all ranks gave it; empty: none
    DraftProgress progress;
    std::shared_ptr<PublishSpans> spans;
    std::shared_ptr<StreamingDelta> streaming;  // null: no receiver follows, or there is no base
    std::unique_ptr<DeltaJob> job;
    std::set<uint32_t> joined;
    std::set<uint32_t> done;
  };

  struct AbortedVersion {
    Version version = 0;
    Status reason;
    std::set<uint32_t> known_by;  // ranks that had joined it, or were refused when they wanted to
  };

  Status CheckNotDropped(Version version) const LS_REQUIRES(mutex_);
  Status CheckGreater(Version version) const LS_REQUIRES(mutex_);
  // kAborted, once for each rank, when `version` was aborted before `rank` joined it.
  Status CheckNotAborted(uint32_t rank, Version version) LS_REQUIRES(mutex_);
  void StartDraft(Version version) LS_REQUIRES(mutex_);
  Result<Turn> JoinDraft(uint32_t rank, const std::string& guard) LS_REQUIRES(mutex_);
  Turn WaitForTurn(std::weak_ptr<const void> waiting, Wake wake) LS_REQUIRES(mutex_);
  // Whether a connection was lost a moment ago: its process may have ended, and not be seen to.
  bool MayHaveEnded() const LS_REQUIRES(mutex_);
  // Calls their wakes under the lock: those only set events.
  void WakeRanks() LS_REQUIRES(mutex_);
  void AbortDraft(const Status& reason) LS_REQUIRES(mutex_);
  // As AbortDraft(), but records nothing.
  void DropDraft(const Status& reason) LS_REQUIRES(mutex_);
  // Returns the error that names the rank that is gone, and `outcome`. REQUIRES gone_ to have the rank.
  Status Gone(uint32_t rank, std::string_view outcome) const LS_REQUIRES(mutex_);
  // Whether the draft of `version` is being written.
  bool Writes(Version version) const LS_REQUIRES(mutex_);
  // Whether the rank has committed the version, which is compared now and not committed before it keeps its guard.
  bool IsJudged(uint32_t rank, Version version) const LS_REQUIRES(mutex_);
  bool AwaitsVerdict(uint32_t rank, Version version) const LS_REQUIRES(mutex_);
  // Whether a draft is being written, and lacks `rank`'s commit.
  bool Lacks(uint32_t rank) const LS_REQUIRES(mutex_);
  // Whether nothing goes on without `rank`: not so when it has committed the draft.
  bool IsMissed(uint32_t rank) const LS_REQUIRES(mutex_);
  // Aborts the draft, which cannot become whole without `rank`. REQUIRES kWriting, and gone_ to have the rank.
  void GiveUpDraft(uint32_t rank) LS_REQUIRES(mutex_);
  // Returns a rank that has not committed the draft and whose process has ended; no value when there is none.
  std::optional<uint32_t> DeadRank() const LS_REQUIRES(mutex_);
  void NoteAborted(const Draft& draft, const Status& reason) LS_REQUIRES(mutex_);
  Status LabelDraft(uint32_t rank, const std::string& label) LS_REQUIRES(mutex_);
  void GiveBlocks(CompletedBlocks completed) LS_REQUIRES(mutex_);
  Status SealDraft() LS_REQUIRES(mutex_);
  void NoteCommitted() LS_REQUIRES(mutex_);
  void AbortStreaming(const Draft& draft, const Status& reason) LS_REQUIRES(mutex_);
  void BeginStreaming(DeltaInput& input) LS_REQUIRES(mutex_);

  // --- finish_version.cc ---
  void FinishVersion(DeltaOutput output);
  // Commits a draft that has a guard, or says what it breaks.
  Status Judge(const Draft& draft, const changes::VersionChanges& changes);
  // `changes`: since `base`, or of all there is.
  std::shared_ptr<const changes::VersionChanges> ChangesOf(Version version, const model::Manifest* base,
                                                           std::vector<changes::TensorChange> changes) const;
  Status ServeDraft(const Draft& draft, DeltaOutput output, std::shared_ptr<const changes::VersionChanges> changes,
                    std::vector<Wake>* wakes);
  void LogCommitted(const Draft& draft, const DeltaOutput& output, const changes::VersionChanges& changes) const;
  void EndStreaming(const Draft& draft, const DeltaOutput& output);
  // Returns the input of the diff of `slot` against the other slot, which holds `base` (null: hash only).
  DeltaInput InputOf(size_t slot, const std::shared_ptr<const model::Manifest>& base) const;
  std::shared_ptr<const model::Manifest> MakeManifest(Version version, std::vector<uint64_t> block_hashes) const;
  // Adds the delta between two versions to the run's store. A failure is logged; receivers then pull in full.
  void RetainDelta(const model::Manifest& base, const model::Manifest& target, int64_t committed_unix_ns,
                   const DeltaOutput& output);
  // Makes `version` the newest that is served. kAborted when `base`, with which it was compared (null: with none), was
  // withdrawn meanwhile; then the run serves nothing, and no delta.
  // Who waits for the version is to be woken by the caller where `wakes` is given.
  Status ServeVersion(ServedVersion version, const model::Manifest* base, std::vector<Wake>* wakes = nullptr);

  // --- recovery.cc ---
  // Hashes each slot again that an earlier agent committed, drops one that differs from its recorded manifest, makes
  // the delta between the two again, and serves both. Returns the newest that is served, 0 for none.
  Version Recover();
  std::shared_ptr<const model::Manifest> RecoverSlot(size_t slot, const std::shared_ptr<const model::Manifest>& base,
                                                     DeltaOutput& output);

  const std::shared_ptr<DoubleBuffer> buffer_;
  const std::shared_ptr<ServedRun> served_;
  const DiffOptions diff_;
  VersionCatalog* const catalog_;
  std::atomic<bool> large_deltas_ = false;  // the newest delta took more than half of the model, as the log has
  telemetry::Timeline* const timeline_;

  mutable Mutex mutex_;
  std::condition_variable finished_;
  State state_ LS_GUARDED_BY(mutex_) = State::kIdle;
  std::unique_ptr<Draft> draft_ LS_GUARDED_BY(mutex_);  // in kIdle the last one, if it was finished
  std::vector<std::unique_ptr<Draft>> finished_ones_ LS_GUARDED_BY(mutex_);  // whose jobs may still be calling back
  Status misfit_ LS_GUARDED_BY(mutex_);       // why a rank was not let in, for those that wait for it
  WakeList waiting_ LS_GUARDED_BY(mutex_);    // ranks whose Begin has no slot yet
  Shares shares_ LS_GUARDED_BY(mutex_);       // also of ranks that are gone
  Version newest_ LS_GUARDED_BY(mutex_) = 0;  // committed, served or about to be
  Version dropped_ LS_GUARDED_BY(mutex_) =
      0;  // committed once, and lost with an earlier agent: a number that is used up
  AbortedVersion aborted_ LS_GUARDED_BY(mutex_);  // the last one
  std::chrono::steady_clock::time_point looked_for_gone_
      LS_GUARDED_BY(mutex_);  // a connection was lost: until then its rank may be ending
  std::map<uint32_t, std::shared_ptr<const os::PeerProcess>> gone_
      LS_GUARDED_BY(mutex_);  // ranks that had a connection, and have none
  PublisherStatus status_ LS_GUARDED_BY(mutex_);
  bool stopped_ LS_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::run
