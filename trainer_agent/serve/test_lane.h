// A lane's other end for tests, in blocking calls.
#pragma once

#include <asio.hpp>
#include <catch2/catch.hpp>
#include <memory>

#include "common/wire/frame.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {

class TestLane {
 public:
  explicit TestLane(uint16_t port) : socket_(context_) {
    socket_.connect(asio::ip::tcp::endpoint(asio::ip::make_address("127.0.0.1"), port));
  }
  template <typename T>
  void Send(T message) {
    wire::Seal(message);
    asio::write(socket_, asio::buffer(&message, sizeof message));
  }
  template <typename T>
  T Receive() {
    T message;
    asio::read(socket_, asio::buffer(&message, sizeof message));
    return message;
  }
  Bytes Receive(size_t count) {
    Bytes bytes(count);
    asio::read(socket_, asio::buffer(bytes));
    return bytes;
  }
  // Works for plans of pulls and of live subscriptions.
  template <typename AnyPlan>
  ErrorCode Enter(const AnyPlan& plan, size_t ticket) {
    Send(wire::LaneHello{.pull_id = plan.pull_id, .ticket = plan.tickets.at(ticket)});
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
    asio::error_code error;
    char byte;
    asio::read(socket_, asio::buffer(&byte, 1), error);
    return error == asio::error::eof || error == asio::error::connection_reset;
  }
  asio::ip::tcp::socket& socket() { return socket_; }

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
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
