#include "trainer_agent/store/derived_deltas.h"

#include <algorithm>
#include <chrono>

namespace lockstep::store {
namespace {

// More would keep the last of them waiting for longer than pulling the steps takes.
constexpr size_t kMaxAtWork = 16;
constexpr std::chrono::milliseconds kLookForGone{50};

}  // namespace

DerivedDeltas::~DerivedDeltas() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return std::ranges::all_of(all_, [](const auto& item) { return item.second->ended; }); });
}

DerivedDeltas::Payload DerivedDeltas::Get(payload::ChainView steps, payload::CodecLevel level, const Make& make,
                                          const Gone& gone) {
  const Key key{steps.front()->header().base, steps.back()->header().target, level};
  std::unique_lock lock(mutex_);
  while (true) {
    const std::shared_ptr<Derived> derived = Join(key, steps, make);
    if (derived == nullptr) return nullptr;
    bool left = false;
    while (!derived->ended && !left) {
      ended_.wait_for(lock, kLookForGone);
      left = gone && gone();
    }
    --derived->waiting;
    // One that was given up just before this call came to it is begun again.
    if (left || !derived->given_up) return derived->payload;
  }
}

// The one of `key`, begun now when it is the first; the caller counts among those who wait. Null: it is not made now.
std::shared_ptr<DerivedDeltas::Derived> DerivedDeltas::Join(const Key& key, payload::ChainView steps,
                                                            const Make& make) {
  if (const auto known = all_.find(key); known != all_.end()) {
    ++known->second->waiting;
    return known->second;
  }
  uint64_t bytes = 0;
  uint64_t data_bytes = 0;
  for (const auto& step : steps) {
    bytes += step->total_bytes();
    data_bytes += step->header().data_bytes;
  }
  if (!MakeRoom(bytes)) return nullptr;
  const auto derived = all_[key] = std::make_shared<Derived>();
  derived->waiting = 1;
  derived->bytes = bytes;
  derived->begun_at = ++begun_;
  pool_->Post(
      [this, key, data_bytes, make, derived] { End(key, data_bytes, make([&] { return derived->waiting == 0; })); });
  return derived;
}

// Whether `bytes` more are within the budget, once those made longest ago are forgotten.
bool DerivedDeltas::MakeRoom(uint64_t bytes) {
  const auto at_work = std::ranges::count_if(all_, [](const auto& item) { return !item.second->ended; });
  if (bytes > budget_bytes_ || static_cast<size_t>(at_work) >= kMaxAtWork) return false;
  while (true) {
    uint64_t used = bytes;
    auto oldest = all_.end();
    for (auto at = all_.begin(); at != all_.end(); ++at) {
      used += at->second->bytes;
      if (!at->second->ended || at->second->bytes == 0) continue;
      if (oldest == all_.end() || at->second->begun_at < oldest->second->begun_at) oldest = at;
    }
    if (used <= budget_bytes_) return true;
    if (oldest == all_.end()) return false;
    Forget(*oldest->second);
    all_.erase(oldest);
  }
}

void DerivedDeltas::End(const Key& key, uint64_t smaller_than, const Result<Payload>& made) {
  std::lock_guard lock(mutex_);
  const auto at = all_.find(key);
  Derived& derived = *at->second;
  if (made.ok() && (*made)->header().data_bytes < smaller_than) derived.payload = *made;
  derived.bytes = derived.payload == nullptr ? 0 : derived.payload->total_bytes();
  derived.ended = true;
  derived.given_up = made.status().code() == ErrorCode::kCancelled;
  if (derived.given_up) all_.erase(at);
  ended_.notify_all();
}

void DerivedDeltas::Clear() {
  std::lock_guard lock(mutex_);
  std::erase_if(all_, [this](const auto& item) {
    if (item.second->ended) Forget(*item.second);
    return item.second->ended;
  });
}

void DerivedDeltas::Forget(const Derived& derived) {
  if (derived.payload != nullptr) forgotten_->Add(derived.payload);
}

payload::DeltaChain DerivedDeltas::Kept() const {
  std::lock_guard lock(mutex_);
  payload::DeltaChain kept;
  for (const auto& [key, derived] : all_) {
    if (derived->payload != nullptr) kept.push_back(derived->payload);
  }
  return kept;
}

}  // namespace lockstep::store
