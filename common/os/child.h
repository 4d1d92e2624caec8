// A process of a test's own.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::os {

// A process made by `make`, fork() or _Fork(), that runs `body` and then sleeps until it is killed with its owner.
class Child {
 public:
  template <typename Body>
  Child(pid_t (*make)(), const Body& body) : pid_(make()) {
    if (pid_ != 0) return;
    body();
    while (true) ::pause();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { Kill(); }

  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

}  // namespace lockstep::os
