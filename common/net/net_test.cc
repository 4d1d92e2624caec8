#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <future>

#include "common/base/bytes.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/connection_slots.h"
#include "common/net/host_port.h"
#include "common/net/io_threads.h"
#include "common/net/lane_io.h"
#include "common/net/networks.h"
#include "common/net/peer_stream.h"
#include "common/net/rate_limit.h"
#include "common/net/server_user.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using namespace std::literals;
constexpr milliseconds kSoon{30'000};
constexpr milliseconds kBriefly{40};

const TlsSecret kSecret{1, 2, 3};

enum class Form { kPlain, kTls };

// Two connected streams on strands, and threads that run coroutines to their end.
class Wire {
 public:
  explicit Wire(Form form = Form::kPlain)
      : threads_(2, [](std::string_view) {}), left(MakeSocket()), right(MakeSocket()) {
    tcp::acceptor acceptor(threads_.context(), {asio::ip::address_v4::loopback(), 0});
    const HostPort address{"127.0.0.1", acceptor.local_endpoint().port()};
    std::future<void> accepted = acceptor.async_accept(right.socket(), asio::use_future);
    REQUIRE(Run(left, left.Connect(address, kSoon)).ok());
    accepted.get();
    if (form == Form::kTls) Encrypt();
  }

  template <typename T>
  std::future<T> Start(PeerStream& stream, asio::awaitable<T> coroutine) {
    return asio::co_spawn(stream.socket().get_executor(), std::move(coroutine), asio::use_future);
  }
  template <typename T>
  T Run(PeerStream& stream, asio::awaitable<T> coroutine) {
    return Start(stream, std::move(coroutine)).get();
  }
  tcp::socket MakeSocket() { return tcp::socket(asio::make_strand(threads_.context())); }
  asio::io_context& context() { return threads_.context(); }

 private:
  void Encrypt() {
    const auto known = [](ByteView) { return std::optional(kSecret); };
    const auto accepting = *TlsContext::Create(TlsContext::Side::kAccepts);
    std::future<Status> accepted = Start(right, right.AcceptTls(accepting, known, kSoon));
    const auto connecting = *TlsContext::Create(TlsContext::Side::kConnects);
    REQUIRE(Run(left, left.ConnectTls(connecting, Bytes(8), kSecret, kSoon)).ok());
    REQUIRE(accepted.get().ok());
  }

  IoThreads threads_;

 public:
  PeerStream left, right;
};

std::span<std::byte> Writable(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}

TEST_CASE("Addresses are parsed and printed back") {
  for (const char* text : {"localhost:7700", "10.0.0.1:0", "[::1]:7700", "host-1.example:65535"}) {
    const Result<HostPort> parsed = ParseHostPort(text);
    REQUIRE(parsed.ok());
    CHECK(parsed->ToString() == text);
  }
}

TEST_CASE("A malformed address is refused by name") {
  for (const char* text : {"", "localhost", ":7700", "host:", "host:65536", "host:-1", "host:7x", "::1:7700", "[::1]",
                           "[::1:7700", "[host]:1", "ho st:1"}) {
    const Status status = ParseHostPort(text).status();
    CHECK_THAT(status, FailsWith(ErrorCode::kBadData, std::string("'") + text + "'"));
  }
}

TEST_CASE("Only loopback may be listened on, unless allowed in as many words") {
  for (const char* text : {"127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1"}) {
    CHECK(CheckListenAddress("listen", text, false).ok());
  }
  for (const char* text : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:1", "127.0.0.1.example.org:1"}) {
    const Status status = CheckListenAddress("lane_listen", text, false).status();
    CHECK_THAT(status, FailsWith(ErrorCode::kConfig, "lane_listen: "));
    CHECK(status.message().find("lane_listen") == 0);
    CHECK(CheckListenAddress("lane_listen", text, true).ok());
  }
}

TEST_CASE("Networks contain their peers, and this host, and are named by their prefix") {
  const Networks networks = *Networks::Parse({"10.20.0.0/16", "192.168.7.5/32", "fd00::/8"});
  const auto contains = [&](const char* address) { return networks.Contain(asio::ip::make_address(address)); };
  for (const char* one :
       {"10.20.0.0", "10.20.255.255", "192.168.7.5", "fdff::1", "::ffff:10.20.1.2", "127.9.9.9", "::1"}) {
    CAPTURE(one);
    CHECK(contains(one));
  }
  for (const char* one :
       {"10.21.0.0", "10.19.255.255", "192.168.7.4", "fe80::1", "::ffff:10.21.1.2", "0.0.0.0", "::"}) {
    CAPTURE(one);
    CHECK(!contains(one));
  }
  CHECK(!Networks().Contain(asio::ip::make_address("10.20.0.1")));
  CHECK(Networks().Contain(asio::ip::make_address("127.0.0.1")));
  for (const char* one : {"", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.1.0.0/8", "0.0.0.0/0", "::/0",
                          "fd00::1/8", "fd00::/129", "any", "10.0.0.0/8 ", "::ffff:10.0.0.0/8"}) {
    CAPTURE(one);
    CHECK_THAT(Networks::Parse({"10.0.0.0/8", one}), FailsWith(ErrorCode::kBadData, Cat("'", one, "' does not name")));
  }
}

TEST_CASE("An exception in a coroutine or handler is reported and the threads continue") {
  std::promise<std::string> seen;
  IoThreads threads(1, [&](std::string_view what) { seen.set_value(std::string(what)); });
  Spawn(threads.context().get_executor(), []() -> asio::awaitable<void> {
    throw std::runtime_error("a bug");
    co_return;
  }());
  CHECK(seen.get_future().get() == "a bug");
  std::promise<void> later;
  asio::post(threads.context(), [&] { later.set_value(); });
  later.get_future().get();
}

TEST_CASE("What is written on one end is read on the other, in other pieces") {
  Wire wire(GENERATE(Form::kPlain, Form::kTls));
  const std::string sent = "head:" + std::string(16 << 20, 'z');
  std::future<Status> write = wire.Start(wire.left, wire.left.WriteAll(std::as_bytes(std::span(sent)), kSoon));
  std::string head(5, ' ');
  std::string body(sent.size() - head.size(), ' ');
  CHECK(wire.Run(wire.right, wire.right.ReadExact(Writable(head), kSoon)).ok());
  CHECK(wire.Run(wire.right, wire.right.ReadExact(Writable(body), kSoon)).ok());
  CHECK(write.get().ok());
  CHECK(head + body == sent);
}

TEST_CASE("A stalled peer is a deadline for the reader and for the writer") {
  Wire wire(GENERATE(Form::kPlain, Form::kTls));
  std::string text(8, ' ');
  CHECK(wire.Run(wire.left, wire.left.WriteAll(AsBytes("half"sv), kSoon)).ok());
  CHECK_THAT(wire.Run(wire.right, wire.right.ReadExact(Writable(text), kBriefly)),
             FailsWith(ErrorCode::kDeadline, "read from peer: not done in time"));
  const std::string much(64 << 20, 'x');
  CHECK_THAT(wire.Run(wire.left, wire.left.WriteAll(std::as_bytes(std::span(much)), kBriefly)),
             FailsWith(ErrorCode::kDeadline, "write to peer: not done in time"));
}

TEST_CASE("A trickling peer is late all the same") {
  Wire wire(GENERATE(Form::kPlain, Form::kTls));
  std::string text(100, ' ');
  std::future<Status> read = wire.Start(wire.right, wire.right.ReadExact(Writable(text), milliseconds(100)));
  for (int i = 0; i < 10; ++i) {
    CHECK(wire.Run(wire.left, wire.left.WriteAll(AsBytes("x"sv), kSoon)).ok());
    std::this_thread::sleep_for(milliseconds(20));
  }
  CHECK_THAT(read.get(), FailsWith(ErrorCode::kDeadline, "not done in time"));
}

TEST_CASE("After a half-close one direction is closed and the other still carries bytes") {
  Wire wire(GENERATE(Form::kPlain, Form::kTls));
  wire.left.socket().shutdown(tcp::socket::shutdown_send);
  std::string text(4, ' ');
  const Status read = wire.Run(wire.right, wire.right.ReadExact(Writable(text), kSoon));
  CHECK_THAT(read, FailsWith(ErrorCode::kUnavailable, "peer closed"));
  CHECK(wire.Run(wire.right, wire.right.WriteAll(AsBytes("late"sv), kSoon)).ok());
  CHECK(wire.Run(wire.left, wire.left.ReadExact(Writable(text), kSoon)).ok());
  CHECK(text == "late");
}

TEST_CASE("Closing a socket on its strand cancels the read in progress") {
  Wire wire(GENERATE(Form::kPlain, Form::kTls));
  std::string text(4, ' ');
  std::future<Status> read = wire.Start(wire.right, wire.right.ReadExact(Writable(text), kSoon));
  // Coroutines of a strand run in the order of their spawning: once this one has, the read waits.
  CHECK(wire.Run(wire.right, []() -> asio::awaitable<bool> { co_return true; }()));
  asio::post(wire.right.socket().get_executor(), [&] { wire.right.socket().close(); });
  CHECK_THAT(read.get(), FailsWith(ErrorCode::kCancelled, "cancelled"));
}

TEST_CASE("A deadline that came too late does no harm") {
  Wire wire(GENERATE(Form::kPlain, Form::kTls));
  std::string text(1, ' ');
  for (int i = 0; i < 200; ++i) {
    CHECK(wire.Run(wire.left, wire.left.WriteAll(AsBytes("x"sv), kSoon)).ok());
    const Status read = wire.Run(wire.right, wire.right.ReadExact(Writable(text), milliseconds(1)));
    if (!read.ok()) REQUIRE(wire.Run(wire.right, wire.right.ReadExact(Writable(text), kSoon)).ok());
  }
}

// How many bytes went out before the socket took no more: `head` once, then `body` again and again.
asio::awaitable<size_t> SendUntilFull(PeerStream& stream, std::string_view head, std::string_view body) {
  std::array pieces{Piece(AsBytes(head)), Piece(AsBytes(body))};
  size_t total = 0;
  for (size_t sent = 1; sent > 0; total += sent) {
    sent = *stream.SendNow(pieces);
    pieces[0].iov_len = 0;
  }
  co_return total;
}

TEST_CASE("Bursts send what the socket takes and receive what is there, in pieces, and never wait") {
  Wire wire;
  std::string first(4, '-'), second(100, '-'), rest(1 << 20, '-');
  const auto piece = [](std::string& text) { return Piece(Writable(text)); };
  CHECK(*wire.right.ReceiveNow(std::array{piece(first)}) == 0);
  const std::string body(8 << 20, 'b');
  CHECK(wire.Run(wire.left, SendUntilFull(wire.left, "head", body)) > 64 << 10);
  REQUIRE(wire.Run(wire.right, wire.right.UntilReady(tcp::socket::wait_read, kSoon)).ok());
  CHECK(*wire.right.ReceiveNow(std::array{piece(first), piece(second)}) == 104);
  CHECK(first == "head");
  CHECK(second == std::string(100, 'b'));
  CHECK_THAT(wire.Run(wire.left, wire.left.UntilReady(tcp::socket::wait_write, kBriefly)),
             FailsWith(ErrorCode::kDeadline, "not done in time"));
  CHECK(RoundTrip(wire.right.socket()) < 1s);
  wire.left.socket().close();
  Status status;
  while (status.ok()) {
    REQUIRE(wire.Run(wire.right, wire.right.UntilReady(tcp::socket::wait_read, kSoon)).ok());
    status = wire.right.ReceiveNow(std::array{piece(rest)}).status();
  }
  CHECK_THAT(status, FailsWith(ErrorCode::kUnavailable, "read from peer: peer closed"));
}

TEST_CASE("An opened window takes much before anything is read") {
  Wire wire;
  OpenWindow(wire.right.socket(), 4 << 20);
  const std::string body(8 << 20, 'b');
  size_t sent = wire.Run(wire.left, SendUntilFull(wire.left, "", body));
  while (wire.Run(wire.left, wire.left.UntilReady(tcp::socket::wait_write, kBriefly)).ok()) {
    sent += wire.Run(wire.left, SendUntilFull(wire.left, "", body));
  }
  CHECK(sent > 4 << 20);
  std::string first(1, '-');  // one byte is enough to be read
  CHECK(*wire.right.ReceiveNow(std::array{Piece(Writable(first))}) == 1);
}

TEST_CASE("A rate limit gives each its turn, and a silence earns little") {
  RateLimit::Clock::time_point now{1h};
  RateLimit limit(1'000'000, [&] { return now; });
  CHECK(limit.Book(30'000) == 0s);
  CHECK(limit.Book(100'000) == 0s);   // 50 ms were earned before, 30 of them are used
  CHECK(limit.Book(10'000) == 80ms);  // behind the 100 that began 20 ms ago
  CHECK(limit.Book(1) == 90ms);
  now += 10s;
  CHECK(limit.Book(1'050'000) == 0s);
  CHECK(limit.Book(1) == 1s);
  limit.GiveBack(1'000'000);
  CHECK(limit.Book(1) == 1us);
  RateLimit none(0, [&] { return now; });
  CHECK(none.Book(1ull << 60) == 0s);
  none.GiveBack(1ull << 60);
}

TEST_CASE(
    "A connection that comes when there are too many takes the oldest place, of its own address or of the one that has "
    "most") {
  ConnectionSlots slots({.all = 4, .per_address = 2});
  std::string left;
  std::vector<ConnectionSlots::Slot> taken;
  const auto enter = [&](const char* address, char name) {
    taken.push_back(slots.Enter(asio::ip::make_address(address), [&left, name] { left += name; }));
  };
  enter("10.0.0.1", 'a');
  enter("10.0.0.2", 'b');
  enter("10.0.0.2", 'c');
  CHECK(left.empty());
  enter("10.0.0.2", 'd');
  CHECK(left == "b");
  CHECK(taken[1].lost());
  CHECK_FALSE(taken[0].lost());
  enter("10.0.0.3", 'e');
  CHECK(left == "b");
  enter("10.0.0.4", 'f');
  CHECK(left == "bc");
  taken.pop_back();
  enter("10.0.0.5", 'g');
  CHECK(left == "bc");
}

TEST_CASE("Connecting where none listens names the address") {
  Wire wire;
  tcp::acceptor nobody(wire.context(), tcp::v4());
  nobody.bind({asio::ip::address_v4::loopback(), 0});  // and never listens
  const HostPort unanswered{"127.0.0.1", nobody.local_endpoint().port()};
  tcp::socket socket = wire.MakeSocket();
  const Status refused =
      asio::co_spawn(socket.get_executor(), Connect(socket, unanswered, kSoon), asio::use_future).get();
  CHECK_THAT(refused, FailsWith(ErrorCode::kUnavailable, unanswered.ToString()));
}

}  // namespace
TEST_CASE("A server of this host is known to be ours by whatever address it listens at, taken or not") {
  asio::io_context io;
  const auto check = [&](const char* listens, const char* called, bool takes) {
    tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::make_address(listens), 0));
    tcp::socket client(io), taken(io);
    client.connect({asio::ip::make_address(called), acceptor.local_endpoint().port()});
    if (takes) taken = acceptor.accept();
    if (takes) acceptor.close();
    return CheckServerUser(client.local_endpoint(), client.remote_endpoint(), 12345);
  };
  for (const bool takes : {false, true}) {
    CHECK(check("127.0.0.1", "127.0.0.1", takes).ok());
    CHECK(check("0.0.0.0", "127.0.0.2", takes).ok());
    CHECK(check("::", "127.0.0.1", takes).ok());
    CHECK(check("::1", "::1", takes).ok());
    CHECK(check("::", "::1", takes).ok());
  }
  const tcp::endpoint nobody(asio::ip::make_address("127.0.0.1"), 1);
  CHECK_THAT(CheckServerUser(nobody, nobody, 12345), FailsWith(ErrorCode::kUnavailable, "127.0.0.1, port 1"));
}

TEST_CASE("A server of this host is another user's by what that user listens at, or took, and nothing else") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  asio::io_context io;
  const auto loopback = asio::ip::make_address("127.0.0.1");
  const auto as_other = [](const auto& task) {  // sockets made in it are that user's
    REQUIRE(::seteuid(65534) == 0);
    task();
    REQUIRE(::seteuid(0) == 0);
  };
  tcp::acceptor ours(io, tcp::endpoint(loopback, 0)), theirs(io), beside(io, tcp::v6());
  as_other([&] {
    theirs = tcp::acceptor(io, tcp::endpoint(loopback, 0));
    beside = tcp::acceptor(io, tcp::v6());
    beside.set_option(asio::ip::v6_only(true));
    beside.bind({asio::ip::address_v6::any(), ours.local_endpoint().port()});
    beside.listen();
  });
  const auto connect = [&](const tcp::acceptor& to) {
    tcp::socket client(io);
    client.connect(to.local_endpoint());
    return client;
  };
  const auto check = [](const tcp::socket& client, uid_t user) {
    return CheckServerUser(client.local_endpoint(), client.remote_endpoint(), user);
  };
  tcp::socket at_ours = connect(ours), at_theirs = connect(theirs), taken(io);
  CHECK(check(at_ours, 0).ok());
  CHECK_THAT(check(at_theirs, 0), FailsWith(ErrorCode::kPermission, "uid 65534", "127.0.0.1"));
  CHECK(check(at_theirs, 65534).ok());
  as_other([&] { taken = ours.accept(); });
  CHECK_THAT(check(at_ours, 0), FailsWith(ErrorCode::kPermission, "uid 65534"));
}

}  // namespace lockstep::net
