// VersionFollower: what the agent announced of a model, its newest version and its layout, and the memory taken for a
// layout before the first version comes.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

class VersionFollower {
 public:
  // Watches as `watch` says. `agent`, `replicas` and `changed`, which is notified of every announcement, outlive this.
  // Without `follow` it only knows what was announced: nothing is prepared, and no version is reason to sync.
  VersionFollower(v1::WatchVersionsRequest watch, bool follow, AgentClient& agent, replica::ReplicaPair& replicas,
                  ChangeSignal& changed);

  // Follows the agent's version stream on a thread of its own, across streams that are lost and agents that are
  // restarted. It is to be stopped and joined before the destruction.
  void Start();
  // The stream's end is no news from here on; AgentClient::Cancel ends it.
  void RequestStop();
  void Join();

  // --- any thread ---
  // What the agent announced last; nothing: no version yet.
  Held newest() const { return Read(newest_); }
  // When the trainer committed it; 0: not known.
  int64_t newest_committed_unix_ns() const { return Read(newest_committed_unix_ns_); }
  // The layout known last, be it announced, held or synced; null: none.
  std::shared_ptr<const model::ModelLayout> layout() const { return Read(layout_); }
  // How many streams have brought a version so far: an agent that was restarted is met again.
  uint64_t meetings() const { return Read(meetings_); }
  // Why the version stream is down, or what was announced makes no sense; empty while all is well.
  std::string error() const { return Read(error_); }
  int64_t error_unix_ns() const { return Read(error_unix_ns_); }
  // Why the agent serves no version any more, and since when, as far as is known; empty while it does, or never did.
  std::string withdrawn() const { return Read(withdrawn_); }
  int64_t withdrawn_unix_ns() const { return Read(withdrawn_unix_ns_); }
  // Whether another version than `held` was announced, or the same with another digest than `digest`.
  bool Behind(const Held& held, const ManifestDigest& digest) const;

  // --- the session's thread ---
  // Of the model as announced; zero: not known.
  LayoutDigest announced_layout() const { return Read(announced_layout_); }
  // A sync that began when `announced` was the newest version has succeeded, and `current` is what is held now. What it
  // brought may be newer than the last announcement, which is then no reason to sync again.
  void Synced(const Held& announced, const replica::PublishedVersion& current);
  // Null: it has to be asked for again.
  void SetLayout(std::shared_ptr<const model::ModelLayout> layout);

  // Whether a layout was announced that no memory was taken for.
  bool Unprepared() const;
  // Takes that memory, when Unprepared. True when it did something; what goes wrong here goes wrong again, and is
  // reported, in the sync.
  bool Prepare();

 private:
  template <typename T>
  T Read(const T& guarded) const {
    std::lock_guard lock(mutex_);
    return guarded;
  }
  void Watch();
  void OnVersion(const v1::VersionEvent& event, bool first);
  void OnLost(const Status& status);

  const v1::WatchVersionsRequest watch_request_;
  const std::string model_;
  const bool follow_;
  AgentClient& agent_;
  replica::ReplicaPair& replicas_;
  ChangeSignal& changed_;

  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  uint64_t meetings_ = 0;
  Held newest_;
  ManifestDigest newest_digest_;  // zero: not known
  int64_t newest_committed_unix_ns_ = 0;
  LayoutDigest announced_layout_;
  LayoutDigest prepared_;  // the last layout that memory was taken for, or tried to be
  std::shared_ptr<const model::ModelLayout> layout_;
  std::string error_;
  int64_t error_unix_ns_ = 0;
  std::string withdrawn_;
  int64_t withdrawn_unix_ns_ = 0;
  std::thread watch_;
};

}  // namespace lockstep::session
