// A joined timeline as people, scripts and viewers of traces read it.
#pragma once

#include <string>

#include "ctl/output/json.h"
#include "ctl/timeline/joined_timeline.h"

namespace lockstep::ctl {

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

// What OpenTelemetry's collectors take by HTTP (POST /v1/traces, OTLP in JSON). A version is a trace: a span of all of
// it, and its stages inside. Spans that failed before their version was known are left out.
Json OtlpOf(const JoinedTimeline& timeline);

}  // namespace lockstep::ctl
