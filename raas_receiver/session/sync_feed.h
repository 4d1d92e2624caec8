// SyncFeed: the subscribers that watch syncs. Every record goes to every subscriber, and the newest of each model to a
// new one at once, so that a late subscriber still learns how the last sync went.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/mutex.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::session {

// Thread-safe; outlives its subscriptions.
class SyncFeed {
 public:
  class Subscription {
   public:
    ~Subscription();
    // True with the next record; false when none came within `wait`, or never will (closed()).
    bool Next(std::chrono::milliseconds wait, v1::SyncRecord& record);
    bool closed() const;

   private:
    friend class SyncFeed;
    Subscription(SyncFeed& feed, std::string model) : feed_(feed), model_(std::move(model)) {}

    SyncFeed& feed_;
    const std::string model_;  // empty: all
    std::deque<v1::SyncRecord> records_;
  };

  // To one model, or to every model when `model` is empty.
  std::unique_ptr<Subscription> Subscribe(const std::string& model);
  void Publish(const v1::SyncRecord& record);
  // No more records will come.
  void Close();

 private:
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::set<Subscription*> subscriptions_ LS_GUARDED_BY(mutex_);
  std::map<std::string, v1::SyncRecord> newest_ LS_GUARDED_BY(mutex_);  // by model
  bool closed_ LS_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::session
