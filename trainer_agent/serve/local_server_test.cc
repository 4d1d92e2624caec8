#include "trainer_agent/serve/local_server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/wire/local.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSoon{60'000};

// A served run with a local socket.
struct Host : Served {
  os::TempDir dir;
  LocalServerOptions options{.path = dir.File("pull.sock")};
  std::unique_ptr<os::UnixServer> server = *StartLocalServer(options, &pulls);
};

// The receiver's end, in blocking calls.
class Client {
 public:
  explicit Client(const Host& host) : Client(host.options.path) {}
  explicit Client(const std::string& path) : connection_(*os::UnixConnect(path, kSoon)) {}

  template <typename T>
  void Send(T message) {
    wire::Seal(message);
    REQUIRE(connection_.Send(AsBytes(message), {}, kSoon).ok());
  }
  ErrorCode Enter(uint64_t pull_id, const Ticket& ticket) {
    Send(wire::LaneHello{.pull_id = pull_id, .ticket = ticket});
    wire::LaneWelcome welcome;
    REQUIRE(Receive(std::as_writable_bytes(std::span(&welcome, 1))).ok());
    REQUIRE(wire::CheckWelcome(welcome).ok());
    return static_cast<ErrorCode>(welcome.code);
  }
  wire::LocalAnswer Ask(wire::LocalKind kind, Version version = 0, uint64_t payload_id = 0) {
    Send(wire::LocalRequest{.kind = static_cast<uint8_t>(kind), .version = version, .payload_id = payload_id});
    files.clear();
    wire::LocalAnswer answer;
    REQUIRE(Receive(std::as_writable_bytes(std::span(&answer, 1)), &files).ok());
    REQUIRE(wire::CheckLocalAnswer(answer, kBlocks).ok());
    tail.resize(answer.tail_bytes);
    REQUIRE(Receive(tail).ok());
    return answer;
  }
  Status Receive(std::span<std::byte> bytes, std::vector<os::UniqueFd>* with = nullptr) {
    return connection_.Receive(bytes, with, kSoon);
  }
  bool Closed() {
    std::byte byte;
    return Receive({&byte, 1}).code() == ErrorCode::kUnavailable;
  }
  os::UnixConnection& connection() { return connection_; }

  std::vector<os::UniqueFd> files;  // of the last answer
  Bytes tail;

 private:
  os::UnixConnection connection_;
};

