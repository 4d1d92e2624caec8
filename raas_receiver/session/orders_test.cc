#include "raas_receiver/session/orders.h"

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
  Orders orders{"actor", changed};
};

v1::SyncRecord RecordOf(const std::string& mode) {
  v1::SyncRecord record;
  record.set_mode(mode);
  return record;
}

TEST_CASE("An order is due until it is taken, notifies of itself, and is answered with what became of it") {
  Fixture fixture;
  CHECK_FALSE(fixture.orders.due(Order::kPull));
  const uint64_t before = fixture.changed.changes();
  Orders::Answer answer = Status(ErrorCode::kInternal, "none yet");
  std::thread caller([&] { answer = fixture.orders.Ask(Order::kPull, kForEver, Never, true); });
  REQUIRE(fixture.changed.WaitPast(before, kForEver));
  CHECK(fixture.orders.due(Order::kPull));
  std::vector<Order> pulls = fixture.orders.Take(Order::kPull);
  REQUIRE(pulls.size() == 1);
  CHECK(pulls[0].force_full);
  CHECK_FALSE(fixture.orders.due(Order::kPull));
  AnswerAll(std::move(pulls), RecordOf("full"));
  caller.join();
  REQUIRE(answer.ok());
  CHECK(answer->mode() == "full");
}

TEST_CASE("Orders of one kind are taken together, and those of others and later ones stay") {
  Fixture fixture;
  auto one = fixture.orders.Post(Order::kRollback);
  auto pull = fixture.orders.Post(Order::kPull);
  auto other = fixture.orders.Post(Order::kRollback);
  std::vector<Order> taken = fixture.orders.Take(Order::kRollback);
  CHECK(taken.size() == 2);
  CHECK_FALSE(fixture.orders.due(Order::kRollback));
  CHECK(fixture.orders.due(Order::kPull));
  auto later = fixture.orders.Post(Order::kRollback);
  AnswerAll(std::move(taken), Status(ErrorCode::kState, "nothing before"));
  CHECK(one.get().status().code() == ErrorCode::kState);
  CHECK(other.get().status().code() == ErrorCode::kState);
  CHECK(later.wait_for(milliseconds(0)) == std::future_status::timeout);
  CHECK(fixture.orders.due(Order::kRollback));
}

TEST_CASE("A wait ends when its caller has gone or its time is over, and the order stays due") {
  Fixture fixture;
  CHECK(fixture.orders.Ask(Order::kPull, kForEver, [] { return true; }).status().code() == ErrorCode::kCancelled);
  CHECK(fixture.orders.Ask(Order::kPull, milliseconds(1), Never).status().code() == ErrorCode::kDeadline);
  CHECK(fixture.orders.Take(Order::kPull).size() == 2);
}

TEST_CASE("Stopping answers every order, those that wait and those that come") {
  Fixture fixture;
  auto waiting = fixture.orders.Post(Order::kRollback);
  CHECK_FALSE(fixture.orders.stopping());
  fixture.orders.Stop();
  CHECK(fixture.orders.stopping());
  CHECK_FALSE(fixture.orders.due(Order::kRollback));
  CHECK(waiting.get().status().code() == ErrorCode::kCancelled);
  CHECK(fixture.orders.Ask(Order::kPull, kForEver, Never).status().code() == ErrorCode::kCancelled);
}

TEST_CASE("Stopping ends the wait for an order that was taken and is not answered yet") {
  Fixture fixture;
  Orders::Answer answer = Status(ErrorCode::kInternal, "none yet");
  std::thread caller([&] { answer = fixture.orders.Ask(Order::kPull, kForEver, Never); });
  REQUIRE(fixture.changed.WaitFor(kForEver, [&] { return fixture.orders.due(Order::kPull); }));
  const std::vector<Order> taken = fixture.orders.Take(Order::kPull);
  fixture.orders.Stop();
  caller.join();
  CHECK(answer.status().code() == ErrorCode::kCancelled);
}

}  // namespace
}  // namespace lockstep::session
