#include "raas_receiver/origin/fetcher.h"

#include <algorithm>

#include "common/telemetry/log.h"

namespace lockstep::origin {

void Fetcher::Use(std::vector<std::shared_ptr<pull::BlockSource>> sources) {
  MutexLock lock(mutex_);
  sources_.swap(sources);  // those before end after the lock does
  if (!cancelled_) return;
  for (const auto& source : sources_) source->Cancel();
}

void Fetcher::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  for (const auto& source : sources_) source->Cancel();
}

// `fetch` asks one source for what is missing. After a failure `complete` finds out what still is; true: nothing.
Status Fetcher::Fetch(const std::function<Status(pull::BlockSource&)>& fetch,
                      const std::function<bool()>& complete) const {
  Status status;
  for (const auto& source : sources_) {
    status = fetch(*source);
    if (status.ok()) break;
    if (cancelled()) return {ErrorCode::kCancelled, "the pull was cancelled"};
    // The last source's failure is the caller's error, and is logged there.
    if (source != sources_.back()) {
      telemetry::Log(telemetry::LogLevel::kDebug, "source_fetch_failed",
                     {{"model", model_}, {"source", source->name()}, {"message", status.ToString()}});
    }
    if (complete()) return OkStatus();
  }
  return status;
}

Status Fetcher::FetchBlocks(pull::FullRequest request, FullStaging& staging) {
  staging.Expect(request.blocks);
  const auto complete = [&] {
    request.blocks = staging.Missing();
    return request.blocks.empty();
  };
  return Fetch([&](pull::BlockSource& source) { return source.FetchBlocks(request, staging); }, complete);
}

Status Fetcher::FetchDeltas(DeltaStaging& staging) {
  pull::DeltaRequest request = staging.TakeMissing();
  const auto complete = [&] {
    request = staging.TakeMissing();
    return request.steps.empty();
  };
  return Fetch([&](pull::BlockSource& source) { return source.FetchDeltas(request, staging); }, complete);
}

pull::SourceCounters Fetcher::counters() const {
  MutexLock lock(mutex_);
  pull::SourceCounters sum;
  for (const auto& source : sources_) {
    const pull::SourceCounters one = source->counters();
    sum.payload_bytes += one.payload_bytes;
    sum.local_bytes += one.local_bytes;
    sum.plain_bytes += one.plain_bytes;
    sum.streamed_bytes += one.streamed_bytes;
    sum.retries += one.retries;
    sum.bytes_per_s = std::max(sum.bytes_per_s, one.bytes_per_s);
  }
  return sum;
}

}  // namespace lockstep::origin
