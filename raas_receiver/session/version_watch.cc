#include "raas_receiver/session/version_watch.h"

#include "raas_receiver/session/backoff.h"

namespace lockstep::session {

VersionWatch::VersionWatch(AgentClient& agent, std::string model, Callbacks callbacks)
    : agent_(agent), model_(std::move(model)), callbacks_(std::move(callbacks)), thread_([this] { Loop(); }) {}

VersionWatch::~VersionWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void VersionWatch::Loop() {
  Backoff backoff(std::chrono::milliseconds(100), std::chrono::seconds(2));
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const Status ended = agent_.WatchVersions(model_, [&](const v1::VersionEvent& event) {
      backoff.Reset();
      callbacks_.on_version(event);
    });
    callbacks_.on_lost(ended);
    lock.lock();
    wake_.wait_for(lock, backoff.Next(), [this] { return stopping_; });
  }
}

}  // namespace lockstep::session
