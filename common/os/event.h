// Event: a flag that a poll() sees. A rank's server thread, RunShell and the drivers of engines wait for one.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <chrono>

#include "common/os/deadline.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// Set and reset from any thread.
class Event {
 public:
  Event() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void Set() { ::eventfd_write(event_.get(), 1); }
  void Reset() {
    eventfd_t count = 0;
    ::eventfd_read(event_.get(), &count);
  }
  // Waits for `time`; true as soon as it is set.
  bool Wait(std::chrono::milliseconds time) const {
    pollfd event{event_.get(), POLLIN, 0};
    return ::poll(&event, 1, Deadline(time).PollTimeoutMs()) > 0;
  }
  int fd() const { return event_.get(); }  // readable once set

 private:
  UniqueFd event_;
};

}  // namespace lockstep::os
