// TurnWatch: whether threads that must make progress do. What a daemon says of its liveness follows from it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::telemetry {

// Used by one thread, which must not wait for any that it watches.
class TurnWatch {
 public:
  using Clock = std::chrono::steady_clock;
  // Whether the threads got on since it was called last.
  using Turned = std::function<bool()>;
  // Has `turned` called by the threads, soon; never, when they are stuck.
  using Give = std::function<void(std::function<void()> turned)>;

  // Threads that did not get on for longer than `limit` are stuck. `threads` is what logs call them.
  void Add(std::string threads, std::chrono::milliseconds limit, Turned turned);
  // The same of threads that are given a small task after each one that they ran. Of several threads that take tasks
  // from one queue, it is known only that not all of them are stuck.
  void Add(std::string threads, std::chrono::milliseconds limit, Give give);

  // False while some are stuck, which is logged when it begins and when it ends. To be called about twice a second; a
  // process that was stopped in between is not blamed for it.
  bool Check(Clock::time_point now = Clock::now());

 private:
  struct Watched {
    std::string threads;
    std::chrono::milliseconds limit;
    Turned turned;
    Clock::duration silent{0};
    bool stuck = false;
  };

  std::vector<Watched> watched_;
  Clock::time_point checked_ = Clock::now();
};

// Limits for those that only pass work on, and for those that do it.
inline constexpr std::chrono::seconds kTurnLimit{30};
inline constexpr std::chrono::minutes kWorkLimit{10};

}  // namespace lockstep::telemetry
