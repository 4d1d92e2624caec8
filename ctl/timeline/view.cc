#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "common/base/text.h"
#include "ctl/output/table.h"
#include "ctl/timeline/joined_timeline.h"

namespace lockstep::ctl {
namespace {

constexpr int64_t kBarWidth = 40;

std::string Millis(int64_t nanos) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", static_cast<double>(nanos) / 1e6);
  return text.data();
}

// Spans of one name, daemon and pull: the lanes of one, mostly.
struct Line {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t bytes = 0;
  size_t spans = 0;
};

// Where [begin, end] lies in a span of `total`, all in nanoseconds; never nothing.
std::string Bar(int64_t begin, int64_t end, int64_t total) {
  const double scale = total > 0 ? static_cast<double>(kBarWidth) / static_cast<double>(total) : 0;
  const auto from = std::min(kBarWidth - 1, static_cast<int64_t>(static_cast<double>(begin) * scale));
  const auto to = std::clamp(static_cast<int64_t>(std::llround(static_cast<double>(end) * scale)), from + 1, kBarWidth);
  return std::string(static_cast<size_t>(from), ' ') + std::string(static_cast<size_t>(to - from), '#');
}

std::string DaemonLine(const JoinedTimeline::Daemon& daemon, bool first) {
  std::string line = Cat(daemon.title, " ", daemon.address);
  if (!first) {
    line += Cat(", its clock ", Millis(std::abs(daemon.ahead_ns)), " ms ", daemon.ahead_ns < 0 ? "behind" : "ahead",
                " (+- ", Millis(daemon.uncertainty_ns), ")", daemon.corrected ? ", corrected" : "");
  }
  if (daemon.dropped > 0) line += Cat(", ", daemon.dropped, " older spans forgotten");
  return line + "\n";
}

std::string VersionText(const JoinedTimeline& timeline, const JoinedTimeline::OneVersion& version) {
  std::map<std::tuple<size_t, uint64_t, size_t, std::string>, Line> lines;  // daemon, pull, stage
  std::map<uint64_t, int64_t> pull_begins;
  for (const size_t at : version.entries) {
    const auto& [daemon, span, place] = timeline.entries[at];
    // Pulls in the order in which they began, and what is of none before them.
    if (span.transfer() != 0) pull_begins.emplace(span.transfer(), span.begin_unix_ns());
    const uint64_t order = span.transfer() == 0 ? 0 : static_cast<uint64_t>(pull_begins[span.transfer()]);
    Line& line = lines[{daemon, order, StageOf(span.span()), span.span()}];
    if (line.spans++ == 0) line.begin_ns = span.begin_unix_ns();
    line.end_ns = std::max(line.end_ns, span.end_unix_ns());
    line.bytes += span.bytes();
  }
  const int64_t total = version.end_unix_ns - version.begin_unix_ns;
  Table table({"DAEMON", "STAGE", ">AT ms", ">TOOK ms", ">BYTES", ""});
  for (const auto& [key, line] : lines) {
    const auto& [daemon, order, stage, name] = key;
    const int64_t begin = line.begin_ns - version.begin_unix_ns;
    table.AddRow({timeline.daemons[daemon].title, line.spans > 1 ? Cat(name, " x", line.spans) : name, Millis(begin),
                  Millis(line.end_ns - line.begin_ns), line.bytes == 0 ? "-" : HumanBytes(line.bytes),
                  Bar(begin, line.end_ns - version.begin_unix_ns, total)});
  }
  std::string text = Cat(CleanText(version.model, 1024), " version ", version.version, ": ", Millis(total), " ms");
  const int64_t lag = PublishToCommitNanos(timeline, version);
  if (lag >= 0) text += Cat(", ", Millis(lag), " ms from the trainer's commit to the last receiver's");
  return text + "\n" + table.ToString();
}

}  // namespace

std::string TimelineText(const JoinedTimeline& timeline) {
  std::string text;
  for (size_t daemon = 0; daemon < timeline.daemons.size(); ++daemon) {
    text += DaemonLine(timeline.daemons[daemon], daemon == 0);
  }
  for (const JoinedTimeline::OneVersion& version : timeline.versions) text += "\n" + VersionText(timeline, version);
  return text;
}

Json TimelineJson(const JoinedTimeline& timeline) {
  Json daemons = Json::array();
  for (const JoinedTimeline::Daemon& daemon : timeline.daemons) {
    daemons.push_back({{"daemon", daemon.title},
                       {"address", daemon.address},
                       {"ahead_us", static_cast<double>(daemon.ahead_ns) / 1000},
                       {"uncertainty_us", static_cast<double>(daemon.uncertainty_ns) / 1000},
                       {"corrected", daemon.corrected},
                       {"dropped", daemon.dropped}});
  }
  Json versions = Json::array();
  for (const JoinedTimeline::OneVersion& version : timeline.versions) {
    Json spans = Json::array();
    for (const size_t at : version.entries) {
      Json span = ToJson(timeline.entries[at].span);
      span["daemon"] = timeline.entries[at].daemon;
      spans.push_back(std::move(span));
    }
    const int64_t lag = PublishToCommitNanos(timeline, version);
    versions.push_back({{"model", version.model},
                        {"run", Hex(version.run)},
                        {"version", version.version},
                        {"begin_unix_ns", version.begin_unix_ns},
                        {"end_unix_ns", version.end_unix_ns},
                        {"publish_to_commit_us", lag < 0 ? Json() : Json(static_cast<double>(lag) / 1000)},
                        {"spans", std::move(spans)}});
  }
  return {{"daemons", std::move(daemons)}, {"versions", std::move(versions)}};
}

}  // namespace lockstep::ctl
