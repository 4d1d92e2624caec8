#include "raas_receiver/origin/ordered_origin.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/stop_wait.h"
#include "common/telemetry/log.h"

namespace lockstep::origin {
namespace {

constexpr std::chrono::seconds kLongestWait{2};

// What the origins announced, as it is while a Watch runs.
class Heads {
 public:
  explicit Heads(size_t count) : heads_(count), lost_(count) {}

  void Put(size_t origin, const Head& head) {
    MutexLock lock(mutex_);
    heads_[origin] = head;
    ++changes_;
    changed_.notify_all();
  }
  void Lose(size_t origin, const Status& why) {
    MutexLock lock(mutex_);
    heads_[origin].reset();
    lost_[origin] = why;
    ++changes_;
    changed_.notify_all();
  }

  // Waits for a change after `seen`, and counts it there.
  void Wait(uint64_t& seen, const std::stop_token& stop) {
    MutexLock lock(mutex_);
    changed_.wait(lock, stop, [&]() LS_REQUIRES(mutex_) { return changes_ != seen; });
    seen = changes_;
  }

  struct Chosen {
    size_t origin;
    Head head;
  };
  // The first origin that is there and has a version committed at `least_unix_ns` or later. With `first_is_right`, the
  // first origin of all may have any version. Nothing: no origin fits, or one before it has not answered yet.
  std::optional<Chosen> Choose(int64_t least_unix_ns, bool first_is_right) const {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < heads_.size(); ++i) {
      if (!heads_[i] && lost_[i].ok()) return std::nullopt;  // it is asked first, and has not answered yet
      if (!heads_[i]) continue;
      if ((i == 0 && first_is_right) || heads_[i]->committed_unix_ns >= least_unix_ns) return Chosen{i, *heads_[i]};
    }
    return std::nullopt;
  }
  // Where none is to be chosen: the error of the first that has one. OK: some have not answered yet.
  Status Lost() const {
    MutexLock lock(mutex_);
    Status first;
    for (size_t i = 0; i < heads_.size(); ++i) {
      if (!heads_[i] && lost_[i].ok()) return OkStatus();
      if (first.ok() && !heads_[i]) first = lost_[i];
    }
    return first;
  }

 private:
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  uint64_t changes_ LS_GUARDED_BY(mutex_) = 0;
  std::vector<std::optional<Head>> heads_ LS_GUARDED_BY(mutex_);  // nothing: it does not answer
  std::vector<Status> lost_ LS_GUARDED_BY(mutex_);                // OK: it was not lost yet
};

class OrderedOrigin final : public Origin {
 public:
  OrderedOrigin(std::vector<std::unique_ptr<Origin>> origins, int64_t held_unix_ns)
      : origins_(std::move(origins)), announced_unix_ns_(held_unix_ns) {}

  std::string name() const override { return InUse().name(); }
  Abilities can() const override {
    Abilities can;
    for (const auto& origin : origins_) {
      can.follow |= origin->can().follow;
      can.report |= origin->can().report;
    }
    return can;
  }

  Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) override {
    Heads heads(origins_.size());
    std::vector<std::jthread> watches;  // they are stopped when they go
    for (size_t i = 0; i < origins_.size(); ++i) {
      watches.emplace_back([&, i](const std::stop_token& end) { WatchOne(i, heads, end); });
    }
    std::optional<std::pair<VersionRef, int64_t>> announced;  // and when the log's writer wrote it
    uint64_t seen = 0;
    while (true) {
      heads.Wait(seen, stop);
      if (stop.stop_requested()) return {ErrorCode::kCancelled, "the watch was ended"};
      const auto chosen = heads.Choose(announced_unix_ns_, origins_[0]->can().report);
      if (!chosen) {
        LS_RETURN_IF_ERROR(heads.Lost());
        continue;
      }
      const bool other = in_use_.exchange(chosen->origin) != chosen->origin;
      if (other) telemetry::Log(telemetry::LogLevel::kInfo, "source_changed", {{"source", name()}});
      const auto news = std::pair(chosen->head.held, chosen->head.written_unix_ns);
      if (!other && announced == news && !chosen->head.held.nothing()) continue;
      announced = news;
      announced_unix_ns_ = std::max(announced_unix_ns_, chosen->head.committed_unix_ns);
      on_head(chosen->head);
    }
  }

  Result<Layout> GetLayout(std::stop_token stop) override { return InUse().GetLayout(std::move(stop)); }
  Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) override {
    return InUse().Open(want, std::move(stop));
  }
  void Follow(const Want& from, std::stop_token stop) override { InUse().Follow(from, std::move(stop)); }
  Result<std::string> Report(v1::ReportRequest report, std::stop_token stop) override {
    return InUse().Report(std::move(report), std::move(stop));
  }

 private:
  Origin& InUse() const { return *origins_[in_use_]; }

  // Across streams that are lost.
  void WatchOne(size_t i, Heads& heads, const std::stop_token& end) {
    Backoff backoff(kLongestWait);
    while (!end.stop_requested()) {
      const Status ended = origins_[i]->Watch(end, [&](const Head& head) {
        backoff.Reset();
        heads.Put(i, head);
      });
      heads.Lose(i, ended);
      WaitForStop(backoff.Next(), end);
    }
  }

  const std::vector<std::unique_ptr<Origin>> origins_;
  std::atomic<size_t> in_use_ = 0;
  int64_t announced_unix_ns_;  // of Watch: when what was announced last was committed
};

}  // namespace

std::unique_ptr<Origin> NewOrderedOrigin(std::vector<std::unique_ptr<Origin>> origins, int64_t held_unix_ns) {
  if (origins.size() == 1) return std::move(origins.front());
  return std::make_unique<OrderedOrigin>(std::move(origins), held_unix_ns);
}

}  // namespace lockstep::origin
