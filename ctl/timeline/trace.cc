#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "common/base/text.h"
#include "ctl/timeline/joined_timeline.h"

namespace lockstep::ctl {
namespace {

using Entry = JoinedTimeline::Entry;

// Readers of traces have no whole numbers above 2^53.
std::string TransferText(uint64_t transfer) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016lx", static_cast<unsigned long>(transfer));
  return text.data();
}

class TraceWriter {
 public:
  explicit TraceWriter(const JoinedTimeline& timeline)
      : timeline_(timeline), begin_ns_(timeline.entries.empty() ? 0 : timeline.entries[0].span.begin_unix_ns()) {}

  Json Write() {
    AssignThreads();
    for (size_t daemon = 0; daemon < timeline_.daemons.size(); ++daemon) NameProcess(daemon);
    for (const auto& [key, thread] : threads_) NameThread(key, thread);
    for (size_t at = 0; at < timeline_.entries.size(); ++at) AddSpan(at);
    AddArrows();
    return {{"displayTimeUnit", "ms"}, {"otherData", {{"begin_unix_ns", begin_ns_}}}, {"traceEvents", events_}};
  }

 private:
  // Daemon, place and name of the stage, row: spans of one row do not overlap.
  using ThreadKey = std::tuple<size_t, size_t, std::string, size_t>;

  static size_t Pid(size_t daemon) { return daemon + 1; }
  double Micros(int64_t unix_ns) const { return static_cast<double>(unix_ns - begin_ns_) / 1000; }
  ThreadKey KeyOf(size_t at) const {
    const Entry& entry = timeline_.entries[at];
    return {entry.daemon, StageOf(entry.span.span()), entry.span.span(), rows_[at]};
  }

  // Each span to the first row of its name that is free.
  void AssignThreads() {
    std::map<std::pair<size_t, std::string>, std::vector<int64_t>> free_from;
    for (const Entry& entry : timeline_.entries) {
      std::vector<int64_t>& rows = free_from[{entry.daemon, entry.span.span()}];
      const auto row =
          std::find_if(rows.begin(), rows.end(), [&](int64_t from) { return from <= entry.span.begin_unix_ns(); });
      rows_.push_back(static_cast<size_t>(row - rows.begin()));
      if (row == rows.end()) rows.push_back(0);
      rows[rows_.back()] = entry.span.end_unix_ns();
    }
    for (size_t at = 0; at < timeline_.entries.size(); ++at) threads_[KeyOf(at)] = 0;
    size_t thread = 0;
    for (auto& [key, number] : threads_) number = ++thread;
  }

  void Add(const char* kind, size_t pid, size_t thread, const std::string& name, const Json& more) {
    Json event{{"ph", kind}, {"pid", pid}, {"tid", thread}, {"name", name}};
    event.update(more);
    events_.push_back(std::move(event));
  }

  void NameProcess(size_t daemon) {
    const JoinedTimeline::Daemon& facts = timeline_.daemons[daemon];
    Add("M", Pid(daemon), 0, "process_name", {{"args", {{"name", Cat(facts.title, " ", facts.address)}}}});
    Add("M", Pid(daemon), 0, "process_sort_index", {{"args", {{"sort_index", daemon}}}});
  }
  void NameThread(const ThreadKey& key, size_t thread) {
    const auto& [daemon, stage, span, row] = key;
    const std::string name = CleanText(span, 64);
    Add("M", Pid(daemon), thread, "thread_name", {{"args", {{"name", row == 0 ? name : Cat(name, " ", row + 1)}}}});
    Add("M", Pid(daemon), thread, "thread_sort_index", {{"args", {{"sort_index", thread}}}});
  }

  void AddSpan(size_t at) {
    const Entry& entry = timeline_.entries[at];
    const v1::TimelineSpan& span = entry.span;
    Json args{{"model", CleanText(span.model(), 1024)}, {"run", Hex(span.run())}, {"version", span.version()}};
    if (span.transfer() != 0) args["transfer"] = TransferText(span.transfer());
    if (span.bytes() != 0) args["bytes"] = span.bytes();
    args["lane"] = span.lane();
    Add("X", Pid(entry.daemon), threads_.at(KeyOf(at)), CleanText(span.span(), 64),
        {{"cat", "sync"},
         {"ts", Micros(span.begin_unix_ns())},
         {"dur", static_cast<double>(span.end_unix_ns() - span.begin_unix_ns()) / 1000},
         {"args", std::move(args)}});
  }

  void AddArrows() {
    std::multimap<uint64_t, size_t> served;
    std::map<size_t, size_t> compared;  // by version
    for (size_t at = 0; at < timeline_.entries.size(); ++at) {
      const Entry& entry = timeline_.entries[at];
      if (entry.span.span() == "serve" && entry.span.transfer() != 0) served.emplace(entry.span.transfer(), at);
      if (entry.span.span() == "diff" && entry.version != JoinedTimeline::npos) compared[entry.version] = at;
    }
    for (size_t at = 0; at < timeline_.entries.size(); ++at) {
      const Entry& entry = timeline_.entries[at];
      if ((entry.span.span() != "pull" && entry.span.span() != "streaming") || entry.span.transfer() == 0) continue;
      const auto [from, to] = served.equal_range(entry.span.transfer());
      for (auto lane = from; lane != to; ++lane) AddArrow(lane->second, at);
      const auto diff = compared.find(entry.version);
      if (from == to && diff != compared.end()) AddArrow(diff->second, at);
    }
  }

  // Arrows bind to the spans that are open where their ends lie.
  void AddArrow(size_t from, size_t to) {
    const v1::TimelineSpan& source = timeline_.entries[from].span;
    const v1::TimelineSpan& sink = timeline_.entries[to].span;
    const int64_t end = std::clamp(source.begin_unix_ns(), sink.begin_unix_ns(), sink.end_unix_ns());
    const std::string name = Cat("pull ", TransferText(sink.transfer()));
    ++arrows_;
    Add("s", Pid(timeline_.entries[from].daemon), threads_.at(KeyOf(from)), name,
        {{"cat", "pull"}, {"id", arrows_}, {"ts", Micros(source.begin_unix_ns())}});
    Add("f", Pid(timeline_.entries[to].daemon), threads_.at(KeyOf(to)), name,
        {{"cat", "pull"}, {"id", arrows_}, {"ts", Micros(end)}, {"bp", "e"}});
  }

  const JoinedTimeline& timeline_;
  const int64_t begin_ns_;
  std::vector<size_t> rows_;  // per entry
  std::map<ThreadKey, size_t> threads_;
  size_t arrows_ = 0;
  Json events_ = Json::array();
};

}  // namespace

Json TraceOf(const JoinedTimeline& timeline) {
  return TraceWriter(timeline).Write();
}

}  // namespace lockstep::ctl
