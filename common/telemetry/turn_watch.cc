#include "common/telemetry/turn_watch.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "common/telemetry/log.h"

namespace lockstep::telemetry {
namespace {

// Longer than between two checks of a process that runs.
constexpr std::chrono::seconds kLongestStep{5};

}  // namespace

void TurnWatch::Add(std::string threads, std::chrono::milliseconds limit, Turned turned) {
  watched_.push_back({.threads = std::move(threads), .limit = limit, .turned = std::move(turned)});
}

void TurnWatch::Add(std::string threads, std::chrono::milliseconds limit, Give give) {
  const auto done = std::make_shared<std::atomic<bool>>(true);  // false while a task is on its way
  Add(std::move(threads), limit, Turned([done, give = std::move(give)] {
        if (!done->exchange(false)) return false;
        give([done] { *done = true; });
        return true;
      }));
}

bool TurnWatch::Check(Clock::time_point now) {
  const auto step = std::min<Clock::duration>(now - std::exchange(checked_, now), kLongestStep);
  bool all = true;
  for (Watched& watched : watched_) {
    watched.silent = watched.turned() ? Clock::duration(0) : watched.silent + step;
    const bool stuck = watched.silent > watched.limit;
    if (stuck && !watched.stuck) {
      Log(LogLevel::kError, "threads_stuck",
          {{"threads", watched.threads}, {"limit_s", std::chrono::duration<double>(watched.limit).count()}});
    }
    if (!stuck && watched.stuck) Log(LogLevel::kInfo, "threads_turn_again", {{"threads", watched.threads}});
    watched.stuck = stuck;
    all = all && !stuck;
  }
  return all;
}

}  // namespace lockstep::telemetry
