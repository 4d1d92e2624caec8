// What several origins announced, as it is while a Watch of all of them runs. For ordered_origin.cc and
// parted_origin.cc.
#pragma once

#include <condition_variable>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/stop_wait.h"
#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

// Watches all origins, across streams that are lost, until it is destroyed. One thread calls.
class Heads {
 public:
  explicit Heads(const std::vector<std::unique_ptr<Origin>>& origins) : heads_(origins.size()) {
    for (size_t i = 0; i < origins.size(); ++i) {
      watches_.emplace_back([this, i, &origin = *origins[i]](const std::stop_token& stop) { Watch(i, origin, stop); });
    }
  }

  struct Announced {
    std::optional<Head> head;  // nothing: the origin does not answer
    Status lost;               // why it does not; OK: it has not answered yet
  };
  // Waits for a change since the last call. kCancelled: `stop` came first.
  Result<std::vector<Announced>> Next(const std::stop_token& stop) {
    MutexLock lock(mutex_);
    changed_.wait(lock, stop, [&]() LS_REQUIRES(mutex_) { return changes_ != seen_; });
    seen_ = changes_;
    if (stop.stop_requested()) return Status(ErrorCode::kCancelled, "the watch was ended");
    return heads_;
  }

 private:
  void Watch(size_t i, Origin& origin, const std::stop_token& stop) {
    Backoff backoff(std::chrono::seconds(2));
    while (!stop.stop_requested()) {
      const Status ended = origin.Watch(stop, [&](const Head& head) {
        backoff.Reset();
        Put(i, {head, OkStatus()});
      });
      Put(i, {std::nullopt, ended});
      WaitForStop(backoff.Next(), stop);
    }
  }
  void Put(size_t i, Announced announced) {
    MutexLock lock(mutex_);
    heads_[i] = std::move(announced);
    ++changes_;
    changed_.notify_all();
  }

  Mutex mutex_;
  std::condition_variable_any changed_;
  uint64_t changes_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t seen_ LS_GUARDED_BY(mutex_) = 0;
  std::vector<Announced> heads_ LS_GUARDED_BY(mutex_);  // by origin
  std::vector<std::jthread> watches_;                   // they are stopped when they go
};

}  // namespace lockstep::origin
