// PublishSpans: the spans of one version until it is served (common/telemetry/timeline.h), from a draft's begin on.
//
// A version that is aborted has no spans: nothing is recorded before Committed().
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include "common/telemetry/timeline.h"

namespace lockstep::run {

class PublishSpans {
 public:
  // Export begins. `timeline` may be null, and outlives this.
  PublishSpans(telemetry::Timeline* timeline, const std::string& model, const VersionRef& version)
      : timeline_(timeline), model_(model), version_(version) {}

  // The delta engine gets blocks. Calls do not overlap.
  void BlocksGiven() {
    if (!diff_) diff_.emplace();
  }
  // A changed block was coded. Any thread, until Compared().
  void Coded(uint64_t bytes) {
    const int64_t now = export_.NanosSince();
    int64_t none = 0;
    first_coded_ns_.compare_exchange_strong(none, now);
    for (int64_t last = last_coded_ns_; last < now && !last_coded_ns_.compare_exchange_weak(last, now);) {
    }
    coded_bytes_ += bytes;
  }
  // Export ends, with a model of so many bytes.
  void Committed(uint64_t model_bytes) const { telemetry::AddSpan(timeline_, Of("export", model_bytes), export_); }
  // Every block is compared, so many bytes of them by reading; the manifest is known.
  void Compared(uint64_t bytes) const {
    if (diff_) telemetry::AddSpan(timeline_, Of("diff", bytes), *diff_);
    if (timeline_ == nullptr || first_coded_ns_ == 0) return;
    telemetry::Span encode = Of("encode", coded_bytes_);
    encode.begin_unix_ns = export_.unix_ns() + first_coded_ns_;
    encode.end_unix_ns = export_.unix_ns() + last_coded_ns_;
    timeline_->Add(std::move(encode));
  }
  // The store keeps the coded blocks as one delta; it began to do so at `begun`.
  void Stored(const telemetry::Moment& begun) const { telemetry::AddSpan(timeline_, Of("store", coded_bytes_), begun); }

 private:
  telemetry::Span Of(std::string_view name, uint64_t bytes) const {
    return {.name = name, .model = model_, .run = version_.run, .version = version_.version, .bytes = bytes};
  }

  telemetry::Timeline* const timeline_;
  const std::string model_;
  const VersionRef version_;
  const telemetry::Moment export_;
  std::optional<telemetry::Moment> diff_;
  // Since export_; 0: none yet.
  std::atomic<int64_t> first_coded_ns_ = 0;
  std::atomic<int64_t> last_coded_ns_ = 0;
  std::atomic<uint64_t> coded_bytes_ = 0;
};

}  // namespace lockstep::run
