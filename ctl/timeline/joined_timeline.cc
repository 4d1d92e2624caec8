#include "ctl/timeline/joined_timeline.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "common/base/text.h"
#include "common/telemetry/timeline.h"

namespace lockstep::ctl {
namespace {

// Beyond the year 2100, and no clock is wrong by 36 years: sums of such times do not overflow.
constexpr int64_t kLatestUnixNs = int64_t{1} << 62;
constexpr int64_t kMostAheadNs = int64_t{1} << 60;

using VersionKey = std::tuple<std::string, std::string, uint64_t>;  // model, run, version

bool Plausible(const v1::TimelineSpan& span) {
  return span.begin_unix_ns() >= 0 && span.begin_unix_ns() <= span.end_unix_ns() && span.end_unix_ns() <= kLatestUnixNs;
}

std::string TitleOf(const v1::TimelineSpans& spans) {
  const std::string daemon = CleanText(spans.daemon(), 64);
  return spans.name().empty() ? daemon : Cat(daemon, " ", CleanText(spans.name(), 256));
}

JoinedTimeline::Daemon Describe(const DaemonTimeline& timeline, const ClockReading& first) {
  JoinedTimeline::Daemon daemon{.title = TitleOf(timeline.spans),
                                .address = timeline.address,
                                .ahead_ns = timeline.clock.ahead_ns - first.ahead_ns,
                                .uncertainty_ns = timeline.clock.uncertainty_ns + first.uncertainty_ns,
                                .corrected = false,
                                .dropped = timeline.spans.dropped()};
  daemon.corrected = std::abs(daemon.ahead_ns) > daemon.uncertainty_ns;
  return daemon;
}

// Every span that may be wanted, without its version's place.
Result<std::vector<JoinedTimeline::Entry>> Gather(std::vector<DaemonTimeline>& timelines,
                                                  std::vector<JoinedTimeline::Daemon>& daemons) {
  std::vector<JoinedTimeline::Entry> entries;
  const ClockReading first = timelines.at(0).clock;
  for (DaemonTimeline& daemon : timelines) {
    daemons.push_back(Describe(daemon, first));
    const int64_t shift = daemons.back().corrected ? -daemons.back().ahead_ns : 0;
    for (v1::TimelineSpan& span : *daemon.spans.mutable_spans()) {
      if (!Plausible(span)) {
        return Status(ErrorCode::kProtocol,
                      Cat(daemons.back().title, " ", daemon.address, ": a span \"", CleanText(span.span(), 64),
                          "\" is from ", span.begin_unix_ns(), " to ", span.end_unix_ns()));
      }
      span.set_begin_unix_ns(span.begin_unix_ns() + shift);
      span.set_end_unix_ns(span.end_unix_ns() + shift);
      entries.push_back({.daemon = daemons.size() - 1, .span = std::move(span), .version = JoinedTimeline::npos});
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::make_tuple(a.span.begin_unix_ns(), -a.span.end_unix_ns()) <
           std::make_tuple(b.span.begin_unix_ns(), -b.span.end_unix_ns());
  });
  return entries;
}

VersionKey KeyOf(const v1::TimelineSpan& span) {
  return {span.model(), span.run(), span.version()};
}

// The versions that `options` wants, in the order of their begins.
std::vector<VersionKey> ChooseVersions(const std::vector<JoinedTimeline::Entry>& entries,
                                       const TimelineOptions& options) {
  std::vector<VersionKey> order;
  std::map<VersionKey, bool> seen;
  for (const JoinedTimeline::Entry& entry : entries) {
    if (entry.span.version() != 0 && !std::exchange(seen[KeyOf(entry.span)], true)) order.push_back(KeyOf(entry.span));
  }
  if (options.version != 0 || options.last == 0) return order;
  std::map<std::string, uint64_t> of_model;
  std::vector<VersionKey> chosen;
  for (auto key = order.rbegin(); key != order.rend(); ++key) {
    if (++of_model[std::get<0>(*key)] <= options.last) chosen.push_back(*key);
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

Result<ClockReading> ReadClock(int64_t called_unix_ns, int64_t took_ns, int64_t reported_unix_ns) {
  const int64_t ours = called_unix_ns + took_ns / 2;
  if (reported_unix_ns < 0 || reported_unix_ns > kLatestUnixNs || std::abs(reported_unix_ns - ours) > kMostAheadNs) {
    return Status(ErrorCode::kProtocol, Cat("its clock says ", reported_unix_ns, " ns after 1970, ours ", ours));
  }
  return ClockReading{.ahead_ns = reported_unix_ns - ours, .uncertainty_ns = took_ns / 2};
}

Result<JoinedTimeline> Join(std::vector<DaemonTimeline> timelines, const TimelineOptions& options) {
  JoinedTimeline joined;
  LS_ASSIGN_OR_RETURN(std::vector<JoinedTimeline::Entry> entries, Gather(timelines, joined.daemons));
  std::map<VersionKey, size_t> places;
  for (const VersionKey& key : ChooseVersions(entries, options)) {
    places[key] = joined.versions.size();
    const auto& [model, run, version] = key;
    joined.versions.push_back({.model = model, .run = run, .version = version});
  }
  const bool everything = options.version == 0 && options.last == 0;
  for (JoinedTimeline::Entry& entry : entries) {
    const auto place = places.find(KeyOf(entry.span));
    const bool of_version = place != places.end();
    if (!of_version && !(everything && entry.span.version() == 0)) continue;
    if (of_version) {
      entry.version = place->second;
      JoinedTimeline::OneVersion& version = joined.versions[place->second];
      if (version.entries.empty()) version.begin_unix_ns = entry.span.begin_unix_ns();
      version.end_unix_ns = std::max(version.end_unix_ns, entry.span.end_unix_ns());
      version.entries.push_back(joined.entries.size());
    }
    joined.entries.push_back(std::move(entry));
  }
  return joined;
}

size_t StageOf(const std::string& span) {
  const auto at = std::find(telemetry::kSpanNames.begin(), telemetry::kSpanNames.end(), span);
  return static_cast<size_t>(at - telemetry::kSpanNames.begin());
}

int64_t PublishToCommitNanos(const JoinedTimeline& timeline, const JoinedTimeline::OneVersion& version) {
  int64_t published = -1;
  int64_t committed = -1;
  for (const size_t at : version.entries) {
    const v1::TimelineSpan& span = timeline.entries[at].span;
    if (span.span() == "export") published = span.end_unix_ns();
    if (span.span() == "commit") committed = std::max(committed, span.end_unix_ns());
  }
  return published < 0 || committed < 0 ? -1 : committed - published;
}

}  // namespace lockstep::ctl
