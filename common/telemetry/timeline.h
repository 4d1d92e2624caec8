// Timeline: what a daemon did when, as spans that `lockstepctl timeline` joins across daemons into one trace.
//
// Spans are named by a closed set, in the order of a version's way: export, diff, encode, store (agent); serve (agent,
// a lane's share of a pull); negotiate, pull, stage, verify, apply, repair, commit, engine (receiver). Those of a pull
// carry its id, which both daemons know; the others are joined by model and version.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"

namespace lockstep {

struct Span {
  std::string_view name;  // outlives the timeline: a literal
  std::string model;
  Version version = 0;
  uint64_t transfer = 0;  // pull id; 0: of no one pull
  int64_t begin_unix_ns = 0;
  int64_t end_unix_ns = 0;
  uint64_t bytes = 0;  // moved by it; 0: does not apply
  uint32_t lane = 0;   // which of those of its name that ran at once
};

// The last `capacity` spans. Thread-safe; adding one costs less than a microsecond.
class Timeline {
 public:
  explicit Timeline(size_t capacity = 4096) : capacity_(capacity) {}

  void Add(Span span);
  // Those of `model` (empty: all) towards `version` (0: all), oldest first.
  std::vector<Span> Select(std::string_view model, Version version) const;
  uint64_t dropped() const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Span> spans_;
  uint64_t dropped_ = 0;
};

int64_t UnixNanos();

// Adds a span of its own life. `timeline` may be null: then nothing is recorded.
class SpanScope {
 public:
  SpanScope(Timeline* timeline, Span span) : timeline_(timeline), span_(std::move(span)) {
    span_.begin_unix_ns = UnixNanos();
  }
  ~SpanScope() {
    if (timeline_ == nullptr) return;
    span_.end_unix_ns = UnixNanos();
    timeline_->Add(std::move(span_));
  }
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;

  Span& span() { return span_; }  // what is known only later: bytes, version, transfer

 private:
  Timeline* const timeline_;
  Span span_;
};

}  // namespace lockstep
