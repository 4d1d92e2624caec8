#include "raas_receiver/session/fetcher.h"

#include <algorithm>

#include "common/telemetry/log.h"

namespace lockstep::session {

void Fetcher::Use(std::vector<std::unique_ptr<pull::BlockSource>> sources) {
  std::lock_guard lock(mutex_);
  sources_ = std::move(sources);
  if (!cancelled_) return;
  for (const auto& source : sources_) source->Cancel();
}

void Fetcher::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (const auto& source : sources_) source->Cancel();
}

Status Fetcher::FetchBlocks(pull::FullRequest request, FullStaging& staging) {
  staging.Expect(request.blocks);
  Status status;
  for (const auto& source : sources_) {
    status = source->FetchBlocks(request, staging);
    if (status.ok()) break;
    LogFailure(*source, status);
    request.blocks = staging.Missing();
    if (request.blocks.empty()) return OkStatus();
  }
  return status;
}

Status Fetcher::FetchDeltas(DeltaStaging& staging) {
  pull::DeltaRequest request = staging.TakeMissing();
  Status status;
  for (const auto& source : sources_) {
    status = source->FetchDeltas(request, staging);
    if (status.ok()) break;
    LogFailure(*source, status);
    request = staging.TakeMissing();
    if (request.steps.empty()) return OkStatus();
  }
  return status;
}

pull::SourceCounters Fetcher::counters() const {
  pull::SourceCounters sum;
  for (const auto& source : sources_) {
    const pull::SourceCounters one = source->counters();
    sum.payload_bytes += one.payload_bytes;
    sum.local_bytes += one.local_bytes;
    sum.live_bytes += one.live_bytes;
    sum.retries += one.retries;
    sum.bytes_per_s = std::max(sum.bytes_per_s, one.bytes_per_s);
  }
  return sum;
}

// The last source's failure is the caller's error, and is logged there.
void Fetcher::LogFailure(const pull::BlockSource& source, const Status& status) const {
  if (&source == sources_.back().get()) return;
  telemetry::Log(telemetry::LogLevel::kDebug, "source_fetch_failed",
                 {{"model", model_}, {"source", source.name()}, {"message", status.ToString()}});
}

}  // namespace lockstep::session
