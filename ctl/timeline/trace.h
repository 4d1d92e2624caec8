// A joined timeline as a Chrome trace, which Perfetto and chrome://tracing show.
#pragma once

#include "ctl/output/json.h"
#include "ctl/timeline/joined_timeline.h"

namespace lockstep::ctl {

// A process per daemon, in it a thread per span name, and more of them where spans of one name overlap. Each span is a
// complete event (ph X, times in microseconds since the first one) with model, run, version, transfer and bytes as its
// args. Arrows lead from what an agent's lanes served to the pull that received it; where nothing was served, from the
// comparison that made what was pulled.
Json TraceOf(const JoinedTimeline& timeline);

}  // namespace lockstep::ctl
