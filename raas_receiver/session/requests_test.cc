#include "raas_receiver/session/requests.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForEver = std::chrono::minutes(1);

bool Never() {
  return false;
}

struct Fixture {
  ChangeSignal changed;
  Requests requests{"actor", changed};

  // What a session's thread does.
  template <typename Condition>
  void WaitFor(Condition condition) {
    REQUIRE(changed.WaitFor(kForEver, condition));
  }
};

v1::SyncRecord RecordOf(const std::string& mode) {
  v1::SyncRecord record;
  record.set_mode(mode);
  return record;
}

TEST_CASE("A pull is due until the sync that began after it has ended, and is answered with that one's record") {
  Fixture fixture;
  CHECK_FALSE(fixture.requests.due(Requests::kPull));
  Result<v1::SyncRecord> answer = Status(ErrorCode::kInternal, "none yet");
  std::thread caller([&] { answer = fixture.requests.Ask(Requests::kPull, kForEver, Never, true); });
  fixture.WaitFor([&] { return fixture.requests.due(Requests::kPull); });
  const Requests::Turn pulls = fixture.requests.Begin(Requests::kPull);
  CHECK(pulls.force_full);
  CHECK(fixture.requests.due(Requests::kPull));
  fixture.requests.End(Requests::kPull, pulls, OkStatus(), RecordOf("full"));
  caller.join();
  REQUIRE(answer.ok());
  CHECK(answer->mode() == "full");
  CHECK_FALSE(fixture.requests.due(Requests::kPull));
  CHECK_FALSE(fixture.requests.Begin(Requests::kPull).force_full);
}

TEST_CASE("A pull that comes while a sync runs waits for the next one") {
  Fixture fixture;
  const Requests::Turn first = fixture.requests.Begin(Requests::kPull);
  Result<v1::SyncRecord> answer = Status(ErrorCode::kInternal, "none yet");
  std::thread caller([&] { answer = fixture.requests.Ask(Requests::kPull, kForEver, Never); });
  fixture.WaitFor([&] { return fixture.requests.due(Requests::kPull); });
  fixture.requests.End(Requests::kPull, first, OkStatus(), RecordOf("full"));
  CHECK(fixture.requests.due(Requests::kPull));
  fixture.requests.End(Requests::kPull, fixture.requests.Begin(Requests::kPull), OkStatus(), RecordOf("delta"));
  caller.join();
  REQUIRE(answer.ok());
  CHECK(answer->mode() == "delta");
}

TEST_CASE("All rollbacks that came until one has ended get its outcome, and nobody else's") {
  Fixture fixture;
  std::atomic<int> refused = 0;
  const auto roll_back = [&] {
    if (fixture.requests.Ask(Requests::kRollback, kForEver, Never).status().code() == ErrorCode::kState) ++refused;
  };
  std::thread one(roll_back), other(roll_back);
  fixture.WaitFor([&] { return fixture.requests.due(Requests::kRollback); });
  CHECK_FALSE(fixture.requests.due(Requests::kPull));
  CHECK_FALSE(fixture.requests.due(Requests::kVerify));
  std::thread session([&] {
    while (refused < 2) {
      if (!fixture.requests.due(Requests::kRollback)) continue;
      const Requests::Turn turn = fixture.requests.Begin(Requests::kRollback);
      fixture.requests.End(Requests::kRollback, turn, {ErrorCode::kState, "nothing before"});
    }
  });
  one.join();
  other.join();
  session.join();
  CHECK(refused == 2);
  CHECK_FALSE(fixture.requests.due(Requests::kRollback));
}

TEST_CASE("A verification answers with its outcome") {
  Fixture fixture;
  Status answer;
  std::thread caller([&] { answer = fixture.requests.Ask(Requests::kVerify, kForEver, Never).status(); });
  fixture.WaitFor([&] { return fixture.requests.due(Requests::kVerify); });
  fixture.requests.End(Requests::kVerify, fixture.requests.Begin(Requests::kVerify),
                       {ErrorCode::kCorrupt, "rank 3 differs"});
  caller.join();
  CHECK(answer.code() == ErrorCode::kCorrupt);
}

TEST_CASE("A caller that has gone, and one whose time is over, wait no longer; what they asked for stays due") {
  Fixture fixture;
  CHECK(fixture.requests.Ask(Requests::kPull, kForEver, [] { return true; }).status().code() == ErrorCode::kCancelled);
  CHECK(fixture.requests.Ask(Requests::kPull, milliseconds(1), Never).status().code() == ErrorCode::kDeadline);
  CHECK(fixture.requests.due(Requests::kPull));
}

TEST_CASE("Stopping ends every call, those that wait and those that come") {
  Fixture fixture;
  Status waiting;
  std::thread caller([&] { waiting = fixture.requests.Ask(Requests::kRollback, kForEver, Never).status(); });
  fixture.WaitFor([&] { return fixture.requests.due(Requests::kRollback); });
  CHECK_FALSE(fixture.requests.stopping());
  fixture.requests.Stop();
  caller.join();
  CHECK(fixture.requests.stopping());
  CHECK(waiting.code() == ErrorCode::kCancelled);
  CHECK(fixture.requests.Ask(Requests::kPull, kForEver, Never).status().code() == ErrorCode::kCancelled);
}

}  // namespace
}  // namespace lockstep::session
