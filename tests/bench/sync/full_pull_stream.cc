// What a full pull is compared with: bytes of a file in memory over loopback, from one process to another, by plain
// calls in a thread per connection. full_pull_bench.py runs it.
//
//   full_pull_stream FILE OFFSET BYTES CONNECTIONS
//
// For each way that its input names, a line each, it sends the bytes once and prints the seconds: sendfile,
// splice, zerocopy (MSG_ZEROCOPY) or write (from a mapping, as the lanes do). The receiver fills a warm mapping of its
// own and checks nothing.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/common/report.h"

namespace lockstep::bench {
namespace {

constexpr size_t kCallBytes = 1 << 20;
const char* const kWays[] = {"sendfile", "splice", "zerocopy", "write"};

ssize_t Check(ssize_t result, const char* what) {
  if (result >= 0) return result;
  std::perror(what);
  std::_Exit(1);
}

struct Source {
  int file = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  const char* memory = nullptr;
};

void Splice(int socket, int file, off_t from, off_t end) {
  int pipe[2];
  Check(pipe2(pipe, O_CLOEXEC), "pipe");
  (void)fcntl(pipe[1], F_SETPIPE_SZ, kCallBytes);
  for (loff_t at = from; at < end;) {
    ssize_t held = Check(splice(file, &at, pipe[1], nullptr, std::min<size_t>(kCallBytes, end - at), 0), "splice");
    while (held > 0) held -= Check(splice(pipe[0], nullptr, socket, nullptr, held, SPLICE_F_MOVE), "splice");
  }
  close(pipe[0]);
  close(pipe[1]);
}

// Receives the kernel's notices that pages are free again; waits for one when it holds as many as it may.
void TakeNotices(int socket, bool wait) {
  char control[256];
  do {
    msghdr notice{};
    notice.msg_control = control;
    notice.msg_controllen = sizeof control;
    if (recvmsg(socket, &notice, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) wait = false;
  } while (wait);
}

void SendMemory(int socket, const char* from, const char* end, int flags) {
  const int on = 1;
  (void)setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
  while (from < end) {
    const ssize_t sent = send(socket, from, std::min<size_t>(kCallBytes, end - from), flags);
    if (sent < 0 && errno == ENOBUFS) {
      TakeNotices(socket, /*wait=*/true);
      continue;
    }
    from += Check(sent, "send");
    if (flags != 0) TakeNotices(socket, /*wait=*/false);
  }
}

// Sends one connection's part of the source in the way that its peer names by a byte.
void Serve(int socket, const Source& source, uint64_t begin, uint64_t end) {
  char way = 0;
  Check(read(socket, &way, 1), "read");
  off_t at = static_cast<off_t>(source.offset + begin);
  const off_t stop = static_cast<off_t>(source.offset + end);
  switch (way) {
    case 0:
      while (at < stop) Check(sendfile(socket, source.file, &at, std::min<size_t>(kCallBytes, stop - at)), "sendfile");
      break;
    case 1:
      Splice(socket, source.file, at, stop);
      break;
    default:
      SendMemory(socket, source.memory + begin, source.memory + end, way == 2 ? MSG_ZEROCOPY : 0);
  }
}

void Receive(int socket, char way, char* to, char* end) {
  Check(write(socket, &way, 1), "ask");
  while (to < end) {
    const ssize_t got = Check(recv(socket, to, end - to, 0), "recv");
    if (got == 0) std::_Exit(1);
    to += got;
  }
}

void OnEach(const std::vector<int>& sockets, uint64_t bytes, const std::function<void(int, uint64_t, uint64_t)>& run) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sockets.size(); ++i) {
    threads.emplace_back(run, sockets[i], bytes * i / sockets.size(), bytes * (i + 1) / sockets.size());
  }
  for (std::thread& thread : threads) thread.join();
}

int Listen(sockaddr_in& address) {
  const int listener = static_cast<int>(Check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  Check(bind(listener, reinterpret_cast<sockaddr*>(&address), size), "bind");
  Check(listen(listener, 64), "listen");
  Check(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  return listener;
}

// Accepts `connections` at a time, in the order in which the receiver opens them, and serves them.
[[noreturn]] void RunSender(const Source& source, int listener, size_t connections) {
  while (true) {
    std::vector<int> sockets;
    for (size_t i = 0; i < connections; ++i) {
      sockets.push_back(static_cast<int>(Check(accept(listener, nullptr, nullptr), "accept")));
    }
    OnEach(sockets, source.bytes, [&](int socket, uint64_t begin, uint64_t end) { Serve(socket, source, begin, end); });
    for (const int socket : sockets) close(socket);
  }
}

void Transfer(char way, const sockaddr_in& address, size_t connections, char* memory, uint64_t bytes) {
  std::vector<int> sockets;
  for (size_t i = 0; i < connections; ++i) {
    sockets.push_back(static_cast<int>(Check(socket(AF_INET, SOCK_STREAM, 0), "socket")));
    Check(connect(sockets.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address), "connect");
    const int on = 1;
    (void)setsockopt(sockets.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  OnEach(sockets, bytes,
         [&](int socket, uint64_t begin, uint64_t end) { Receive(socket, way, memory + begin, memory + end); });
  for (const int socket : sockets) close(socket);
}

void Measure(const sockaddr_in& address, size_t connections, char* memory, uint64_t bytes) {
  for (std::string name; std::getline(std::cin, name);) {
    const auto* const found = std::find(std::begin(kWays), std::end(kWays), name);
    if (found == std::end(kWays)) std::_Exit(64);
    const char way = static_cast<char>(found - kWays);
    std::printf("%.6f\n", TimeOnce([&] { Transfer(way, address, connections, memory, bytes); }));
    std::fflush(stdout);
  }
}

int Run(const char* path, uint64_t offset, uint64_t bytes, size_t connections) {
  Source source{
      .file = static_cast<int>(Check(open(path, O_RDONLY | O_CLOEXEC), path)), .offset = offset, .bytes = bytes};
  const uint64_t slack = offset % 4096;  // mappings begin at pages
  void* mapped = mmap(nullptr, bytes + slack, PROT_READ, MAP_SHARED | MAP_POPULATE, source.file,
                      static_cast<off_t>(offset - slack));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED || memory == MAP_FAILED) Check(-1, "mmap");
  source.memory = static_cast<const char*>(mapped) + slack;
  sockaddr_in address{};
  const int listener = Listen(address);
  const pid_t sender = fork();
  if (Check(sender, "fork") == 0) RunSender(source, listener, connections);
  Measure(address, connections, static_cast<char*>(memory), bytes);
  kill(sender, SIGKILL);
  (void)waitpid(sender, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: full_pull_stream FILE OFFSET BYTES CONNECTIONS\n");
    return 64;
  }
  return lockstep::bench::Run(argv[1], std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10),
                              std::strtoull(argv[4], nullptr, 10));
}
