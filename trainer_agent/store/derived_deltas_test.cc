#include "trainer_agent/store/derived_deltas.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <latch>
#include <thread>
#include <vector>

#include "common/base/eventually.h"
#include "trainer_agent/store/store_fixture.h"

namespace lockstep::store {
namespace {

const payload::CodecLevel kLevel = payload::CodecLevel::kFast;
constexpr uint64_t kBudget = 1 << 20;

// A delta from `base` to `target` of one block with `bytes` of coded data.
DerivedDeltas::Payload DeltaOf(Version base, Version target, size_t bytes) {
  static const auto layout = LayoutOf(20000);
  const payload::DeltaBlock block{.codec = payload::Codec::kSparse, .changes = 1, .data = Bytes(bytes)};
  return *payload::Payload::Assemble(*layout, {.base = base, .target = target}, std::span(&block, 1));
}

struct Fixture {
  WorkerPool pool{2};
  PinnedDeltas forgotten{kBudget};
  DerivedDeltas derived{kBudget, &pool, &forgotten};
  std::atomic<int> made{0};

  // What comes of asking for the fold of versions `base` to base + 2 when it takes until `until` is over.
  DerivedDeltas::Payload Ask(Version base, std::latch* until = nullptr, const Gone& gone = {}) {
    const payload::DeltaChain steps = {DeltaOf(base, base + 1, 300), DeltaOf(base + 1, base + 2, 300)};
    const auto make = [this, base, until](const payload::Unwanted&) -> Result<DerivedDeltas::Payload> {
      ++made;
      if (until != nullptr) until->wait();
      return DeltaOf(base, base + 2, 100);
    };
    return derived.Get(steps, kLevel, make, gone);
  }
};

TEST_CASE("However many want the same fold, it is made once") {
  Fixture fixture;
  constexpr size_t kReceivers = 64;
  std::latch asking(kReceivers);
  std::vector<DerivedDeltas::Payload> got(kReceivers);
  std::vector<std::thread> receivers;
  for (size_t i = 0; i < kReceivers; ++i) {
    receivers.emplace_back([&, i] {
      asking.count_down();
      got[i] = fixture.Ask(1, &asking);
    });
  }
  for (std::thread& receiver : receivers) receiver.join();
  CHECK(fixture.made == 1);
  for (const auto& payload : got) CHECK(payload == got[0]);
  CHECK(fixture.Ask(1) == got[0]);
  CHECK(fixture.made == 1);
}

TEST_CASE("Different folds are made side by side") {
  Fixture fixture;
  std::latch both(2);
  std::vector<std::thread> receivers;
  for (const Version base : {1, 2}) {
    receivers.emplace_back([&, base] {
      const payload::DeltaChain steps = {DeltaOf(base, base + 1, 300)};
      fixture.derived.Get(steps, kLevel,
                          [&](const payload::Unwanted&) -> Result<DerivedDeltas::Payload> {
                            both.arrive_and_wait();  // for ever, if one waited for the other
                            return DeltaOf(base, base + 1, 100);
                          },
                          {});
    });
  }
  for (std::thread& receiver : receivers) receiver.join();
  CHECK(fixture.derived.Kept().size() == 2);
}

TEST_CASE("A fold is given up when the last who waited has gone, not before, and made again for whoever comes") {
  Fixture fixture;
  const payload::DeltaChain steps = {DeltaOf(1, 2, 300), DeltaOf(2, 3, 300)};
  std::atomic<int> begun{0};
  std::atomic<int> given_up{0};
  std::atomic<bool> finish{false};
  const auto make = [&](const payload::Unwanted& unwanted) -> Result<DerivedDeltas::Payload> {
    ++begun;
    if (!Eventually([&] { return unwanted() || finish; })) return Status(ErrorCode::kDeadline, "a minute");
    if (!unwanted()) return DeltaOf(1, 3, 100);
    ++given_up;
    return Status(ErrorCode::kCancelled, "unwanted");
  };
  std::atomic<bool> first_gone{false};
  std::atomic<bool> second_gone{false};
  DerivedDeltas::Payload first, second;
  std::thread one([&] { first = fixture.derived.Get(steps, kLevel, make, [&] { return first_gone.load(); }); });
  std::atomic<int> second_asked{0};
  std::thread two([&] {
    second = fixture.derived.Get(steps, kLevel, make, [&] {
      ++second_asked;
      return second_gone.load();
    });
  });
  CHECK(Eventually([&] { return begun == 1 && second_asked > 0; }));
  first_gone = true;
  one.join();
  CHECK(given_up == 0);
  second_gone = true;
  two.join();
  CHECK(Eventually([&] { return given_up == 1; }));
  CHECK((first == nullptr && second == nullptr));
  finish = true;
  CHECK(fixture.derived.Get(steps, kLevel, make, {}) != nullptr);
  CHECK(begun == 2);
}

TEST_CASE("What was made is kept within the budget, the newest of it, and what has no room at all is not begun") {
  Fixture fixture;
  DerivedDeltas small(3 * DeltaOf(1, 2, 300)->total_bytes(), &fixture.pool, &fixture.forgotten);
  int made = 0;
  const auto ask = [&](Version base, size_t bytes) {
    const payload::DeltaChain steps = {DeltaOf(base, base + 1, bytes)};
    return small.Get(steps, kLevel,
                     [&](const payload::Unwanted&) -> Result<DerivedDeltas::Payload> {
                       ++made;
                       return DeltaOf(base, base + 1, bytes - 1);
                     },
                     {});
  };
  CHECK(ask(1, 4000) == nullptr);
  CHECK(made == 0);
  const DerivedDeltas::Payload held = ask(1, 300);
  for (Version base = 2; base <= 10; ++base) CHECK(ask(base, 300) != nullptr);
  CHECK(made == 10);
  CHECK(small.Kept().size() == 3);
  CHECK(small.Kept().back()->header().base == 10);
  CHECK(fixture.forgotten.bytes() == held->total_bytes());
  small.Clear();
  CHECK(small.Kept().empty());
}

TEST_CASE("Beyond some that are being made at once, others are served as they are") {
  Fixture fixture;
  std::latch release(1);
  std::array<std::atomic<bool>, 16> waits{};
  std::vector<std::thread> receivers;
  for (Version i = 0; i < waits.size(); ++i) {
    receivers.emplace_back([&, i] {
      fixture.Ask(10 * i, &release, [&waits, i] {
        waits[i] = true;
        return false;
      });
    });
  }
  CHECK(Eventually([&] { return std::ranges::all_of(waits, [](const auto& one) { return one.load(); }); }));
  CHECK(fixture.Ask(1000) == nullptr);
  release.count_down();
  for (std::thread& receiver : receivers) receiver.join();
  CHECK(fixture.Ask(1000) != nullptr);
}

}  // namespace
}  // namespace lockstep::store
