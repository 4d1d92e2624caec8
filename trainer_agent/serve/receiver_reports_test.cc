#include "trainer_agent/serve/receiver_reports.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"

namespace lockstep::serve {
namespace {

ReceiverKey Key(const std::string& name, char instance = 'a', const std::string& owner = "") {
  return {"actor", name, owner, std::string(16, instance)};
}

// A receiver, as a pull names it.
ReceiverKey Puller(const std::string& name, const std::string& owner = "") {
  return {"actor", name, owner, ""};
}

VersionRef VersionOf(Version version) {
  return {RunId{{1}}, version};
}

TEST_CASE("A receiver is connected as long as it has a stream, then gone, and forgotten after an hour") {
  ReceiverReports reports;
  REQUIRE(reports.Report(Key("host"), VersionOf(3), VersionOf(2), "the engine says no").ok());
  CHECK(reports.Of("actor").at(0).presence == Presence::kUnknown);
  auto first = reports.Connect(Key("host"));
  auto second = reports.Connect(Key("host"));
  REQUIRE(second.ok());
  first->reset();
  const ReceiverReport report = reports.Of("actor").at(0);
  CHECK(report.presence == Presence::kConnected);
  CHECK(report.held == VersionOf(3));
  CHECK(report.served == VersionOf(2));
  CHECK(report.last_error == "the engine says no");
  CHECK_FALSE(report.name_shared);
  second->reset();
  CHECK(reports.Of("actor").at(0).presence == Presence::kGone);
  const auto now = ReceiverReport::Clock::now();
  CHECK(reports.Of("actor", now + std::chrono::minutes(59)).size() == 1);
  CHECK(reports.Of("actor", now + std::chrono::minutes(61)).empty());
}

TEST_CASE("Two processes of one name are two receivers, and one that took another's place is one") {
  ReceiverReports reports;
  auto first = reports.Connect(Key("host", 'a'));
  REQUIRE(reports.Report(Key("host", 'a'), VersionOf(1), VersionOf(1), "").ok());
  {
    const auto second = reports.Connect(Key("host", 'b'));
    REQUIRE(reports.Report(Key("host", 'b'), VersionOf(2), VersionOf(2), "").ok());
    const auto both = reports.Of("actor");
    REQUIRE(both.size() == 2);
    CHECK((both[0].name_shared && both[1].name_shared));
    CHECK(both[0].held != both[1].held);
    reports.OfPull(Puller("host"), VersionOf(9), "ok");  // of which of them?
    for (const ReceiverReport& report : reports.Of("actor")) CHECK(report.outcome.empty());
  }
  REQUIRE(reports.Of("actor").size() == 1);  // the other is still there
  CHECK_FALSE(reports.Of("actor")[0].name_shared);
  first->reset();
  CHECK(reports.Of("actor").at(0).presence == Presence::kGone);
  const auto restarted = reports.Connect(Key("host", 'c'));
  REQUIRE(reports.Of("actor").size() == 1);
  CHECK(reports.Of("actor")[0].receiver.instance == std::string(16, 'c'));
}

TEST_CASE("A pull says for the one process of its name what it holds; without any, for the name") {
  ReceiverReports reports;
  reports.OfPull(Puller("old"), VersionOf(1), "");
  reports.OfPull(Puller("old"), VersionOf(2), "ok");
  reports.OfPull(Puller("old"), VersionOf(2), "");
  const auto old = reports.Of("actor");
  REQUIRE(old.size() == 1);
  CHECK(old[0].outcome == "ok");
  CHECK(old[0].held == VersionOf(2));
  CHECK(old[0].presence == Presence::kUnknown);
  const auto upgraded = reports.Connect(Key("old"));
  reports.OfPull(Puller("old"), VersionOf(3), "ok");
  REQUIRE(reports.Of("actor").size() == 1);
  CHECK(reports.Of("actor")[0].held == VersionOf(3));
  CHECK(reports.Of("actor")[0].presence == Presence::kConnected);
}

TEST_CASE("What a peer says in another's name is its own, and both are said to share the name") {
  ReceiverReports reports;
  const auto own = reports.Connect(Key("host", 'a', "spiffe://test/infer-0"));
  REQUIRE(reports.Report(Key("host", 'a', "spiffe://test/infer-0"), VersionOf(3), VersionOf(3), "").ok());
  {
    const auto other = reports.Connect(Key("host", 'a', "spiffe://test/infer-1"));
    REQUIRE(reports.Report(Key("host", 'a', "spiffe://test/infer-1"), VersionOf(9), VersionOf(9), "broken").ok());
    reports.OfPull(Puller("host", "spiffe://test/infer-1"), VersionOf(9), "broken");
    const auto both = reports.Of("actor");
    REQUIRE(both.size() == 2);
    CHECK((both[0].name_shared && both[1].name_shared));
    CHECK(both[0].receiver.owner == "spiffe://test/infer-0");
    CHECK(both[0].held == VersionOf(3));
    CHECK((both[0].last_error.empty() && both[0].outcome.empty()));
    CHECK(both[1].outcome == "broken");
  }
  REQUIRE(reports.Of("actor").size() == 2);  // the end of one drops neither
  CHECK(reports.Of("actor")[0].presence == Presence::kConnected);
  CHECK_FALSE(reports.Of("actor")[0].name_shared);
  CHECK(reports.Of("actor")[1].presence == Presence::kGone);
}

TEST_CASE("A receiver that cannot be one is refused, and what it says is cut and cleaned") {
  ReceiverReports reports;
  CHECK_THAT(reports.Report({"actor", "host", "", "short"}, {}, {}, ""),
             FailsWith(ErrorCode::kBadData, "a receiver's instance has 16 bytes, not 5"));
  CHECK_THAT(reports.Report(Key("ho\nst"), {}, {}, ""), FailsWith(ErrorCode::kBadData, "no control characters"));
  CHECK_THAT(reports.Connect({"..", "host", "", std::string(16, 'a')}), FailsWith(ErrorCode::kBadData, ".."));
  REQUIRE(reports.Report(Key("host"), {}, {}, "\x1b" + std::string(5'000, 'x')).ok());
  CHECK(reports.Of("actor").at(0).last_error.size() <= 1'024);
  CHECK(reports.Of("actor").at(0).last_error[0] == '?');
}

TEST_CASE("However many report, those that are connected stay listed, and the number has a bound") {
  ReceiverReports reports;
  const auto connected = reports.Connect(Key("first"));
  for (int i = 0; i < 20'000; ++i) REQUIRE(reports.Report(Key("host-" + std::to_string(i)), {}, {}, "").ok());
  const auto all = reports.Of("actor");
  CHECK(all.size() == 16'384);
  CHECK(all.front().receiver.name == "first");
}

TEST_CASE("A peer that reports in ever new names displaces its own reports, and no other's") {
  ReceiverReports reports;
  REQUIRE(reports.Report(Key("quiet", 'a', "infer-0"), VersionOf(1), VersionOf(1), "").ok());
  for (int i = 0; i < 5'000; ++i) {
    REQUIRE(reports.Report(Key("host-" + std::to_string(i), 'a', "greedy"), {}, {}, "").ok());
  }
  const auto all = reports.Of("actor");
  CHECK(all.size() == 4'096 + 1);
  CHECK(all.back().receiver.name == "quiet");
}

}  // namespace
}  // namespace lockstep::serve
