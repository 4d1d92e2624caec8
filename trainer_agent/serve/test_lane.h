// A lane's other end for tests, plain or encrypted, in blocking calls.
#pragma once

#include <asio.hpp>
#include <catch2/catch.hpp>
#include <memory>

#include "common/net/peer_stream.h"
#include "common/wire/frame.h"
#include "common/wire/lane_identity.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {

class TestLane {
 public:
  // More than a busy machine needs.
  static constexpr std::chrono::minutes kPatience{1};

  // `from`: the address that the server sees.
  explicit TestLane(uint16_t port, const char* from = "127.0.0.1")
      : stream_(asio::ip::tcp::socket(context_, asio::ip::tcp::v4())) {
    socket().bind({asio::ip::make_address(from), 0});
    socket().connect({asio::ip::make_address("127.0.0.1"), port});
  }
  // Encrypts the lane with a ticket of the plan.
  template <typename AnyPlan>
  Status Encrypt(const AnyPlan& plan, size_t ticket) {
    return Encrypt(plan.pull_id, wire::NameOf(plan.tickets.at(ticket)), plan.tickets.at(ticket));
  }
  Status Encrypt(uint64_t pull_id, const wire::TicketName& name, const Ticket& secret) {
    const wire::LaneIdentity identity{pull_id, name};
    const ByteView bytes = AsBytes(identity);
    encrypted_ = true;
    return Run(stream_.ConnectTls(*net::TlsContext::Create(net::TlsContext::Side::kConnects),
                                  {bytes.begin(), bytes.end()}, secret.bytes, kPatience));
  }
  template <typename T>
  void Send(T message) {
    wire::Seal(message);
    REQUIRE(Run(stream_.WriteAll(AsBytes(message), kPatience)).ok());
  }
  template <typename T>
  T Receive() {
    T message;
    REQUIRE(Run(stream_.ReadExact(std::as_writable_bytes(std::span(&message, 1)), kPatience)).ok());
    return message;
  }
  Bytes Receive(size_t count) {
    Bytes bytes(count);
    REQUIRE(Run(stream_.ReadExact(bytes, kPatience)).ok());
    return bytes;
  }
  ErrorCode Enter(const PullPlan& plan, size_t ticket) {
    wire::LaneHello hello{.pull_id = plan.pull_id};
    if (!encrypted_) hello.ticket = plan.tickets.at(ticket);
    Send(hello);
    const auto welcome = Receive<wire::LaneWelcome>();
    REQUIRE(wire::CheckWelcome(welcome).ok());
    return static_cast<ErrorCode>(welcome.code);
  }
  // A block's frame and its payload, both checked.
  std::pair<wire::FrameHeader, Bytes> ReceiveBlock() {
    const auto frame = Receive<wire::FrameHeader>();
    REQUIRE(wire::CheckFrame(frame, kBlock, kBlocks).ok());
    REQUIRE(frame.type == static_cast<uint8_t>(wire::FrameType::kBlock));
    Bytes payload = Receive(frame.payload_bytes);
    REQUIRE(wire::CheckFramePayload(frame, payload).ok());
    return {frame, std::move(payload)};
  }
  // The error that ends a request, after what else was sent for it.
  ErrorCode ReceiveError() {
    auto frame = Receive<wire::FrameHeader>();
    for (; frame.type == static_cast<uint8_t>(wire::FrameType::kBlock); frame = Receive<wire::FrameHeader>()) {
      Receive(frame.payload_bytes);
    }
    REQUIRE(frame.type == static_cast<uint8_t>(wire::FrameType::kError));
    Receive(frame.payload_bytes);
    return static_cast<ErrorCode>(frame.block);
  }
  bool Closed() {
    std::byte byte;
    return Run(stream_.ReadExact(std::span(&byte, 1), kPatience)).code() == ErrorCode::kUnavailable;
  }
  asio::ip::tcp::socket& socket() { return stream_.socket(); }

 private:
  Status Run(asio::awaitable<Status> coroutine) {
    auto outcome = asio::co_spawn(context_, std::move(coroutine), asio::use_future);
    context_.restart();
    context_.run();
    return outcome.get();
  }

  asio::io_context context_;
  net::PeerStream stream_;
  bool encrypted_ = false;
};

inline std::unique_ptr<LaneServer> StartLanes(Served& served, LaneServerOptions options = {}) {
  options.address = {"127.0.0.1", 0};
  auto server = LaneServer::Start(options, &served.pulls);
  REQUIRE(server.ok());
  return *std::move(server);
}

inline wire::BlockRequest FullRequest(uint32_t first, uint32_t count, Version exact = 0) {
  return {.kind = static_cast<uint8_t>(wire::RequestKind::kFull),
          .request_id = 7,
          .first_block = first,
          .block_count = count,
          .exact_version = exact};
}

}  // namespace lockstep::serve
