#include "common/telemetry/timeline.h"

#include <algorithm>

namespace lockstep::telemetry {

void Timeline::Add(Span span) {
  if (added_) added_(span);
  MutexLock lock(mutex_);
  spans_.push_back(std::move(span));
  if (spans_.size() <= capacity_) return;
  spans_.pop_front();
  ++dropped_;
}

std::vector<Span> Timeline::Select(std::string_view model, Version version) const {
  std::vector<Span> selected;
  MutexLock lock(mutex_);
  for (const Span& span : spans_) {
    const bool of_model = model.empty() || span.model == model;
    if (of_model && (version == 0 || span.version == version)) selected.push_back(span);
  }
  return selected;
}

uint64_t Timeline::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

void AddSpan(Timeline* timeline, Span span, const Moment& begun, std::chrono::steady_clock::time_point ended) {
  if (timeline == nullptr) return;
  span.begin_unix_ns = begun.unix_ns();
  span.end_unix_ns = begun.unix_ns() + std::max<int64_t>(0, begun.NanosUntil(ended));
  timeline->Add(std::move(span));
}

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace lockstep::telemetry
