// The spans of several daemons on one clock, grouped by the version that they work towards, and as people, scripts and
// viewers of traces read them.
//
// The clock is that of the first daemon, the agent. Another daemon's clock is corrected only when the calls prove that
// it differs: a less certain correction could put spans of one machine out of order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "ctl/output/json.h"
#include "ctl/timeline/command.h"
#include "proto/lockstep/v1/model.pb.h"

namespace lockstep::ctl {

// A daemon's clock against the caller's.
struct ClockReading {
  int64_t ahead_ns = 0;
  int64_t uncertainty_ns = 0;  // as much as it may be off either way
};

// From one call: the caller's clock when it was made, how long it took, and what the daemon's clock said meanwhile.
// kProtocol for a clock that cannot be one.
Result<ClockReading> ReadClock(int64_t called_unix_ns, int64_t took_ns, int64_t reported_unix_ns);

// The timeline of one daemon, and its clock.
struct DaemonTimeline {
  std::string address;
  ClockReading clock;
  v1::TimelineSpans spans;
};

struct JoinedTimeline {
  struct Daemon {
    std::string title;  // "trainer_agent", "raas_receiver host-3"
    std::string address;
    int64_t ahead_ns = 0;  // of the first one's clock
    int64_t uncertainty_ns = 0;
    bool corrected = false;
    uint64_t dropped = 0;
  };
  struct Entry {
    size_t daemon = 0;
    v1::TimelineSpan span;  // on the first daemon's clock
    size_t version = 0;     // of `versions`; npos: it failed before that was known
  };
  struct OneVersion {
    std::string model;
    std::string run;  // 16 bytes
    uint64_t version = 0;
    std::vector<size_t> entries;  // as in `entries`
    int64_t begin_unix_ns = 0;
    int64_t end_unix_ns = 0;
  };
  static constexpr size_t npos = ~size_t{0};

  std::vector<Daemon> daemons;
  std::vector<Entry> entries;        // by their begin, a span before those inside it
  std::vector<OneVersion> versions;  // by their begin
};

// Joins the spans that `options` select. REQUIRES a daemon. kProtocol, naming the daemon, for spans that end before
// they begin or lie where no clock is.
Result<JoinedTimeline> Join(std::vector<DaemonTimeline> timelines, const TimelineOptions& options);

// The place of a span's name in a version's way; unknown ones come last.
size_t StageOf(const std::string& span);

// From the trainer's commit to the last commit of a receiver; negative when either is not there.
int64_t PublishToCommitNanos(const JoinedTimeline& timeline, const JoinedTimeline::OneVersion& version);

// A line per daemon; then, per version, a table with a line per stage of each daemon and pull, and its bar.
std::string TimelineText(const JoinedTimeline& timeline);

// {"daemons": [{"daemon", "address", "ahead_us", "uncertainty_us", "corrected", "dropped"}],
//  "versions": [{"model", "run", "version", "begin_unix_ns", "end_unix_ns", "publish_to_commit_us",
//                "spans": [a TimelineSpan, and "daemon", its place in "daemons"]}]}
// publish_to_commit_us is null when the trainer's commit or every receiver's is not among the spans.
Json TimelineJson(const JoinedTimeline& timeline);

// A Chrome trace, which Perfetto and chrome://tracing show. A process per daemon, in it a thread per span name, and
// more of them where spans of one name overlap. Each span is a complete event (ph X, times in microseconds since the
// first one) with model, run, version, transfer and bytes as its args. Arrows lead from what an agent's lanes served to
// the pull that received it; where nothing was served, from the comparison that made what was pulled.
Json TraceOf(const JoinedTimeline& timeline);

// An OTLP document in JSON, for OpenTelemetry's collectors (POST /v1/traces). A version is a trace: one span of the
// whole version, and its stages inside. Spans that failed before their version was known are left out.
Json OtlpOf(const JoinedTimeline& timeline);

}  // namespace lockstep::ctl
