// lockstepctl timeline: clocks, what is joined to what, and what comes out.
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/temp_dir.h"
#include "common/rpc/rpc_server.h"
#include "ctl/ctl_testing.h"
#include "ctl/output/json.h"
#include "ctl/timeline/joined_timeline.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::ctl {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kBegin = 1'740'830'400'000'000'000;  // of every version here, on the agent's clock
const std::string kRun(16, '\x11');

struct Times {
  int64_t begin_ms;
  int64_t end_ms;
};

v1::TimelineSpan MakeSpan(const std::string& name, uint64_t version, Times times, uint64_t transfer = 0) {
  v1::TimelineSpan span;
  span.set_span(name);
  span.set_model("actor");
  span.set_run(kRun);
  span.set_version(version);
  span.set_transfer(transfer);
  span.set_begin_unix_ns(kBegin + times.begin_ms * kMillisecond);
  span.set_end_unix_ns(kBegin + times.end_ms * kMillisecond);
  return span;
}

v1::TimelineSpans Spans(const std::string& daemon, const std::string& name, std::vector<v1::TimelineSpan> spans) {
  v1::TimelineSpans timelines;
  timelines.set_daemon(daemon);
  timelines.set_name(name);
  for (v1::TimelineSpan& span : spans) *timelines.add_spans() = std::move(span);
  return timelines;
}

// Version 7: exported, compared, served over two lanes, pulled and committed.
DaemonTimeline AnAgent() {
  std::vector<v1::TimelineSpan> spans = {MakeSpan("diff", 7, {2, 32}), MakeSpan("export", 7, {0, 30}),
                                         MakeSpan("serve", 7, {36, 44}, 5), MakeSpan("serve", 7, {36, 46}, 5)};
  spans[3].set_lane(1);
  spans[3].set_bytes(2048);
  return {.address = "a:1", .clock = {}, .spans = Spans("trainer_agent", "", spans)};
}
DaemonTimeline AReceiver(ClockReading clock = {}) {
  std::vector<v1::TimelineSpan> spans = {MakeSpan("negotiate", 7, {34, 35}, 5), MakeSpan("pull", 7, {35, 48}, 5),
                                         MakeSpan("stage", 7, {47, 48}, 5), MakeSpan("apply", 7, {48, 60}, 5),
                                         MakeSpan("commit", 7, {60, 61}, 5)};
  for (v1::TimelineSpan& span : spans) {
    span.set_begin_unix_ns(span.begin_unix_ns() + clock.ahead_ns);
    span.set_end_unix_ns(span.end_unix_ns() + clock.ahead_ns);
  }
  return {.address = "r:1", .clock = clock, .spans = Spans("raas_receiver", "host-3", spans)};
}

JoinedTimeline Joined(std::vector<DaemonTimeline> timelines, const TimelineOptions& options = {}) {
  auto joined = Join(std::move(timelines), options);
  REQUIRE(joined.ok());
  return *std::move(joined);
}

std::vector<Json> EventsOf(const Json& trace, const std::string& kind) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == kind) events.push_back(event);
  }
  return events;
}

