#include "raas_receiver/session/version_follower.h"

#include <utility>

#include "common/base/backoff.h"
#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep::session {
VersionFollower::VersionFollower(std::string model, bool follow, origin::Origin& origin, replica::ReplicaPair& replicas,
                                 ChangeSignal& changed)
    : model_(std::move(model)),
      follow_(follow),
      origin_(origin),
      replicas_(replicas),
      changed_(changed),
      layout_(replicas_.current().layout) {}

void VersionFollower::Start(std::stop_token stop) {
  watch_ = std::thread([this, stop = std::move(stop)] { Watch(stop); });
}

void VersionFollower::Join() {
  if (watch_.joinable()) watch_.join();
}

void VersionFollower::Watch(const std::stop_token& stop) {
  Backoff backoff(std::chrono::seconds(2));
  while (!stop.stop_requested()) {
    bool met = false;
    const Status ended = origin_.Watch(stop, [&](const origin::Head& head) {
      backoff.Reset();
      OnHead(head, !std::exchange(met, true));
    });
    if (stop.stop_requested()) return;
    OnLost(ended);
    changed_.Notify();
    WaitForStop(backoff.Next(), stop);
  }
}

void VersionFollower::OnHead(const origin::Head& head, bool first) {
  {
    MutexLock lock(mutex_);
    error_.clear();
    met_unix_ns_ = telemetry::UnixNanos();
    meetings_ += first ? 1 : 0;
    if (head.withdrawn != head_.withdrawn) withdrawn_unix_ns_ = telemetry::UnixNanos();
    head_ = head;
  }
  telemetry::Log(telemetry::LogLevel::kDebug, "version_announced",
                 {{"model", model_}, {"run", ToHex(head.held.run)}, {"version", head.held.version}});
  changed_.Notify();
}

void VersionFollower::OnLost(const Status& status) {
  MutexLock lock(mutex_);
  if (error_.empty()) telemetry::LogWarn("version_stream_lost", status, {{"model", model_}});
  error_ = status.ToString();
  error_unix_ns_ = telemetry::UnixNanos();
}

bool VersionFollower::Behind(const VersionRef& held, const ManifestDigest& digest) const {
  MutexLock lock(mutex_);
  const bool other_bytes = !head_.digest.IsZero() && head_.digest != digest;
  return follow_ && !head_.held.nothing() && (head_.held != held || other_bytes);
}

void VersionFollower::Synced(const VersionRef& announced, const replica::PublishedVersion& current) {
  MutexLock lock(mutex_);
  const VersionRef& newest = head_.held;
  if (newest != announced && (newest.run != current.held.run || newest.version >= current.held.version)) return;
  head_.held = current.held;
  head_.digest = current.digest;
  head_.committed_unix_ns = current.committed_unix_ns;
}

void VersionFollower::SetLayout(std::shared_ptr<const model::ModelLayout> layout) {
  MutexLock lock(mutex_);
  layout_ = std::move(layout);
}

bool VersionFollower::Unprepared() const {
  MutexLock lock(mutex_);
  return follow_ && !head_.layout.IsZero() && head_.layout != prepared_;
}

bool VersionFollower::Prepare(const std::stop_token& stop) {
  if (!Unprepared()) return false;
  {
    MutexLock lock(mutex_);
    prepared_ = head_.layout;
    if (layout_ != nullptr && layout_->digest() == prepared_) return false;
  }
  const auto layout = origin_.GetLayout(stop);
  if (!layout.ok() && stop.stop_requested()) {
    MutexLock lock(mutex_);
    prepared_ = {};
    return true;
  }
  const Status status = layout.ok() ? replicas_.Allocate(*layout) : layout.status();
  if (status.ok()) {
    SetLayout(*layout);
  } else {
    telemetry::LogWarn("replica_allocate_failed", status, {{"model", model_}});
  }
  return true;
}

}  // namespace lockstep::session
