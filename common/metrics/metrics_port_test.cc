#include "common/metrics/metrics_port.h"

#include <asio.hpp>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "common/base/eventually.h"
#include "common/base/text.h"

namespace lockstep::metrics {
namespace {

using std::chrono::milliseconds;

std::string Ask(int port) {
  asio::io_context context;
  asio::ip::tcp::socket peer(context);
  peer.connect({asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
  asio::write(peer, asio::buffer(std::string("GET /metrics HTTP/1.1\r\n\r\n")));
  std::string answer;
  asio::error_code end;
  asio::read(peer, asio::dynamic_buffer(answer), end);
  return answer;
}

TEST_CASE("A peer that asks without end gets every answer, and has pages made for a twentieth of the time at most") {
  constexpr milliseconds kOfAPage{20};
  std::atomic<int> made = 0;
  const auto make = [&] {
    std::this_thread::sleep_for(kOfAPage);
    return Cat("page ", ++made, "\n");
  };
  const auto port = MetricsPort::Create("127.0.0.1:0", make);
  REQUIRE(port.ok());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) CHECK(Ask((*port)->bound_port()).ends_with(Cat("page ", made.load(), "\n")));
  const auto passed = std::chrono::steady_clock::now() - begin;
  CHECK(made <= 1 + passed / (20 * kOfAPage));
  const int before = made;
  CHECK(Eventually([&] { return Ask((*port)->bound_port()).ends_with(Cat("page ", before + 1, "\n")); }));
}

}  // namespace
}  // namespace lockstep::metrics
