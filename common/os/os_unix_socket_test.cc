#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/status_testing.h"
#include "common/os/child.h"
#include "common/os/descriptor_limit.h"
#include "common/os/temp_dir.h"
#include "common/os/unix_listener.h"
#include "common/os/unix_socket.h"

namespace lockstep::os {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSoon{30'000};
constexpr milliseconds kBriefly{30};

size_t OpenFds() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// A connected pair, without a listener.
struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    left = UnixConnection(UniqueFd(fds[0]));
    right = UnixConnection(UniqueFd(fds[1]));
  }
  UnixConnection left, right;
};

Status ReceiveText(UnixConnection& connection, std::string& text, std::vector<UniqueFd>* fds = nullptr,
                   milliseconds timeout = kSoon) {
  return connection.Receive(std::as_writable_bytes(std::span(text)), fds, timeout);
}

TEST_CASE("Client and server talk over a listener's path, and the kernel names the peer") {
  const TempDir dir;
  Result<UnixListener> listener = UnixListener::Create(dir.File("run/x.sock"));
  REQUIRE(listener.ok());
  struct stat info;
  REQUIRE(::stat(dir.File("run").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0750);
  REQUIRE(::stat(dir.File("run/x.sock").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0660);
  Result<UnixConnection> client = UnixConnect(dir.File("run/x.sock"), kSoon);
  REQUIRE(client.ok());
  Result<UnixConnection> server = listener->Accept(kSoon);
  REQUIRE(server.ok());
  REQUIRE(client->Send(AsBytes(std::string_view("ping")), {}, kSoon).ok());
  std::string text(4, ' ');
  REQUIRE(ReceiveText(*server, text).ok());
  CHECK(text == "ping");
  const Result<PeerCredentials> peer = server->Peer();
  REQUIRE(peer.ok());
  CHECK(peer->pid == ::getpid());
  CHECK(peer->uid == ::getuid());
}

TEST_CASE("The socket file goes with its listener") {
  const TempDir dir;
  {
    Result<UnixListener> listener = UnixListener::Create(dir.File("x.sock"));
    REQUIRE(listener.ok());
    const UnixListener moved = *std::move(listener);
    CHECK(std::filesystem::exists(dir.File("x.sock")));
  }
  CHECK_FALSE(std::filesystem::exists(dir.File("x.sock")));
}

TEST_CASE("A stale socket is replaced, a live one and a plain file are not") {
  const TempDir dir;
  const std::string path = dir.File("x.sock");
  {
    Result<UnixListener> first = UnixListener::Create(path);
    REQUIRE(first.ok());
    CHECK_THAT(UnixListener::Create(path),
               FailsWith(ErrorCode::kUnavailable, "another process already listens at " + path));
    CHECK(std::filesystem::exists(path));
    std::filesystem::create_hard_link(path, dir.File("stale.sock"));
  }
  CHECK(std::filesystem::exists(dir.File("stale.sock")));
  CHECK_THAT(UnixConnect(dir.File("stale.sock"), kSoon),
             FailsWith(ErrorCode::kUnavailable, "nothing listens at " + dir.File("stale.sock")));
  CHECK(UnixListener::Create(dir.File("stale.sock")).ok());
  REQUIRE(WriteFileAtomic(dir.File("plain"), "precious").ok());
  CHECK_THAT(UnixListener::Create(dir.File("plain")),
             FailsWith(ErrorCode::kBadData, dir.File("plain") + " exists and is not a socket"));
  CHECK(*ReadFile(dir.File("plain")) == "precious");
}

TEST_CASE("A socket path that is too long or has no listener is refused by name") {
  const std::string long_path = "/tmp/" + std::string(200, 'x');
  CHECK_THAT(UnixListener::Create(long_path), FailsWith(ErrorCode::kBadData, long_path));
  CHECK_THAT(UnixConnect(long_path, kSoon), FailsWith(ErrorCode::kBadData, long_path));
  const Status missing = UnixConnect("/tmp/no-such-socket", kSoon).status();
  CHECK_THAT(missing, FailsWith(ErrorCode::kUnavailable, "/tmp/no-such-socket"));
}

TEST_CASE("Accept ends on its timeout and on Wake, which stays") {
  const TempDir dir;
  Result<UnixListener> listener = UnixListener::Create(dir.File("x.sock"));
  REQUIRE(listener.ok());
  CHECK_THAT(listener->Accept(kBriefly), FailsWith(ErrorCode::kDeadline, "no peer connected to " + dir.File("x.sock")));
  std::thread waker([&] { listener->Wake(); });
  CHECK_THAT(listener->Accept(kForever),
             FailsWith(ErrorCode::kCancelled, "no more connections at " + dir.File("x.sock")));
  waker.join();
  CHECK_THAT(listener->Accept(kForever),
             FailsWith(ErrorCode::kCancelled, "no more connections at " + dir.File("x.sock")));
}

TEST_CASE("Passed descriptors arrive as descriptors of the same file, closed on exec") {
  const TempDir dir;
  REQUIRE(WriteFileAtomic(dir.File("f"), "shared").ok());
  const UniqueFd file(::open(dir.File("f").c_str(), O_RDONLY | O_CLOEXEC));
  Pair pair;
  const std::vector<int> fds(kMaxPassedFds, file.get());
  REQUIRE(pair.left.Send(AsBytes(std::string_view("take")), fds, kSoon).ok());
  std::string text(4, ' ');
  std::vector<UniqueFd> received;
  REQUIRE(ReceiveText(pair.right, text, &received).ok());
  REQUIRE(received.size() == kMaxPassedFds);
  std::string content(6, ' ');
  REQUIRE(ReadAt(received[7].get(), 0, std::as_writable_bytes(std::span(content)), "f").ok());
  CHECK(content == "shared");
  CHECK((::fcntl(received[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("Descriptors never leak: not where none belong, not above the limit, not with half a message") {
  Pair pair;
  const size_t before = OpenFds();
  const std::vector<int> five(5, STDIN_FILENO);
  std::string text(4, ' ');
  std::vector<UniqueFd> received;

  REQUIRE(pair.left.Send(AsBytes(std::string_view("take")), five, kSoon).ok());
  CHECK_THAT(ReceiveText(pair.right, text),
             FailsWith(ErrorCode::kProtocol, "peer passed descriptors where none belong"));
  CHECK(OpenFds() == before);

  REQUIRE(pair.left.Send(AsBytes(std::string_view("ta")), five, kSoon).ok());
  REQUIRE(pair.left.Send(AsBytes(std::string_view("ke")), five, kSoon).ok());
  CHECK_THAT(ReceiveText(pair.right, text, &received),
             FailsWith(ErrorCode::kProtocol, "peer passed more than 8 descriptors"));
  CHECK(OpenFds() == before);

  REQUIRE(pair.left.Send(AsBytes(std::string_view("ta")), five, kSoon).ok());
  CHECK_THAT(ReceiveText(pair.right, text, &received, kBriefly),
             FailsWith(ErrorCode::kDeadline, "receive on unix socket: the peer did not answer in time"));
  CHECK(received.empty());
  CHECK(OpenFds() == before);

  const std::vector<int> nine(kMaxPassedFds + 1, STDIN_FILENO);
  CHECK_THAT(pair.left.Send(AsBytes(std::string_view("take")), nine, kSoon),
             FailsWith(ErrorCode::kInternal, "cannot carry 9 descriptors"));
}

TEST_CASE("A peer that closes is unavailable, and the message says how far it came") {
  Pair pair;
  REQUIRE(pair.left.Send(AsBytes(std::string_view("ab")), {}, kSoon).ok());
  pair.left = UnixConnection();
  std::string text(4, ' ');
  const Status half = ReceiveText(pair.right, text);
  CHECK_THAT(half, FailsWith(ErrorCode::kUnavailable, "2 of 4 bytes"));
  CHECK(ReceiveText(pair.right, text).message() == "peer closed");
  CHECK_THAT(pair.right.Send(AsBytes(std::string_view("ab")), {}, kSoon),
             FailsWith(ErrorCode::kUnavailable, "send on unix socket"));
}

TEST_CASE("A silent peer and one that does not read are deadlines") {
  Pair pair;
  std::string text(4, ' ');
  CHECK_THAT(ReceiveText(pair.right, text, nullptr, kBriefly),
             FailsWith(ErrorCode::kDeadline, "receive on unix socket: the peer did not answer in time"));
  const std::string much(8 << 20, 'x');
  CHECK_THAT(pair.left.Send(AsBytes(std::string_view(much)), {}, kBriefly),
             FailsWith(ErrorCode::kDeadline, "send on unix socket: the peer did not answer in time"));
}

TEST_CASE("A message larger than the socket's buffers passes whole") {
  Pair pair;
  const std::string much(8 << 20, 'y');
  Status sent;
  std::thread sender([&] { sent = pair.left.Send(AsBytes(std::string_view(much)), {}, kSoon); });
  std::string text(much.size(), ' ');
  CHECK(ReceiveText(pair.right, text).ok());
  sender.join();
  CHECK(sent.ok());
  CHECK(text == much);
}

TEST_CASE("Shutdown ends a wait in another thread") {
  Pair pair;
  std::thread stopper([&] {
    std::this_thread::sleep_for(kBriefly);
    pair.right.Shutdown();
  });
  std::string text(4, ' ');
  CHECK_THAT(ReceiveText(pair.right, text, nullptr, kForever), FailsWith(ErrorCode::kUnavailable, "peer closed"));
  stopper.join();
}

TEST_CASE("A wait ends when it is interrupted, long before its time") {
  const TempDir dir;
  Result<UnixListener> listener = UnixListener::Create(dir.File("x.sock"));
  REQUIRE(listener.ok());
  int asked = 0;
  Result<UnixConnection> client = UnixConnect(dir.File("x.sock"), kSoon, [&] { return ++asked == 2; });
  REQUIRE(client.ok());
  std::string text(4, ' ');
  for (const milliseconds timeout : {kSoon, kForever}) {
    asked = 0;
    CHECK_THAT(ReceiveText(*client, text, nullptr, timeout), FailsWith(ErrorCode::kDeadline, "interrupted"));
    CHECK(asked == 2);
  }
  CHECK_THAT(ReceiveText(*client, text, nullptr, kBriefly), FailsWith(ErrorCode::kDeadline, "did not answer in time"));
}

TEST_CASE(
    "A watched connection ends with its process, after what that had sent, although another process has its end") {
  const TempDir dir;
  Result<UnixListener> listener = UnixListener::Create(dir.File("x.sock"));
  REQUIRE(listener.ok());
  int holder_pid[2];
  REQUIRE(::pipe2(holder_pid, O_CLOEXEC) == 0);
  Child peer(::fork, [&] {
    static Result<UnixConnection> connection = UnixConnect(dir.File("x.sock"), kSoon);
    const pid_t holder = ::_Fork();  // runs no handlers: as of a process that knows nothing of them
    if (holder == 0) return;
    (void)!::write(holder_pid[1], &holder, sizeof holder);
    (void)connection->Send(AsBytes(std::string_view("last words")), {}, kSoon);
  });
  Result<UnixConnection> connection = listener->Accept(kSoon);
  REQUIRE(connection.ok());
  REQUIRE(connection->WatchPeerProcess().ok());
  pid_t holder = 0;
  REQUIRE(::read(holder_pid[0], &holder, sizeof holder) == sizeof holder);
  CHECK_FALSE(connection->PeerGone());
  std::string first(5, ' ');
  REQUIRE(ReceiveText(*connection, first).ok());
  peer.Kill();
  CHECK(connection->PeerGone());
  std::string rest(5, ' ');
  REQUIRE(ReceiveText(*connection, rest).ok());
  CHECK(rest == "words");
  CHECK_THAT(ReceiveText(*connection, rest), FailsWith(ErrorCode::kUnavailable, "the peer's process has ended"));
  CHECK(::kill(holder, SIGKILL) == 0);
  ::close(holder_pid[0]);
  ::close(holder_pid[1]);
}

TEST_CASE("A forked process has no part in a guarded connection, and closes no other file in its place") {
  Pair pair;
  pair.left.KeepFromChildren();
  const int number = pair.left.fd();
  int outcome[2];
  REQUIRE(::pipe2(outcome, O_CLOEXEC) == 0);
  const bool spare = GENERATE(true, false);  // whether the process may have one descriptor more
  const DescriptorLimit limit(256);
  std::vector<UniqueFd> others;
  for (UniqueFd one(::dup(0)); !spare && one.valid(); one = UniqueFd(::dup(0))) others.push_back(std::move(one));
  const Child child(::fork, [&] {
    struct stat info;
    const bool taken = ::fstat(number, &info) == 0 && !S_ISSOCK(info.st_mode);
    (void)!::write(outcome[1], taken ? "y" : "n", 1);
  });
  char taken = 0;
  REQUIRE(::read(outcome[0], &taken, 1) == 1);
  CHECK(taken == 'y');
  pair.left = UnixConnection();
  std::string text(1, ' ');
  CHECK_THAT(ReceiveText(pair.right, text), FailsWith(ErrorCode::kUnavailable, "peer closed"));
  ::close(outcome[0]);
  ::close(outcome[1]);
}

// What `body` writes in a process that is forked off a forked one, which did `before`. 0: nothing.
template <typename Before, typename Body>
char InGrandchild(const Before& before, const Body& body) {
  int outcome[2];
  REQUIRE(::pipe2(outcome, O_CLOEXEC) == 0);
  const Child child(::fork, [&] {
    before(outcome[1]);
    if (::fork() != 0) ::_exit(0);
    body(outcome[1]);
    ::_exit(0);
  });
  ::close(outcome[1]);
  char answer = 0;
  (void)!::read(outcome[0], &answer, 1);
  ::close(outcome[0]);
  return answer;
}

TEST_CASE("What took a guarded connection's number in a forked process is there in those that it forks") {
  Pair pair;
  pair.left.KeepFromChildren();
  const int number = pair.left.fd();
  const auto answer =
      InGrandchild([&](int outcome) { ::dup2(outcome, number); }, [&](int) { (void)!::write(number, "y", 1); });
  CHECK(answer == 'y');
}

TEST_CASE("A forked process guards its own connections, also once its parent's are gone there") {
  Pair pair;
  pair.left.KeepFromChildren();
  std::optional<Pair> own;
  const auto answer = InGrandchild(
      [&](int) {
        own.emplace();
        own->left.KeepFromChildren();
        pair.left = UnixConnection();
      },
      [&](int outcome) {
        struct stat info;
        const bool guarded = ::fstat(own->left.fd(), &info) == 0 && !S_ISSOCK(info.st_mode);
        (void)!::write(outcome, guarded ? "y" : "n", 1);
      });
  CHECK(answer == 'y');
}

TEST_CASE("Any user refuses an impostor's socket, and accepts that of a daemon in its own directories") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  constexpr uid_t kOther = 65534;
  const TempDir open("/tmp");
  const TempDir own("/run");  // where only root may write
  const TempDir links("/run");
  for (const auto* dir : {&open, &own}) {
    REQUIRE(::chown(dir->path().c_str(), kOther, kOther) == 0);
    const std::string path = dir->File("x.sock");
    int listening[2];
    REQUIRE(::pipe2(listening, O_CLOEXEC) == 0);
    Child other(::fork, [&] {
      if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) ::_exit(1);
      static Result<UnixListener> listener = UnixListener::Create(path);
      (void)!::write(listening[1], "x", 1);
    });
    char byte = 0;
    REQUIRE(::read(listening[0], &byte, 1) == 1);
    const Result<UnixConnection> connection = UnixConnect(path, kSoon);
    REQUIRE(connection.ok());
    if (dir == &open) {
      CHECK_THAT(CheckListener(*connection, path),
                 FailsWith(ErrorCode::kPermission, "of uid 65534 listens at " + path));
    } else {
      CHECK(CheckListener(*connection, path).ok());
      REQUIRE(::chmod(dir->path().c_str(), 0751) == 0);
      const pid_t third = ::fork();
      if (third == 0) {
        const bool became = ::setgid(kOther - 1) == 0 && ::setuid(kOther - 1) == 0;
        ::_exit(became && CheckListener(*connection, path).ok() ? 0 : 1);
      }
      int trusts = 1;
      REQUIRE(::waitpid(third, &trusts, 0) == third);
      CHECK(trusts == 0);
      const std::string link = links.File("link");
      REQUIRE(::symlink(dir->path().c_str(), link.c_str()) == 0);
      CHECK(CheckListener(*connection, link + "/x.sock").ok());
      const std::string to_socket = links.File("x.sock");
      REQUIRE(::symlink(path.c_str(), to_socket.c_str()) == 0);
      CHECK_THAT(CheckListener(*connection, to_socket), FailsWith(ErrorCode::kPermission, "may be an impostor"));
      REQUIRE(::lchown(link.c_str(), kOther - 1, kOther - 1) == 0);
      CHECK_THAT(CheckListener(*connection, link + "/x.sock"), FailsWith(ErrorCode::kPermission, "may be an impostor"));
      REQUIRE(::chmod(dir->path().c_str(), 0777) == 0);
      CHECK_THAT(CheckListener(*connection, path), FailsWith(ErrorCode::kPermission, "may be an impostor"));
    }
    ::close(listening[0]);
    ::close(listening[1]);
  }
}

}  // namespace
}  // namespace lockstep::os