TEST_CASE("A clock is read at the middle of the call, and half the call is its uncertainty") {
  const auto reading = ReadClock(kBegin, 4 * kMillisecond, kBegin + 12 * kMillisecond);
  REQUIRE(reading.ok());
  CHECK(reading->ahead_ns == 10 * kMillisecond);
  CHECK(reading->uncertainty_ns == 2 * kMillisecond);
  for (const int64_t timelines : {int64_t{-1}, int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    CHECK(ReadClock(kBegin, kMillisecond, timelines).status().code() == ErrorCode::kProtocol);
  }
}

TEST_CASE("A receiver's spans are shifted to the agent's clock when its clock is proved to be another") {
  const JoinedTimeline joined =
      Joined({AnAgent(), AReceiver({.ahead_ns = 5'000 * kMillisecond, .uncertainty_ns = kMillisecond})});
  CHECK(joined.daemons[1].corrected);
  CHECK(joined.daemons[1].ahead_ns == 5'000 * kMillisecond);
  REQUIRE(joined.versions.size() == 1);
  CHECK(joined.versions[0].begin_unix_ns == kBegin);
  CHECK(joined.versions[0].end_unix_ns == kBegin + 61 * kMillisecond);
  CHECK(PublishToCommitNanos(joined, joined.versions[0]) == 31 * kMillisecond);
}

TEST_CASE("A clock that may be the agent's is left alone, and clocks are against the agent's, not the caller's") {
  DaemonTimeline agent = AnAgent();
  agent.clock = {.ahead_ns = 90 * kMillisecond, .uncertainty_ns = kMillisecond};
  DaemonTimeline receiver = AReceiver();
  receiver.clock = {.ahead_ns = 89 * kMillisecond, .uncertainty_ns = kMillisecond};
  const JoinedTimeline joined = Joined({agent, receiver});
  CHECK_FALSE(joined.daemons[1].corrected);
  CHECK(joined.daemons[1].ahead_ns == -kMillisecond);
  CHECK(joined.daemons[1].uncertainty_ns == 2 * kMillisecond);
  CHECK(joined.versions[0].end_unix_ns == kBegin + 61 * kMillisecond);
}

TEST_CASE("Spans that end before they begin, or lie where no clock is, are a protocol error that names the daemon") {
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {-1, 1}, {1, std::numeric_limits<int64_t>::max()}}) {
    DaemonTimeline receiver = AReceiver();
    receiver.spans.mutable_spans(0)->set_begin_unix_ns(begin);
    receiver.spans.mutable_spans(0)->set_end_unix_ns(end);
    const Status status = Join({AnAgent(), receiver}, {}).status();
    CHECK_THAT(status, FailsWith(ErrorCode::kProtocol, "raas_receiver host-3 r:1"));
  }
}

TEST_CASE("The newest versions of each model are kept, and the same number of another run is another version") {
  DaemonTimeline agent = AnAgent();
  agent.spans.clear_spans();
  for (uint64_t version = 1; version <= 5; ++version) {
    *agent.spans.add_spans() = MakeSpan("export", version, {static_cast<int64_t>(version), 100});
  }
  v1::TimelineSpan other_run = MakeSpan("export", 5, {50, 100});
  other_run.set_run(std::string(16, '\x22'));
  v1::TimelineSpan other_model = MakeSpan("export", 1, {0, 1});
  other_model.set_model("critic");
  v1::TimelineSpan unknown = MakeSpan("negotiate", 0, {60, 61});
  unknown.clear_run();
  for (const auto& span : {other_run, other_model, unknown}) *agent.spans.add_spans() = span;

  const JoinedTimeline newest = Joined({agent}, {.last = 2});
  REQUIRE(newest.versions.size() == 3);
  CHECK(newest.versions[0].model == "critic");
  CHECK(newest.versions[1].run == kRun);
  CHECK(newest.versions[1].version == 5);
  CHECK(newest.versions[2].run == other_run.run());
  CHECK(newest.entries.size() == 3);
  const JoinedTimeline all = Joined({agent}, {.last = 0});
  CHECK(all.versions.size() == 7);
  CHECK(all.entries.size() == 8);  // also what failed before its version was known
}

TEST_CASE("A trace has a process per daemon, a thread per stage and overlap, and every span as a complete event") {
  const Json trace = TraceOf(Joined({AnAgent(), AReceiver()}));
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const Json& event : EventsOf(trace, "M")) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["name"] == "thread_name") threads[{event["pid"], event["tid"]}] = event["args"]["name"];
  }
  CHECK(processes == std::map<int, std::string>{{1, "trainer_agent a:1"}, {2, "raas_receiver host-3 r:1"}});
  std::multiset<std::string> names;
  for (const auto& [thread, name] : threads) names.insert(name);
  CHECK(names == std::multiset<std::string>{"export", "diff", "serve", "serve 2", "negotiate", "pull", "stage", "apply",
                                            "commit"});
  const auto spans = EventsOf(trace, "X");
  REQUIRE(spans.size() == 9);
  std::map<std::pair<int, int>, double> busy_until;
  for (const Json& span : spans) {
    const std::pair<int, int> thread{span["pid"], span["tid"]};
    CHECK(threads.at(thread).starts_with(span["name"].get<std::string>()));
    CHECK(span["ts"].get<double>() >= busy_until[thread]);
    busy_until[thread] = span["ts"].get<double>() + span["dur"].get<double>();
    CHECK(span["args"]["version"] == 7);
    CHECK(span["args"]["model"] == "actor");
  }
  const Json& pull = *std::find_if(spans.begin(), spans.end(), [](const Json& span) { return span["name"] == "pull"; });
  CHECK(pull["ts"] == 35'000.0);
  CHECK(pull["dur"] == 13'000.0);
  CHECK(pull["args"]["transfer"] == "0000000000000005");
}

TEST_CASE("Arrows lead from each lane that served a pull to it, and from the comparison where none did") {
  const Json by_lanes = TraceOf(Joined({AnAgent(), AReceiver()}));
  CHECK(EventsOf(by_lanes, "s").size() == 2);
  const auto ends = EventsOf(by_lanes, "f");
  REQUIRE(ends.size() == 2);
  for (const Json& end : ends) {
    CHECK(end["pid"] == 2);
    CHECK(end["ts"] == 36'000.0);
  }
  DaemonTimeline local = AnAgent();
  local.spans.mutable_spans()->DeleteSubrange(2, 2);
  const Json by_memory = TraceOf(Joined({local, AReceiver()}));
  REQUIRE(EventsOf(by_memory, "s").size() == 1);
  CHECK(EventsOf(by_memory, "s")[0]["ts"] == 2'000.0);
  CHECK(EventsOf(by_memory, "f")[0]["ts"] == 35'000.0);
}

TEST_CASE("The table has a line per stage with its time and bar, lanes of one pull together") {
  const std::string text = TimelineText(Joined({AnAgent(), AReceiver()}));
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  INFO(text);
  CHECK(has("actor version 7: 61.00 ms, 31.00 ms from the trainer's commit to the last receiver's"));
  CHECK(has("raas_receiver host-3 r:1, its clock 0.00 ms ahead"));
  CHECK(has("trainer_agent         serve x2   36.00    10.00  2.0 KiB                         #######\n"));
  CHECK(has("raas_receiver host-3  stage      47.00     1.00        -                                #\n"));
  CHECK(text.find("export") < text.find("diff"));
  CHECK(text.find("negotiate") < text.find("host-3  commit"));
}

TEST_CASE("JSON has every span with its daemon, and null where no receiver committed") {
  const Json json = TimelineJson(Joined({AnAgent(), AReceiver()}));
  CHECK(json["daemons"][1]["daemon"] == "raas_receiver host-3");
  CHECK(json["versions"][0]["run"] == Hex(kRun));
  CHECK(json["versions"][0]["publish_to_commit_us"] == 31'000.0);
  CHECK(json["versions"][0]["spans"].size() == 9);
  CHECK(json["versions"][0]["spans"][0]["span"] == "export");
  CHECK(json["versions"][0]["spans"][8]["daemon"] == 1);
  CHECK(TimelineJson(Joined({AnAgent()}))["versions"][0]["publish_to_commit_us"].is_null());
}

// Daemons that answer GetTimeline with what they were given, as far as it is asked for.
template <typename Service>
class FakeDaemon final : public Service {
 public:
  explicit FakeDaemon(v1::TimelineSpans timelines) : told_(std::move(timelines)) {
    server_ = *rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {this}, .health_services = {}});
  }
  grpc::Status GetTimeline(grpc::ServerContext*, const v1::TimelineRequest* request,
                           v1::TimelineSpans* answer) override {
    *answer = told_;
    if (request->version() != 0 && request->version() != 7) answer->clear_spans();
    answer->set_now_unix_ns(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                (std::chrono::system_clock::now() + ahead).time_since_epoch())
                                .count());
    return grpc::Status::OK;
  }
  std::string address() const { return Cat("127.0.0.1:", server_->bound_port()); }
  void Stop() { server_->Drain(std::chrono::milliseconds(100)); }

  std::chrono::seconds ahead{0};

 private:
  const v1::TimelineSpans told_;
  std::unique_ptr<rpc::RpcServer> server_;
};

struct Fleet {
  FakeDaemon<v1::TrainerAgent::Service> agent{AnAgent().spans};
  FakeDaemon<v1::RaasReceiver::Service> first{AReceiver().spans};
  FakeDaemon<v1::RaasReceiver::Service> second{AReceiver().spans};

  Answer Ask(std::vector<std::string> words) {
    words.insert(words.begin(), {"--agent", agent.address(), "--receiver", first.address(), "--receiver",
                                 second.address(), "timeline"});
    return RunWords(words);
  }
};

TEST_CASE("The command asks every daemon that is named, and finds a clock that is ahead") {
  Fleet fleet;
  fleet.second.ahead = std::chrono::hours(1);
  const Answer answer = fleet.Ask({"actor", "--version", "7", "--json"});
  REQUIRE(answer.status.ok());
  const Json json = Json::parse(answer.text);
  REQUIRE(json["daemons"].size() == 3);
  CHECK(json["daemons"][1]["corrected"] == false);
  CHECK(json["daemons"][2]["corrected"] == true);
  CHECK(std::abs(json["daemons"][2]["ahead_us"].get<double>() - 3'600e6) < 1e6);
  CHECK(json["versions"][0]["spans"].size() == 4 + 2 * 5);
}

TEST_CASE("The trace goes to a file, or alone to standard output") {
  Fleet fleet;
  const os::TempDir directory;
  const std::string path = directory.path() + "/trace.json";
  const Answer to_file = fleet.Ask({"--out", path});
  REQUIRE(to_file.status.ok());
  CHECK(to_file.text.find("actor version 7") != std::string::npos);
  CHECK(EventsOf(Json::parse(std::ifstream(path)), "X").size() == 14);
  const Answer printed = fleet.Ask({"--out", "-"});
  CHECK(EventsOf(Json::parse(printed.text), "X").size() == 14);
  CHECK(fleet.Ask({"--out", directory.path() + "/no/such"}).status.code() == ErrorCode::kNotFound);
}

TEST_CASE("A daemon that is not there is named, and a version that no daemon remembers is not found") {
  Fleet fleet;
  CHECK(fleet.Ask({"--version", "9"}).status.code() == ErrorCode::kNotFound);
  const std::string gone = fleet.second.address();
  fleet.second.Stop();
  const Answer answer = fleet.Ask({"--timeout", "2s"});
  CHECK_THAT(answer.status, FailsWith(ErrorCode::kUnavailable, gone));
}

TEST_CASE("Wrong command lines for timeline are usage errors") {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"timeline", "--version"},
                                             {"timeline", "--version", "new"},
                                             {"timeline", "--last", "-1"},
                                             {"timeline", "--out", "-", "--json"},
                                             {"timeline", "--receiver", "nowhere"},
                                             {"status", "--receiver", "a:1", "--receiver", "b:1"}}) {
    INFO(words.back());
    CHECK(RunWords(words).status.code() == ErrorCode::kUsage);
  }
}

}  // namespace
}  // namespace lockstep::ctl
