#include "common/telemetry/timeline.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

namespace lockstep::telemetry {
namespace {

Span SpanOf(std::string_view name, const std::string& model, Version version) {
  return {.name = name, .model = model, .version = version};
}

// The messages of GetTimeline, as far as ReportTimeline knows them.
struct Reported : Span {
  std::string span;
  std::string run_bytes;
  void set_run(std::string value) { run_bytes = std::move(value); }
  void set_span(std::string value) { span = std::move(value); }
  void set_model(std::string value) { model = std::move(value); }
  void set_version(uint64_t value) { version = value; }
  void set_transfer(uint64_t value) { transfer = value; }
  void set_begin_unix_ns(int64_t value) { begin_unix_ns = value; }
  void set_end_unix_ns(int64_t value) { end_unix_ns = value; }
  void set_bytes(uint64_t value) { bytes = value; }
  void set_lane(uint32_t value) { lane = value; }
};
struct Answer {
  std::deque<Reported> spans;
  uint64_t dropped = 0;
  int64_t now_unix_ns = 0;
  Reported* add_spans() { return &spans.emplace_back(); }
  void set_dropped(uint64_t value) { dropped = value; }
  void set_now_unix_ns(int64_t value) { now_unix_ns = value; }
};
struct Request {
  std::string model() const { return "actor"; }
  uint64_t version() const { return 3; }
};

TEST_CASE("Spans are selected by model and version, oldest first") {
  Timeline timeline;
  for (const Version version : {1, 2, 1}) timeline.Add(SpanOf("diff", "actor", version));
  timeline.Add(SpanOf("store", "critic", 1));
  CHECK(timeline.Select("", 0).size() == 4);
  CHECK(timeline.Select("actor", 0).size() == 3);
  CHECK(timeline.Select("actor", 1).size() == 2);
  REQUIRE(timeline.Select("", 1).size() == 3);
  CHECK(timeline.Select("", 1).back().name == "store");
  CHECK(timeline.Select("other", 0).empty());
}

TEST_CASE("The oldest spans give way, and it is known how many did") {
  Timeline timeline(3);
  for (Version version = 1; version <= 5; ++version) timeline.Add(SpanOf("diff", "actor", version));
  const auto left = timeline.Select("", 0);
  REQUIRE(left.size() == 3);
  CHECK(left.front().version == 3);
  CHECK(left.back().version == 5);
  CHECK(timeline.dropped() == 2);
}

TEST_CASE("Each span is given to subscribers, also those that give way later") {
  size_t told = 0;
  uint64_t bytes = 0;
  Timeline timeline([&](const Span& span) {
    ++told;
    bytes += span.bytes;
  });
  for (uint64_t i = 0; i < Timeline::kCapacity + 10; ++i) timeline.Add({.name = "pull", .model = "actor", .bytes = 3});
  CHECK(told == Timeline::kCapacity + 10);
  CHECK(bytes == 3 * told);
  CHECK(timeline.dropped() == 10);
}

TEST_CASE("A scope's span is as long as its life and holds what was learned in it") {
  Timeline timeline;
  const int64_t before = UnixNanos();
  {
    SpanScope scope(&timeline, SpanOf("pull", "actor", 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    scope.span().version = 9;
    scope.span().bytes = 77;
  }
  const auto spans = timeline.Select("actor", 9);
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].bytes == 77);
  CHECK(spans[0].begin_unix_ns >= before);
  CHECK(spans[0].end_unix_ns - spans[0].begin_unix_ns >= 3'000'000);
  CHECK(spans[0].end_unix_ns <= UnixNanos() + 1'000'000'000);
}

TEST_CASE("A span that is past lies where it was") {
  Timeline timeline;
  const auto now = std::chrono::steady_clock::now();
  const int64_t unix_now = UnixNanos();
  AddSpan(&timeline, SpanOf("streaming", "actor", 1), Moment(now - std::chrono::hours(5)), now - std::chrono::hours(2));
  const Span span = timeline.Select("", 0).at(0);
  CHECK(span.end_unix_ns - span.begin_unix_ns == std::chrono::nanoseconds(std::chrono::hours(3)).count());
  const int64_t begun = unix_now - std::chrono::nanoseconds(std::chrono::hours(5)).count();
  CHECK(std::abs(span.begin_unix_ns - begun) < std::chrono::nanoseconds(std::chrono::minutes(1)).count());
}

TEST_CASE("Without a timeline nothing is recorded and nothing breaks") {
  { const SpanScope scope(nullptr, SpanOf("pull", "actor", 1)); }
  AddSpan(nullptr, SpanOf("pull", "actor", 1), Moment());
  Answer answer;
  ReportTimeline(nullptr, Request(), answer);
  CHECK(answer.spans.empty());
  CHECK(answer.now_unix_ns > 0);
}

TEST_CASE("A daemon reports every field of the spans it is asked for, and its clock") {
  Timeline timeline(2);
  timeline.Add(SpanOf("diff", "actor", 1));
  timeline.Add({.name = "serve",
                .model = "actor",
                .run = RunId{{7, 8}},
                .version = 3,
                .transfer = 0xf00000000000000d,
                .begin_unix_ns = 10,
                .end_unix_ns = 20,
                .bytes = 5,
                .lane = 2});
  timeline.Add(SpanOf("diff", "actor", 4));
  Answer answer;
  ReportTimeline(&timeline, Request(), answer);
  REQUIRE(answer.spans.size() == 1);
  const Reported& reported = answer.spans[0];
  CHECK(reported.span == "serve");
  CHECK(reported.model == "actor");
  CHECK(reported.run_bytes == std::string("\x07\x08") + std::string(14, '\0'));
  CHECK(reported.version == 3);
  CHECK(reported.transfer == 0xf00000000000000d);
  CHECK(reported.begin_unix_ns == 10);
  CHECK(reported.end_unix_ns == 20);
  CHECK(reported.bytes == 5);
  CHECK(reported.lane == 2);
  CHECK(answer.dropped == 1);
}

TEST_CASE("Threads may add and select at once") {
  Timeline timeline(64);
  std::vector<std::thread> threads;
  std::atomic<size_t> most = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&timeline, &most] {
      for (Version version = 1; version <= 500; ++version) {
        timeline.Add(SpanOf("serve", "actor", version));
        const size_t held = timeline.Select("actor", 0).size();
        if (held > most) most = held;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most <= 64);
  CHECK(timeline.Select("", 0).size() == 64);
  CHECK(timeline.dropped() == 4 * 500 - 64);
}

}  // namespace
}  // namespace lockstep::telemetry
