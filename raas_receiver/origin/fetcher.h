// Fetcher: gets the bytes of one pull from its sources, each asked for what those before it did not bring.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "raas_receiver/origin/staging.h"
#include "raas_receiver/pull/block_source.h"

namespace lockstep::origin {

// Belongs to one pull; Cancel may be called from any thread.
class Fetcher {
 public:
  // `model` is for logs.
  explicit Fetcher(std::string model) : model_(std::move(model)) {}

  // Sets the sources of later fetches, in the order to ask them. Ends the earlier ones. REQUIRES no fetch to run.
  void Use(std::vector<std::shared_ptr<pull::BlockSource>> sources);
  // Ends the sources' connections.
  void Close() { Use({}); }

  // Fetches every block of `request`, or every step that `staging` misses. kCancelled after Cancel. Otherwise returns
  // the last source's error; the errors of the others are logged for debugging. REQUIRES sources.
  Status FetchBlocks(pull::FullRequest request, FullStaging& staging);
  Status FetchDeltas(DeltaStaging& staging);

  // The counters of all sources in use, added up. Any thread.
  pull::SourceCounters counters() const;

  // Makes the running and every later fetch end soon.
  void Cancel();

 private:
  Status Fetch(const std::function<Status(pull::BlockSource&)>& fetch, const std::function<bool()>& complete) const;

  bool cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }

  const std::string model_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<pull::BlockSource>> sources_;  // the fetching thread changes it, under mutex_
  bool cancelled_ LS_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::origin
