// ModelPublisher: turns what the ranks of one run write into served versions.
//
//   idle ──Begin──> draft(v) ──last rank's Commit──> finishing(v) ──diff done──> served(v), idle
//                      │  a rank is gone, aborts, reports a byte twice, bytes are missing, or the version that v is
//                      │  compared with is withdrawn: also while v is finishing
//                      └──────────────────────────> idle; v is aborted, the next Begin works
//
// The diff runs while ranks still write, by as many threads as they can spare: every block goes to it as soon as its
// bytes are reported. Begin waits for a finishing version, because its diff still reads the slot that Begin gives out.
// It never waits for receivers.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "common/base/mutex.h"
#include "common/os/unix_socket.h"
#include "common/telemetry/timeline.h"
#include "trainer_agent/buffer/coverage.h"
#include "trainer_agent/delta/delta_job.h"
#include "trainer_agent/publish/publish_spans.h"
#include "trainer_agent/publish/published_run.h"

namespace lockstep::publish {

struct PublisherStatus {
  Version writing_version = 0;  // 0: none
  uint64_t versions_committed = 0;
  uint64_t versions_aborted = 0;
  std::string last_error;          // why the last version was aborted; empty once one is committed
  int64_t last_error_unix_ns = 0;  // when it was
};

// Thread-safe. Calls of one rank do not overlap.
class ModelPublisher {
 public:
  // REQUIRES the pool, catalog and timeline (null: nothing is recorded) to outlive this.
  ModelPublisher(std::shared_ptr<buffer::DoubleBuffer> buffer, store::StoreOptions store, DiffOptions diff,
                 store::VersionCatalog* catalog, telemetry::Timeline* timeline = nullptr);
  // Aborts a draft, and waits for a finishing version.
  ~ModelPublisher();

  const buffer::DoubleBuffer& buffer() const { return run_.buffer(); }
  const std::shared_ptr<store::ServedRun>& served() const { return run_.served(); }

  // Serves what an earlier agent left in the buffer, and makes the run visible to receivers. Call before any other.
  void Open();

  // The slot that `rank` writes `version` into. Waits for the version before it to be finished, and, when this rank is
  // done with an earlier one, for the other ranks. kState: not greater than every version of the run, or joined
  // already. kAborted: a rank is gone without the version that this one waited for, which was aborted; the process of
  // a rank has ended, and none has taken its place; and, once, the version was aborted before this rank came to it.
  // kCancelled after Stop(), and once `gone`, which is asked now and then, says that the rank waits no longer (null: it
  // never does).
  Result<size_t> Begin(uint32_t rank, Version version, const std::function<bool()>& gone = {});
  // What is wrong with the ranges aborts the draft; the next Commit returns it. A block of which every byte is reported
  // as unchanged is not read, when the slot before is there to be equal to.
  void RangesDone(uint32_t rank, Version version, std::span<const StridedRange> ranges, buffer::Content content);
  // `label`: what this rank calls the version; empty: what another one does. kBadData: bytes are missing or were
  // reported twice, or it is no label, or not that of another rank. kAborted: another rank aborted the version, or the
  // one that it was compared with was withdrawn. kState: not begun.
  Status Commit(uint32_t rank, Version version, const std::string& label = {});
  Status Abort(uint32_t rank, Version version, const std::string& reason);
  // The rank has a connection.
  void RankHere(uint32_t rank);
  // The rank's connection ended; `process` made it. A draft that it has not committed is aborted.
  void RankGone(uint32_t rank, std::shared_ptr<const os::PeerProcess> process);

  void Stop();  // wakes and refuses waiting Begins
  Version newest_version() const;
  PublisherStatus status() const;

 private:
  struct Draft {
    Version version = 0;
    size_t slot = 0;
    std::shared_ptr<const model::Manifest> base;  // null: the first version
    int64_t committed_unix_ns = 0;
    std::string label;
    uint32_t labelled_by = 0;  // the first rank that gave it
    buffer::Coverage coverage;
    std::shared_ptr<PublishSpans> spans;
    std::shared_ptr<store::StreamingDelta> streaming;  // null: no receiver follows, or there is no base
    std::unique_ptr<delta::DeltaJob> job;
    std::set<uint32_t> joined;
    std::set<uint32_t> done;
  };

  struct Aborted {
    Version version = 0;
    Status reason;
    std::set<uint32_t> known_by;  // ranks that had joined it, or were refused when they wanted to
  };

  Status CheckNotDropped(Version version) const LS_REQUIRES(mutex_);
  void StartDraft(Version version) LS_REQUIRES(mutex_);
  void AbortDraft(const Status& reason) LS_REQUIRES(mutex_);
  // Why nothing can be done before a rank that is gone is back. REQUIRES gone_ to have the rank.
  Status Gone(uint32_t rank, std::string_view outcome) const LS_REQUIRES(mutex_);
  // The draft will never be whole without that rank. REQUIRES a draft, and gone_ to have the rank.
  void GiveUpDraft(uint32_t rank) LS_REQUIRES(mutex_);
  // A rank that has not committed the draft and never will: its process has ended.
  std::optional<uint32_t> DeadRank() const LS_REQUIRES(mutex_);
  void NoteAborted(const Draft& draft, const Status& reason) LS_REQUIRES(mutex_);
  Status LabelDraft(uint32_t rank, const std::string& label) LS_REQUIRES(mutex_);
  Status CheckDraft() const LS_REQUIRES(mutex_);
  Status SealDraft() LS_REQUIRES(mutex_);
  void BeginStreaming(delta::DeltaInput& input) LS_REQUIRES(mutex_);
  void FinishVersion(delta::DeltaOutput output);
  void LogCommitted(const Draft& draft, const delta::DeltaOutput& output) const;
  void EndStreaming(const Draft& draft, const delta::DeltaOutput& output);

  PublishedRun run_;
  telemetry::Timeline* const timeline_;

  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Draft> draft_ LS_GUARDED_BY(mutex_);      // null: no version is written
  std::unique_ptr<Draft> finishing_ LS_GUARDED_BY(mutex_);  // committed; its job is or was at work
  bool finished_ LS_GUARDED_BY(mutex_) = false;             // the job of finishing_ has called back
  Version newest_ LS_GUARDED_BY(mutex_) = 0;                // committed, served or about to be
  Version dropped_ LS_GUARDED_BY(mutex_) =
      0;                                   // committed once, and lost with an earlier agent: a number that is used up
  Aborted aborted_ LS_GUARDED_BY(mutex_);  // the last one
  std::chrono::steady_clock::time_point looked_for_gone_
      LS_GUARDED_BY(mutex_);  // a connection was lost: until then its rank may be ending
  std::map<uint32_t, std::shared_ptr<const os::PeerProcess>> gone_
      LS_GUARDED_BY(mutex_);  // ranks that had a connection, and have none
  PublisherStatus status_ LS_GUARDED_BY(mutex_);
  bool stopped_ LS_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::publish
