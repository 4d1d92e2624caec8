// Directories on file systems that a test mounts for itself.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "common/base/text.h"
#include "common/os/temp_dir.h"

namespace lockstep::replica {

// Makes merged/, a file system where leases do not tell of mappings.
inline constexpr char kOverlay[] =
    "mkdir lower upper work merged && mount -t overlay none merged -o lowerdir=lower,upperdir=upper,workdir=work";

// Mounted in the namespace of a child, reached through the child's entry in /proc, gone with the child. Needs no root
// where user namespaces may be made.
class PrivateMount {
 public:
  // `commands` of the shell run in the file system, a tmpfs with these `options`.
  explicit PrivateMount(const std::string& options, const std::string& commands = "true") {
    int ready[2];
    if (::pipe(ready) != 0) return;
    child_ = ::fork();
    if (child_ == 0) Mount(options, commands, ready[1]);
    ::close(ready[1]);
    char byte = 0;
    mounted_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  PrivateMount(const PrivateMount&) = delete;
  PrivateMount& operator=(const PrivateMount&) = delete;
  ~PrivateMount() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  // Says so where it is not: mounting is not allowed here.
  bool mounted() const {
    if (!mounted_) WARN("skipped: mounting is not allowed here");
    return mounted_;
  }
  std::string path() const { return Cat("/proc/", child_, "/root", base_.path()); }

 private:
  [[noreturn]] void Mount(const std::string& options, const std::string& commands, int ready) const {
    ::dup2(ready, STDOUT_FILENO);
    const std::string script = Cat("mount -t tmpfs -o mode=0755,", options, " none ", base_.path(), " && cd ",
                                   base_.path(), " && ", commands, " && echo mounted && exec sleep infinity >&2");
    const char* as_root = ::geteuid() == 0 ? "--mount" : "--map-root-user";
    ::execlp("unshare", "unshare", "--mount", as_root, "sh", "-c", script.c_str(), nullptr);
    ::_exit(1);
  }

  const os::TempDir base_;
  pid_t child_ = -1;
  bool mounted_ = false;
};

}  // namespace lockstep::replica
