#include "raas_receiver/session/version_follower.h"

#include <utility>

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep::session {
namespace {

constexpr size_t kMaxReason = 1024;

}  // namespace

VersionFollower::VersionFollower(v1::WatchVersionsRequest watch, bool follow, AgentClient& agent,
                                 replica::ReplicaPair& replicas, ChangeSignal& changed)
    : watch_request_(std::move(watch)),
      model_(watch_request_.model()),
      follow_(follow),
      agent_(agent),
      replicas_(replicas),
      changed_(changed),
      layout_(replicas_.current().layout) {}

void VersionFollower::Start() {
  watch_ = std::thread([this] { Watch(); });
}

void VersionFollower::RequestStop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  stopped_.notify_all();
}

void VersionFollower::Join() {
  if (watch_.joinable()) watch_.join();
}

void VersionFollower::Watch() {
  Backoff backoff(std::chrono::seconds(2));
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    bool met = false;
    const Status ended = agent_.WatchVersions(watch_request_, [&](const v1::VersionEvent& event) {
      backoff.Reset();
      OnVersion(event, !std::exchange(met, true));
    });
    OnLost(ended);
    changed_.Notify();
    lock.lock();
    stopped_.wait_for(lock, backoff.Next(), [this] { return stopping_; });
  }
}

void VersionFollower::OnVersion(const v1::VersionEvent& event, bool first) {
  const Result<Held> newest = FromProto(event.newest());
  const auto layout = Bytes16(event.layout_digest());
  const auto digest = Bytes16(event.manifest_digest());  // empty before the first version
  const Status sense = newest.ok() ? layout.status() : newest.status();
  {
    std::lock_guard lock(mutex_);
    error_.clear();
    meetings_ += first ? 1 : 0;
    std::string withdrawn = CleanText(event.withdrawn(), kMaxReason);
    if (withdrawn != withdrawn_) withdrawn_unix_ns_ = telemetry::UnixNanos();
    withdrawn_ = std::move(withdrawn);
    if (sense.ok()) {
      newest_ = *newest;
      newest_digest_ = digest.ok() ? ManifestDigest{*digest} : ManifestDigest();
      newest_committed_unix_ns_ = event.committed_unix_ns();
      announced_layout_ = {*layout};
    } else {
      error_ = sense.ToString();
      error_unix_ns_ = telemetry::UnixNanos();
    }
  }
  if (sense.ok()) {
    telemetry::Log(telemetry::LogLevel::kDebug, "version_announced",
                   {{"model", model_}, {"run", ToHex(newest->run)}, {"version", newest->version}});
  }
  changed_.Notify();
}

void VersionFollower::OnLost(const Status& status) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  if (error_.empty()) telemetry::LogWarn("version_stream_lost", status, {{"model", model_}});
  error_ = status.ToString();
  error_unix_ns_ = telemetry::UnixNanos();
}

bool VersionFollower::Behind(const Held& held, const ManifestDigest& digest) const {
  std::lock_guard lock(mutex_);
  const bool other_bytes = !newest_digest_.IsZero() && newest_digest_ != digest;
  return follow_ && !newest_.nothing() && (newest_ != held || other_bytes);
}

void VersionFollower::Synced(const Held& announced, const replica::PublishedVersion& current) {
  std::lock_guard lock(mutex_);
  if (newest_ != announced && (newest_.run != current.held.run || newest_.version >= current.held.version)) return;
  newest_ = current.held;
  newest_digest_ = current.digest;
  newest_committed_unix_ns_ = current.committed_unix_ns;
}

void VersionFollower::SetLayout(std::shared_ptr<const model::ModelLayout> layout) {
  std::lock_guard lock(mutex_);
  layout_ = std::move(layout);
}

bool VersionFollower::Unprepared() const {
  std::lock_guard lock(mutex_);
  return follow_ && !announced_layout_.IsZero() && announced_layout_ != prepared_;
}

bool VersionFollower::Prepare() {
  if (!Unprepared()) return false;
  {
    std::lock_guard lock(mutex_);
    prepared_ = announced_layout_;
    if (layout_ != nullptr && layout_->digest() == prepared_) return false;
  }
  const auto layout = agent_.GetLayout(model_);
  const Status status = layout.ok() ? replicas_.Allocate(*layout) : layout.status();
  if (status.ok()) {
    SetLayout(*layout);
  } else {
    telemetry::LogWarn("replica_allocate_failed", status, {{"model", model_}});
  }
  return true;
}

}  // namespace lockstep::session
