// Timeline: what a daemon did when, as spans that `lockstepctl timeline` joins across daemons into one trace.
//
// Spans are named by a closed set, in the order of a version's way:
//
//   agent     export     the version's first rank begins .. its last rank commits; bytes: the model's
//             diff       the first blocks are given to the delta engine .. the manifest is known; bytes: compared
//             encode     inside diff: the first changed block is coded .. the last one; bytes: coded
//             store      the delta is put together and kept; bytes: its own
//             serve      a lane's share of a pull, first request .. last byte sent; bytes: sent
//   receiver  streaming  the first block taken while the version was being made .. the last one; bytes: of them all
//             negotiate  asking for a pull .. a plan that was checked
//             pull       until every byte wanted is here; bytes: received, by lanes and from local memory
//             stage      inside pull: a delta's blocks become one payload
//             verify     the hashes promised are proved to give the target's digest
//             apply      decode, write and hash what changed; bytes: of the payload
//             repair     blocks that came out wrong are fetched in full
//             commit     the version becomes visible
//             engine     the engine is made to serve it; bytes: written into its memory
//
// Encode is where coding began and ended, not how long it took: comparing and coding alternate block by block, in one
// pass. Spans of a pull carry its id, which both daemons know; the others are joined by model, run and version. What a
// receiver on the agent's host takes from its memory is in its pull: the agent sees nothing of it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace lockstep::telemetry {

inline constexpr auto kSpanNames =
    std::to_array<std::string_view>({"export", "diff", "encode", "store", "serve", "streaming", "negotiate", "pull",
                                     "stage", "verify", "apply", "repair", "commit", "engine"});

// Now, by the clock that other daemons share.
int64_t UnixNanos();

struct Span {
  std::string_view name;  // outlives the timeline: a literal
  std::string model;
  RunId run;
  Version version = 0;    // worked towards; 0: not known, it failed before
  uint64_t transfer = 0;  // pull id; 0: of no one pull
  int64_t begin_unix_ns = 0;
  int64_t end_unix_ns = 0;  // never before the begin
  uint64_t bytes = 0;       // 0: does not apply
  uint32_t lane = 0;        // which of those of its name that ran at once
};

// A moment by two clocks: where a span lies is measured by the one that daemons share, how long it is by the one that
// is never set.
class Moment {
 public:
  Moment() = default;  // now
  // A past moment; `then` is of the clock that is never set.
  explicit Moment(std::chrono::steady_clock::time_point then) : steady_(then) { unix_ns_ -= NanosSince(); }

  int64_t unix_ns() const { return unix_ns_; }
  int64_t NanosSince() const { return NanosUntil(std::chrono::steady_clock::now()); }
  uint64_t MicrosSince() const { return static_cast<uint64_t>(NanosSince()) / 1000; }
  int64_t NanosUntil(std::chrono::steady_clock::time_point then) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(then - steady_).count();
  }

 private:
  int64_t unix_ns_ = UnixNanos();
  std::chrono::steady_clock::time_point steady_ = std::chrono::steady_clock::now();
};

// The last `capacity` spans. Thread-safe; adding one costs less than a microsecond.
class Timeline {
 public:
  static constexpr size_t kCapacity = 4096;

  explicit Timeline(size_t capacity = kCapacity) : capacity_(capacity) {}
  // `added` is called with each span, by the thread that adds it, and must not wait.
  explicit Timeline(std::function<void(const Span&)> added) : capacity_(kCapacity), added_(std::move(added)) {}

  void Add(Span span);
  // Returns the spans of `model` (empty: all) towards `version` (0: all), in the order in which they ended.
  std::vector<Span> Select(std::string_view model, Version version) const;
  uint64_t dropped() const;

 private:
  const size_t capacity_;
  const std::function<void(const Span&)> added_;
  mutable Mutex mutex_;
  std::deque<Span> spans_ LS_GUARDED_BY(mutex_);
  uint64_t dropped_ LS_GUARDED_BY(mutex_) = 0;
};

// Adds `span` as from `begun` to `ended`. `timeline` may be null: then nothing is recorded.
void AddSpan(Timeline* timeline, Span span, const Moment& begun,
             std::chrono::steady_clock::time_point ended = std::chrono::steady_clock::now());

// Adds a span of its own life. `timeline` may be null.
class SpanScope {
 public:
  SpanScope(Timeline* timeline, Span span) : timeline_(timeline), span_(std::move(span)) {}
  ~SpanScope() { AddSpan(timeline_, std::move(span_), begun_); }
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;

  Span& span() { return span_; }  // what is known only later: bytes, version, transfer

 private:
  Timeline* const timeline_;
  Span span_;
  const Moment begun_;
};

// Fills in a daemon's answer to GetTimeline: the spans that `request` selects, and its clock. A template over the
// messages (proto/lockstep/v1/model.proto), so that this package needs none of them. `timeline` may be null.
template <typename Request, typename Answer>
void ReportTimeline(const Timeline* timeline, const Request& request, Answer& answer) {
  if (timeline != nullptr) {
    for (const Span& span : timeline->Select(request.model(), request.version())) {
      auto& reported = *answer.add_spans();
      reported.set_span(std::string(span.name));
      reported.set_model(span.model);
      if (!span.run.IsZero()) reported.set_run(ToBytes(span.run));
      reported.set_version(span.version);
      reported.set_transfer(span.transfer);
      reported.set_begin_unix_ns(span.begin_unix_ns);
      reported.set_end_unix_ns(span.end_unix_ns);
      reported.set_bytes(span.bytes);
      reported.set_lane(span.lane);
    }
    answer.set_dropped(timeline->dropped());
  }
  answer.set_now_unix_ns(UnixNanos());
}

}  // namespace lockstep::telemetry
