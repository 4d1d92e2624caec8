#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/os/framing.h"

namespace lockstep::os {
namespace {

constexpr std::chrono::milliseconds kSoon{60'000};
constexpr uint32_t kMagic = 0x54534554;
constexpr MessageKind kKinds[] = {{"ASK", 4u << 20}, {"ANSWER", 10}};
constexpr Protocol kTest{.name = "test", .ends = "two ends", .magic = kMagic, .format = 3, .kinds = kKinds};

struct Header {
  uint32_t magic = kMagic;
  uint16_t format = 3;
  uint16_t type = 1;
  uint32_t body_bytes = 0;
  uint32_t more = 7;
};

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    left = UnixConnection(UniqueFd(fds[0]));
    right = UnixConnection(UniqueFd(fds[1]));
  }
  UnixConnection left, right;
};

Status Refused(const Header& header) {
  return CheckStart(kTest, AsBytes(header));
}

TEST_CASE("A message arrives as it was sent, its descriptors with the header") {
  Pair pair;
  const Bytes body(100, std::byte{5});
  const int descriptor = STDIN_FILENO;
  const Header sent{.body_bytes = 100};
  REQUIRE(SendFramed(pair.left, AsBytes(sent), body, {&descriptor, 1}, kSoon).ok());
  Header header{.more = 0};
  std::vector<UniqueFd> fds;
  REQUIRE(pair.right.Receive(std::as_writable_bytes(std::span(&header, 1)), &fds, kSoon).ok());
  CHECK(CheckStart(kTest, AsBytes(header)).ok());
  CHECK(header.more == 7);
  CHECK(fds.size() == 1);
  CHECK(*ReceiveBody(pair.right, header.body_bytes, Deadline(kSoon)) == body);
}

TEST_CASE("A start that the protocol does not know is refused, saying what is wrong") {
  CHECK_THAT(
      Refused({.magic = 1}),
      FailsWith(ErrorCode::kProtocol,
                "test: a message does not start with our magic and format 3; use matching releases of two ends"));
  CHECK_THAT(Refused({.format = 4}), FailsWith(ErrorCode::kProtocol, "format 3"));
  CHECK_THAT(Refused({.type = 0}), FailsWith(ErrorCode::kProtocol, "test: unknown message type 0"));
  CHECK_THAT(Refused({.type = 3}), FailsWith(ErrorCode::kProtocol, "test: unknown message type 3"));
  CHECK_THAT(Refused({.type = 2, .body_bytes = 11}), FailsWith(ErrorCode::kProtocol, "ANSWER of 11"));
  CHECK(CheckStart(kTest, AsBytes(Header{.type = 2, .body_bytes = 10})).ok());
  CHECK(CheckStart(kTest, AsBytes(Header{.type = 1, .body_bytes = 4u << 20})).ok());
}

TEST_CASE("A body that ends early is unavailable, one that does not come is a deadline, descriptors are refused") {
  Pair pair;
  const Bytes some(10);
  REQUIRE(pair.left.Send(some, {}, kSoon).ok());
  CHECK_THAT(ReceiveBody(pair.right, 11, Deadline(std::chrono::milliseconds(20))),
             FailsWith(ErrorCode::kDeadline, "the peer did not answer in time"));
  const int descriptor = STDIN_FILENO;
  REQUIRE(pair.left.Send(some, {&descriptor, 1}, kSoon).ok());
  CHECK_THAT(ReceiveBody(pair.right, 10, Deadline(kSoon)),
             FailsWith(ErrorCode::kProtocol, "peer passed descriptors where none belong"));
  REQUIRE(pair.left.Send(some, {}, kSoon).ok());
  pair.left.Shutdown();
  CHECK_THAT(ReceiveBody(pair.right, 11, Deadline(kSoon)), FailsWith(ErrorCode::kUnavailable, "10 of 11 bytes"));
}

}  // namespace
}  // namespace lockstep::os
