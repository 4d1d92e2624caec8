#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/status_testing.h"
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
  CHECK_THAT(listener->Accept(kBriefly), FailsWith(ErrorCode::kDeadline, "nobody connected to " + dir.File("x.sock")));
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

}  // namespace
}  // namespace lockstep::os
