#include "raas_receiver/session/sync_feed.h"

namespace lockstep::session {
namespace {

// A subscriber that does not listen loses the oldest records.
constexpr size_t kMaxWaiting = 1024;

}  // namespace

SyncFeed::Subscription::~Subscription() {
  MutexLock lock(feed_.mutex_);
  feed_.subscriptions_.erase(this);
}

bool SyncFeed::Subscription::Next(std::chrono::milliseconds wait, v1::SyncRecord& record) {
  MutexLock lock(feed_.mutex_);
  feed_.changed_.wait_for(lock, wait,
                          [this]() LS_REQUIRES(feed_.mutex_) { return feed_.closed_ || !records_.empty(); });
  if (records_.empty()) return false;
  record = std::move(records_.front());
  records_.pop_front();
  return true;
}

bool SyncFeed::Subscription::closed() const {
  MutexLock lock(feed_.mutex_);
  return feed_.closed_ && records_.empty();
}

std::unique_ptr<SyncFeed::Subscription> SyncFeed::Subscribe(const std::string& model) {
  std::unique_ptr<Subscription> subscription(new Subscription(*this, model));
  MutexLock lock(mutex_);
  for (const auto& [name, record] : newest_) {
    if (model.empty() || model == name) subscription->records_.push_back(record);
  }
  subscriptions_.insert(subscription.get());
  return subscription;
}

void SyncFeed::Publish(const v1::SyncRecord& record) {
  MutexLock lock(mutex_);
  newest_[record.model()] = record;
  for (Subscription* subscription : subscriptions_) {
    if (!subscription->model_.empty() && subscription->model_ != record.model()) continue;
    if (subscription->records_.size() == kMaxWaiting) subscription->records_.pop_front();
    subscription->records_.push_back(record);
  }
  changed_.notify_all();
}

void SyncFeed::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace lockstep::session
