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

  // What is fetched comes from `sources`, in this order; those before end. REQUIRES no fetch to run.
  void Use(std::vector<std::shared_ptr<pull::BlockSource>> sources);
  // Ends the sources' connections.
  void Close() { Use({}); }

  // OK: every block of `request`, or every step that `staging` misses, is there. kCancelled after Cancel. Otherwise why
  // the last source could not bring the rest: what the others could not is logged for debugging. REQUIRES sources.
  Status FetchBlocks(pull::FullRequest request, FullStaging& staging);
  Status FetchDeltas(DeltaStaging& staging);

  // Of the sources in use together. Any thread.
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
