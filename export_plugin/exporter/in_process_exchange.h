// InProcessExchange: ranks that are threads of one test, and what can go wrong between them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "export_plugin/exporter/exchange.h"

namespace lockstep::exporter {

// Where all ranks of a test meet. Thread-safe.
class ExchangeHub {
 public:
  // Sees, and may change, each message as it is delivered: from, to, its number between the two, its bytes.
  using Tamper = std::function<void(uint32_t, uint32_t, size_t, std::span<std::byte>)>;

  explicit ExchangeHub(std::chrono::milliseconds timeout = std::chrono::seconds(20)) : timeout_(timeout) {}

  // The exchange of `rank`; outlived by the hub.
  std::unique_ptr<Exchange> Of(uint32_t rank);

  // From now on nothing comes from or goes to `rank`.
  void Break(uint32_t rank) {
    MutexLock lock(mutex_);
    broken_.insert(rank);
    changed_.notify_all();
  }
  void SetTamper(Tamper tamper) {
    MutexLock lock(mutex_);
    tamper_ = std::move(tamper);
  }
  // Delivered so far.
  uint64_t bytes(uint32_t from, uint32_t to) {
    MutexLock lock(mutex_);
    return ways_[{from, to}].bytes;
  }

 private:
  friend class InProcessExchange;

  struct Message {
    uint32_t peer = 0;
    const void* from = nullptr;
    void* to = nullptr;
    uint64_t bytes = 0;
    bool done = false;
    Status status;
  };
  struct Way {
    std::deque<std::shared_ptr<Message>> sends;
    std::deque<std::shared_ptr<Message>> receives;
    size_t messages = 0;
    uint64_t bytes = 0;
  };

  void Deliver(uint32_t from, uint32_t to, Way& way) {
    while (!way.sends.empty() && !way.receives.empty()) {
      Message& send = *way.sends.front();
      Message& receive = *way.receives.front();
      if (send.bytes == receive.bytes) {
        if (send.bytes > 0) std::memcpy(receive.to, send.from, send.bytes);
        if (tamper_) tamper_(from, to, way.messages, {static_cast<std::byte*>(receive.to), receive.bytes});
        way.bytes += send.bytes;
        ++way.messages;
      } else {
        send.status = receive.status = {
            ErrorCode::kUnavailable, Cat("sent ", send.bytes, " bytes where ", receive.bytes, " were to be received")};
      }
      send.done = receive.done = true;
      way.sends.pop_front();
      way.receives.pop_front();
      changed_.notify_all();
    }
  }

  const std::chrono::milliseconds timeout_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<uint32_t, uint32_t>, Way> ways_ LS_GUARDED_BY(mutex_);
  std::set<uint32_t> broken_ LS_GUARDED_BY(mutex_);
  Tamper tamper_ LS_GUARDED_BY(mutex_);
};

class InProcessExchange : public Exchange {
 public:
  InProcessExchange(ExchangeHub* hub, uint32_t rank) : hub_(*hub), rank_(rank) {}

  Result<Transfer> StartSend(uint32_t peer, const void* data, uint64_t bytes) override {
    return Start(rank_, peer, peer, {.peer = peer, .from = data, .bytes = bytes});
  }
  Result<Transfer> StartReceive(uint32_t peer, void* data, uint64_t bytes) override {
    return Start(peer, rank_, peer, {.peer = peer, .to = data, .bytes = bytes});
  }
  Status Wait(Transfer transfer) override {
    MutexLock lock(hub_.mutex_);
    const auto found = started_.find(transfer);
    if (found == started_.end()) return {ErrorCode::kState, Cat("there is no transfer ", transfer)};
    const std::shared_ptr<ExchangeHub::Message> message = found->second;
    started_.erase(found);
    const auto settled = [&] { return message->done || Broken(message->peer); };
    if (!hub_.changed_.wait_for(lock, hub_.timeout_, settled)) {
      Forget(message.get());
      return {ErrorCode::kUnavailable, Cat("rank ", message->peer, " did not answer in time")};
    }
    if (message->done) return message->status;
    Forget(message.get());
    return {ErrorCode::kUnavailable, Cat("rank ", message->peer, " is gone")};
  }

 private:
  bool Broken(uint32_t peer) const { return hub_.broken_.count(peer) + hub_.broken_.count(rank_) > 0; }

  Result<Transfer> Start(uint32_t from, uint32_t to, uint32_t peer, ExchangeHub::Message message) {
    MutexLock lock(hub_.mutex_);
    if (Broken(peer)) return Status(ErrorCode::kUnavailable, Cat("rank ", peer, " is gone"));
    auto started = std::make_shared<ExchangeHub::Message>(std::move(message));
    ExchangeHub::Way& way = hub_.ways_[{from, to}];
    (started->from != nullptr ? way.sends : way.receives).push_back(started);
    hub_.Deliver(from, to, way);
    started_[++last_] = std::move(started);
    return last_;
  }

  // Its memory may go away now.
  void Forget(const ExchangeHub::Message* message) {
    for (auto& [ends, way] : hub_.ways_) {
      std::erase_if(way.sends, [&](const auto& one) { return one.get() == message; });
      std::erase_if(way.receives, [&](const auto& one) { return one.get() == message; });
    }
  }

  ExchangeHub& hub_;
  const uint32_t rank_;
  Transfer last_ = 0;
  std::map<Transfer, std::shared_ptr<ExchangeHub::Message>> started_;
};

inline std::unique_ptr<Exchange> ExchangeHub::Of(uint32_t rank) {
  return std::make_unique<InProcessExchange>(this, rank);
}

}  // namespace lockstep::exporter
