// Connections that have not shown a ticket, and what they cost those that have.
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <thread>

#include "common/os/descriptor_limit.h"
#include "common/os/unique_fd.h"
#include "trainer_agent/serve/test_lane.h"

namespace lockstep::serve {
namespace {

using std::chrono::milliseconds;
using namespace std::literals;

// Connections from one address that say `opening`, and then nothing.
class Crowd {
 public:
  Crowd(uint16_t port, std::string opening) : port_(port), opening_(std::move(opening)) {}
  void Grow(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      asio::ip::tcp::socket& socket = sockets_.emplace_back(context_, asio::ip::tcp::v4());
      // The port is taken by connect(), which shares those of connections to other servers: 28,000 are soon all taken.
      socket.set_option(asio::detail::socket_option::boolean<IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT>(true));
      socket.bind({asio::ip::make_address("127.0.0.2"), 0});
      socket.connect({asio::ip::make_address("127.0.0.1"), port_});
      asio::error_code ignored;  // put out already
      if (!opening_.empty()) asio::write(socket, asio::buffer(opening_), ignored);
    }
  }
  size_t size() const { return sockets_.size(); }
  // Those that the server has not closed.
  size_t there() {
    return static_cast<size_t>(std::count_if(sockets_.begin(), sockets_.end(), [](asio::ip::tcp::socket& socket) {
      pollfd ended{socket.native_handle(), POLLIN, 0};
      return ::poll(&ended, 1, 0) == 0;
    }));
  }

 private:
  const uint16_t port_;
  const std::string opening_;
  asio::io_context context_;
  std::vector<asio::ip::tcp::socket> sockets_;
};

TEST_CASE("10,000 connections from one address keep few places, and no receiver from its lanes") {
  const bool encrypted = GENERATE(true, false);
  const std::string opening = GENERATE(as<std::string>(), "", "LSLO", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc");
  INFO("encrypted " << encrypted << ", opening of " << opening.size() << " bytes");
  Served served;
  const LaneServerOptions options{.encrypted = encrypted, .hello_timeout = TestLane::kPatience};
  const auto server = StartLanes(served, options);
  auto plan = *served.pulls.Open(served.Request());
  const os::DescriptorLimit limit(12'000);
  const size_t all = std::min<size_t>(10'000, limit.get() - 1'500);  // fewer where a process may not have so many
  Crowd crowd(server->port(), opening);
  while (crowd.size() < all) {
    crowd.Grow(std::min<size_t>(2'500, all - crowd.size()));
    plan.tickets = *served.pulls.RenewTickets(plan.pull_id, 1);
    TestLane lane(server->port());
    if (encrypted) REQUIRE(lane.Encrypt(plan, 0).ok());
    REQUIRE(lane.Enter(plan, 0) == ErrorCode::kOk);
    lane.Send(FullRequest(0, kBlocks));
    for (BlockIndex block = 0; block < kBlocks; ++block) CHECK(lane.ReceiveBlock().second == BlockOf(1, block));
  }
  CHECK(Eventually([&] { return crowd.there() <= options.waiting.per_address; }));
}

TEST_CASE("A peer that sends nothing, or not enough, or a byte now and then, is closed when its time is up") {
  Served served;
  const bool encrypted = GENERATE(true, false);
  const auto server = StartLanes(served, {.encrypted = encrypted, .hello_timeout = milliseconds(200)});
  TestLane silent(server->port()), half(server->port()), slow(server->port());
  asio::write(half.socket(), asio::buffer("LSLO\x02\x00"sv));
  std::thread trickle([socket = slow.socket().native_handle()] {
    const std::string_view hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for (size_t i = 0; ::send(socket, &hello[i % hello.size()], 1, MSG_NOSIGNAL) == 1 && i < 40; ++i) {
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  CHECK(silent.Closed());
  CHECK(half.Closed());
  trickle.join();
  CHECK(slow.Closed());
}

constexpr size_t kDescriptorsOfALane = 4;  // in a test: the socket, and three of its io_context

TEST_CASE("A server without descriptors lets no peer in, and goes on once it has some") {
  Served served;
  const auto server = StartLanes(served);
  const auto plan = *served.pulls.Open(served.Request());
  const os::DescriptorLimit limit(200);
  std::vector<os::UniqueFd> all;
  for (os::UniqueFd one(::dup(0)); one.valid(); one = os::UniqueFd(::dup(0))) all.push_back(std::move(one));
  // Nothing is checked before there are some again: the sanitizer needs one for that.
  const bool enough = all.size() > kDescriptorsOfALane;
  if (enough) all.resize(all.size() - kDescriptorsOfALane);
  TestLane lane(server->port());
  std::this_thread::sleep_for(milliseconds(150));  // the server finds none, once or twice
  all.clear();
  REQUIRE(enough);
  REQUIRE(lane.Enter(plan, 0) == ErrorCode::kOk);
  lane.Send(FullRequest(3, 1));
  CHECK(lane.ReceiveBlock().second == BlockOf(1, 3));
}

}  // namespace
}  // namespace lockstep::serve
