#include "common/os/shell.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "common/base/text.h"
#include "common/os/deadline.h"

namespace lockstep::os {
namespace {

// What posix_spawn wants to be initialised and destroyed.
struct SpawnSettings {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  explicit SpawnSettings(int output) {
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    // A daemon blocks and ignores signals that a command must be able to get.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
};

// Variables that the launcher of deploy/bundle set aside, because they are meant for programs of the host, begin so.
constexpr std::string_view kSetAside = "LOCKSTEP_HOST_";

char* GivenBack(char* variable) {
  return std::string_view(variable).starts_with(kSetAside) ? variable + kSetAside.size() : variable;
}

// `added`, and what this process has under other names. A program that finds a name twice may believe either.
std::vector<char*> Environment(const std::vector<std::string>& added) {
  std::vector<char*> variables;
  for (const std::string& variable : added) variables.push_back(const_cast<char*>(variable.c_str()));
  for (char** inherited = environ; *inherited != nullptr; ++inherited) {
    char* const given = GivenBack(*inherited);
    const std::string_view variable = given;
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    const auto replaced = [&](const std::string& ours) { return std::string_view(ours).starts_with(name); };
    if (std::none_of(added.begin(), added.end(), replaced)) variables.push_back(given);
  }
  variables.push_back(nullptr);
  return variables;
}

Result<pid_t> Spawn(const std::string& command, const std::vector<std::string>& environment, int output) {
  std::vector<char*> variables = Environment(environment);
  std::array<char*, 4> arguments{const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>(command.c_str()),
                                 nullptr};
  const SpawnSettings settings(output);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, "/bin/sh", &settings.files, &settings.attributes, arguments.data(), variables.data());
  if (error != 0) return ErrnoStatus(error, "start /bin/sh");
  return pid;
}

// Takes what is in the pipe and keeps the end of it. False at its end.
bool Drain(int pipe, std::string& tail, size_t tail_bytes) {
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::read(pipe, buffer, sizeof buffer)) > 0) {
    tail.append(buffer, static_cast<size_t>(got));
    if (tail.size() > tail_bytes) tail.erase(0, tail.size() - tail_bytes);
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR);
}

// Waits until the process ends, its time is up or `stop` is set; reads its output meanwhile.
void Attend(int process, int output, const Deadline& deadline, const Event& stop, size_t tail_bytes,
            ShellOutcome& outcome) {
  std::array<pollfd, 3> events{pollfd{process, POLLIN, 0}, pollfd{stop.fd(), POLLIN, 0}, pollfd{output, POLLIN, 0}};
  while (true) {
    const int ready = ::poll(events.data(), events.size(), deadline.PollTimeoutMs());
    if (ready < 0 && errno == EINTR) continue;
    if (events[2].revents != 0 && !Drain(output, outcome.output_tail, tail_bytes)) events[2].fd = -1;
    if (events[0].revents != 0) return;
    outcome.stopped = events[1].revents != 0;
    outcome.timed_out = !outcome.stopped && deadline.Passed();
    if (outcome.stopped || outcome.timed_out) return;
  }
}

}  // namespace

Result<ShellOutcome> RunShell(const std::string& command, const std::vector<std::string>& environment,
                              std::chrono::milliseconds timeout, const Event& stop, size_t tail_bytes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "make a pipe");
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  // The command's end blocks, as any program expects; only ours must not.
  ::fcntl(input.get(), F_SETFL, 0);
  const Deadline deadline(timeout);
  LS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, environment, input.get()));
  input.Reset();

  ShellOutcome outcome;
  // The C library has a wrapper, but its header is not for C++.
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process.valid()) {
    Attend(process.get(), output.get(), deadline, stop, tail_bytes, outcome);
  }
  if (!process.valid() || outcome.timed_out || outcome.stopped) ::kill(-pid, SIGKILL);
  while (::waitpid(pid, &outcome.wait_status, 0) < 0 && errno == EINTR) {
  }
  Drain(output.get(), outcome.output_tail, tail_bytes);
  outcome.output_tail = CleanText(outcome.output_tail, tail_bytes);
  while (outcome.output_tail.ends_with('\n')) outcome.output_tail.pop_back();
  if (!process.valid()) return Status(ErrorCode::kIo, "pidfd_open failed; Linux 5.3 or newer is needed");
  return outcome;
}

}  // namespace lockstep::os
