#include "raas_receiver/pull/request_pace.h"

#include <catch2/catch.hpp>

namespace lockstep::pull {
namespace {

using namespace std::literals;
constexpr uint64_t kMegabyte = 1'000'000;

// The pace after many answers of one megabyte each, that came every `interval`.
RequestPace After(RequestPace::Clock::duration interval, std::chrono::microseconds round_trip) {
  RequestPace pace(2);
  RequestPace::Clock::time_point now{1h};
  for (int i = 0; i < 100; ++i) pace.Answered(kMegabyte, now += interval, round_trip);
  return pace;
}

TEST_CASE("A near link needs no more than the least") {
  CHECK(After(1ms, 50us).outstanding() == 3);
  CHECK(After(100ms, 200us).outstanding() == 3);
}

TEST_CASE("A long link is kept full with half as much again as it holds") {
  CHECK(After(10ms, 100'000us).outstanding() == 2 + 15);  // 100 MB/s
  CHECK(After(100ms, 100'000us).outstanding() == 2 + 2);  // 10 MB/s
  CHECK(After(1ms, 500'000us).outstanding() == RequestPace::kMost);
}

TEST_CASE("Before anything is known, enough is asked for that a small pull takes one round trip") {
  CHECK(RequestPace(2).outstanding() == RequestPace::kFirst);
  CHECK(RequestPace(20).outstanding() == 20);
  RequestPace pace(2);
  pace.Answered(kMegabyte, RequestPace::Clock::time_point{1h}, 100'000us);
  CHECK(pace.outstanding() == RequestPace::kFirst);
}

TEST_CASE("A link that slows down is asked for less, by and by") {
  RequestPace pace(2);
  RequestPace::Clock::time_point now{1h};
  for (int i = 0; i < 50; ++i) pace.Answered(kMegabyte, now += 10ms, 100'000us);
  CHECK(pace.outstanding() == 17);
  for (int i = 0; i < 5; ++i) pace.Answered(kMegabyte, now += 100ms, 100'000us);
  CHECK(pace.outstanding() > 4);
  for (int i = 0; i < 50; ++i) pace.Answered(kMegabyte, now += 100ms, 100'000us);
  CHECK(pace.outstanding() == 4);
}

}  // namespace
}  // namespace lockstep::pull
