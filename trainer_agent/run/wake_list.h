// WakeList: who waits for something new of a run. A reader looks, is told that there is nothing new, and is woken once
// when there may be; the reader looks again then. VersionCatalog, DeltaFeed and StreamingDelta have a list of
// receivers' streams and lanes, ModelPublisher one of ranks.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::run {

// A wake must not block, and may be called on any thread, also after its reader has expired.
using Wake = std::function<void()>;

// Not thread-safe: the owner's mutex guards it.
class WakeList {
 public:
  // Adds a reader, and drops those that are gone, so that the list stays as short as there are readers.
  void Add(std::weak_ptr<const void> reader, Wake wake) {
    if (sleepers_.size() >= sweep_at_) {
      std::erase_if(sleepers_, [](const auto& sleeper) { return sleeper.first.expired(); });
      sweep_at_ = std::max<size_t>(64, 2 * sleepers_.size());
    }
    sleepers_.emplace_back(std::move(reader), std::move(wake));
  }

  // Empties the list, and adds its wakes to `wakes`. The caller calls them, and without the owner's mutex where a wake
  // may take that.
  void Take(std::vector<Wake>& wakes) {
    for (auto& [reader, wake] : std::exchange(sleepers_, {})) wakes.push_back(std::move(wake));
  }

 private:
  std::vector<std::pair<std::weak_ptr<const void>, Wake>> sleepers_;
  size_t sweep_at_ = 64;
};

inline void CallAll(const std::vector<Wake>& wakes) {
  for (const Wake& wake : wakes) wake();
}

}  // namespace lockstep::run