TEST_CASE("The memory of the newest version is handed out read-only, with the hash of every block") {
  Host host;
  const auto plan = host.pulls.Open(host.Request());
  Client client(host);
  REQUIRE(client.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kOk);
  host.Publish(2);
  const wire::LocalAnswer answer = client.Ask(wire::LocalKind::kSlot);
  CHECK(answer.code == 0);
  CHECK(answer.version == 2);
  CHECK(answer.offset == host.buffer->data_offset());
  CHECK(answer.data_bytes == host.layout->data_bytes());
  REQUIRE(client.files.size() == 1);
  CHECK((::fcntl(client.files[0].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  Bytes block(kBlock);
  REQUIRE(os::ReadAt(client.files[0].get(), answer.offset + 5 * kBlock, block, "slot").ok());
  CHECK(block == BlockOf(2, 5));
  const auto manifest = host.ManifestOf(2);
  const ByteView hashes = std::as_bytes(std::span(manifest->block_hashes));
  CHECK(std::equal(client.tail.begin(), client.tail.end(), hashes.begin(), hashes.end()));
}

TEST_CASE("A pull that has ended is given nothing more") {
  Host host;
  const auto plan = host.pulls.Open(host.Request());
  Client client(host);
  REQUIRE(client.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kOk);
  CHECK(client.Ask(wire::LocalKind::kAlive).code == 0);
  host.pulls.Close(plan->pull_id, {}, "ok");
  client.Send(wire::LocalRequest{.kind = static_cast<uint8_t>(wire::LocalKind::kSlot)});
  CHECK(client.Closed());
}

TEST_CASE("A version that is gone is refused with a sentence, and the connection stays open") {
  Host host;
  const auto plan = host.pulls.Open(host.Request());
  Client client(host);
  REQUIRE(client.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kOk);
  host.Publish(2);
  run::Forget(*host.buffer, 1);
  const wire::LocalAnswer answer = client.Ask(wire::LocalKind::kSlot, 1);
  CHECK(static_cast<ErrorCode>(answer.code) == ErrorCode::kState);
  CHECK(client.files.empty());
  CHECK_FALSE(client.tail.empty());
  CHECK(client.Ask(wire::LocalKind::kAlive).code == 0);
  CHECK(client.files.empty());
  CHECK(client.Ask(wire::LocalKind::kSlot, 2).version == 2);
}

TEST_CASE("A delta's file holds its payload; those of other pulls are refused") {
  Host host;
  host.Publish(2);
  const auto plan = host.pulls.Open(host.Request(1));
  Client client(host);
  REQUIRE(client.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kOk);
  const auto& step = plan->steps.at(0);
  const wire::LocalAnswer answer = client.Ask(wire::LocalKind::kPayload, 0, step.payload_id);
  REQUIRE(answer.code == 0);
  REQUIRE(answer.data_bytes == step.payload->total_bytes());
  Bytes bytes(answer.data_bytes);
  REQUIRE(os::ReadAt(client.files.at(0).get(), answer.offset, bytes, "payload").ok());
  CHECK(std::equal(bytes.begin(), bytes.end(), step.payload->bytes().begin()));

  const auto again = host.pulls.Open(host.Request(1));
  const uint64_t foreign = again->steps.at(0).payload_id;
  CHECK(static_cast<ErrorCode>(client.Ask(wire::LocalKind::kPayload, 0, foreign).code) == ErrorCode::kNotFound);
}

TEST_CASE("Asking keeps a pull from expiring") {
  Host host;
  constexpr std::chrono::hours kIdle{1};
  PullTable pulls(&host.catalog, {.idle_timeout = kIdle});
  const std::string path = host.dir.File("other.sock");
  const auto server = *StartLocalServer({.path = path}, &pulls);
  const auto plan = pulls.Open(host.Request());
  Client client(path);
  REQUIRE(client.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kOk);
  for (int i = 0; i < 3; ++i) {
    const auto before = Pull::Clock::now();
    client.Ask(wire::LocalKind::kAlive);
    pulls.Expire(before + kIdle);
    CHECK(pulls.open_pulls("actor") == 1);
  }
  pulls.Expire(Pull::Clock::now() + kIdle + milliseconds(1));
  CHECK(pulls.open_pulls("actor") == 0);
}

TEST_CASE("A ticket admits one local connection once; strangers, garbage and silence end theirs") {
  Host host;
  const auto plan = host.pulls.Open(host.Request());
  Client good(host);
  REQUIRE(good.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kOk);

  Client again(host);
  CHECK(again.Enter(plan->pull_id, plan->local_ticket) == ErrorCode::kPermission);
  CHECK(again.Closed());
  Client garbage(host);
  REQUIRE(garbage.connection().Send(Bytes(200, std::byte{'G'}), {}, kSoon).ok());
  CHECK(garbage.Closed());
  const std::string impatient = host.dir.File("impatient.sock");
  const auto server = *StartLocalServer({.path = impatient, .hello_timeout = milliseconds(50)}, &host.pulls);
  Client silent(impatient);
  CHECK(silent.Closed());
  Client malformed(host);
  REQUIRE(malformed.Enter(plan->pull_id, plan->tickets[0]) == ErrorCode::kOk);
  malformed.Send(wire::LocalRequest{.kind = 9});
  CHECK(malformed.Closed());
  Client smuggler(host);
  REQUIRE(smuggler.Enter(plan->pull_id, plan->tickets[1]) == ErrorCode::kOk);
  wire::LocalRequest request{.kind = static_cast<uint8_t>(wire::LocalKind::kSlot)};
  wire::Seal(request);
  const int descriptor = STDIN_FILENO;
  REQUIRE(smuggler.connection().Send(AsBytes(request), {&descriptor, 1}, kSoon).ok());
  CHECK(smuggler.Closed());

  CHECK(good.Ask(wire::LocalKind::kSlot).version == 1);
  host.server.reset();
  CHECK(good.Closed());
}

}  // namespace
}  // namespace lockstep::serve
