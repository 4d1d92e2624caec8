// VersionFollower: what the origin announced of a model, its newest version and its layout, and the memory taken for a
// layout before the first version comes.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/origin/origin.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

class VersionFollower {
 public:
  // `origin`, `replicas` and `changed`, which is notified of every announcement, outlive this. `model` is for logs.
  // Without `follow` it only knows what was announced: nothing is prepared, and no version is reason to sync.
  VersionFollower(std::string model, bool follow, origin::Origin& origin, replica::ReplicaPair& replicas,
                  ChangeSignal& changed);

  // Watches the origin on a thread of its own, across streams that are lost and origins that are restarted, until a
  // stop is requested. It is to be joined before the destruction.
  void Start(std::stop_token stop);
  void Join();

  // --- any thread ---
  // What the origin announced last.
  origin::Head head() const { return Read(&VersionFollower::head_); }
  VersionRef newest() const { return head().held; }
  // The layout known last, be it announced, held or synced; null: none.
  std::shared_ptr<const model::ModelLayout> layout() const { return Read(&VersionFollower::layout_); }
  // How many streams have brought a version so far: an origin that was restarted is met again.
  uint64_t meetings() const { return Read(&VersionFollower::meetings_); }
  // Why the version stream is down; empty while it is not.
  std::string error() const { return Read(&VersionFollower::error_); }
  int64_t error_unix_ns() const { return Read(&VersionFollower::error_unix_ns_); }
  // When the origin announced something last; 0: never.
  int64_t met_unix_ns() const { return Read(&VersionFollower::met_unix_ns_); }
  // Since when the origin has had the version withdrawn that it had.
  int64_t withdrawn_unix_ns() const { return Read(&VersionFollower::withdrawn_unix_ns_); }
  // Whether another version than `held` was announced, or the same with another digest than `digest`.
  bool Behind(const VersionRef& held, const ManifestDigest& digest) const;

  // --- the session's thread ---
  // A sync that began when `announced` was the newest version has succeeded, and `current` is what is held now. What it
  // brought may be newer than the last announcement, which is then no reason to sync again.
  void Synced(const VersionRef& announced, const replica::PublishedVersion& current);
  // Null: it has to be asked for again.
  void SetLayout(std::shared_ptr<const model::ModelLayout> layout);

  // Whether a layout was announced that no memory was taken for.
  bool Unprepared() const;
  // Takes that memory, when Unprepared. True when it did something; what goes wrong here goes wrong again, and is
  // reported, in the sync. After a stop it is Unprepared still.
  bool Prepare(const std::stop_token& stop);

 private:
  template <typename T>
  T Read(T VersionFollower::*guarded) const {
    MutexLock lock(mutex_);
    return this->*guarded;
  }
  void Watch(const std::stop_token& stop);
  void OnHead(const origin::Head& head, bool first);
  void OnLost(const Status& status);

  const std::string model_;
  const bool follow_;
  origin::Origin& origin_;
  replica::ReplicaPair& replicas_;
  ChangeSignal& changed_;

  mutable Mutex mutex_;
  uint64_t meetings_ LS_GUARDED_BY(mutex_) = 0;
  origin::Head head_ LS_GUARDED_BY(mutex_);
  LayoutDigest prepared_ LS_GUARDED_BY(mutex_);  // the last layout that memory was taken for, or tried to be
  std::shared_ptr<const model::ModelLayout> layout_ LS_GUARDED_BY(mutex_);
  std::string error_ LS_GUARDED_BY(mutex_);
  int64_t error_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  int64_t met_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  int64_t withdrawn_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  std::thread watch_;
};

}  // namespace lockstep::session
