#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "common/os/unique_fd.h"
#include "tests/bench/wan/wan_packet.h"
#include "tests/bench/wan/wan_path.h"

namespace lockstep::bench {
namespace {

using Packet = std::vector<uint8_t>;

constexpr size_t kHeaders = sizeof(iphdr) + sizeof(tcphdr);
constexpr uint32_t kFirstSequence = 0xfffffff0;  // wraps soon

template <typename T>
T At(const Packet& packet, size_t offset) {
  T value;
  std::memcpy(&value, packet.data() + kVirtioHeaderBytes + offset, sizeof value);
  return value;
}

uint32_t WordSum(const uint8_t* data, size_t bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes; i += 2) sum += static_cast<uint32_t>(data[i] << 8 | data[i + 1]);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

// A train as the kernel makes them: its last segment ends a write (PSH) and a connection (FIN).
Packet MakeTrain(size_t payload_bytes, uint16_t segment_bytes) {
  Packet packet(kVirtioHeaderBytes + kHeaders + payload_bytes);
  packet[0] = 1;                                      // the checksum is partial
  packet[1] = payload_bytes > segment_bytes ? 1 : 0;  // TCP over IPv4
  if (packet[1] == 1) std::memcpy(&packet[4], &segment_bytes, sizeof segment_bytes);
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.protocol = IPPROTO_TCP;
  ip.tot_len = htons(static_cast<uint16_t>(kHeaders + payload_bytes));
  ip.id = htons(100);
  ip.saddr = htonl(0x0a4d0001);
  ip.daddr = htonl(0x0a4d0002);
  tcphdr tcp{};
  tcp.doff = 5;
  tcp.seq = htonl(kFirstSequence);
  tcp.ack = tcp.psh = tcp.fin = 1;
  std::memcpy(&packet[kVirtioHeaderBytes], &ip, sizeof ip);
  std::memcpy(&packet[kVirtioHeaderBytes + sizeof ip], &tcp, sizeof tcp);
  for (size_t i = 0; i < payload_bytes; ++i)
    packet[kVirtioHeaderBytes + kHeaders + i] = static_cast<uint8_t>(i * 7 + i / 256);
  return packet;
}

Packet CutOut(const Packet& packet, size_t first, size_t count) {
  Packet out(kMaxTrainBytes);
  out.resize(Cut(packet, *Describe(packet), first, count, out.data()));
  return out;
}

TEST_CASE("What is not IPv4, or contradicts itself, is not described") {
  const Packet good = MakeTrain(3000, 1000);
  Packet other = good;
  other[kVirtioHeaderBytes] = 0x65;
  CHECK_FALSE(Describe(other));
  other = good;
  other.pop_back();
  CHECK_FALSE(Describe(other));
  other = good;
  other[kVirtioHeaderBytes + sizeof(iphdr) + 12] = 0xf0;  // TCP header of 60 bytes: fine here
  CHECK(Describe(other));
  other[kVirtioHeaderBytes + sizeof(iphdr) + 12] = 0x40;  // of 16: too short
  CHECK_FALSE(Describe(other));
  CHECK_FALSE(Describe(Packet(good.begin(), good.begin() + 12)));
}

TEST_CASE("Segments cut out of a train are what the wire would have carried") {
  const Packet packet = MakeTrain(3500, 1000);
  for (size_t first = 0; first < 4; ++first) {
    for (size_t count = 1; first + count <= 4; ++count) {
      const Packet piece = CutOut(packet, first, count);
      const size_t payload = first + count == 4 ? 3500 - first * 1000 : count * 1000;
      REQUIRE(piece.size() == kVirtioHeaderBytes + kHeaders + payload);
      CHECK(Describe(piece)->segments() == count);
      CHECK(Describe(packet)->WireBytes(first, count) == count * kHeaders + payload);
      const bool same_payload =
          std::equal(piece.begin() + kVirtioHeaderBytes + kHeaders, piece.end(),
                     packet.begin() + static_cast<ptrdiff_t>(kVirtioHeaderBytes + kHeaders + first * 1000));
      CHECK(same_payload);
      const auto ip = At<iphdr>(piece, 0);
      const auto tcp = At<tcphdr>(piece, sizeof(iphdr));
      CHECK(WordSum(&piece[kVirtioHeaderBytes], sizeof(iphdr)) == 0xffff);
      CHECK(ntohs(ip.id) == 100 + first);
      CHECK(ntohl(tcp.seq) == kFirstSequence + static_cast<uint32_t>(first * 1000));
      CHECK(tcp.ack == 1);
      CHECK(tcp.fin == (first + count == 4));
      CHECK(tcp.psh == (first + count == 4));
      const uint32_t pseudo = (0x0a4d + 0x0001 + 0x0a4d + 0x0002 + IPPROTO_TCP + sizeof(tcphdr) + payload);
      CHECK(ntohs(tcp.check) == pseudo);
    }
  }
}

// A path between two sockets that keep the borders of packets, as devices do.
class Wire {
 public:
  explicit Wire(const WanPathOptions& options) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair);
    near_ = os::UniqueFd(pair[0]);
    in_ = os::UniqueFd(pair[1]);
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    out_ = os::UniqueFd(pair[0]);
    far_ = os::UniqueFd(pair[1]);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(far_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    path_.emplace(in_.get(), out_.get(), options);
    stop_ = os::UniqueFd(eventfd(0, 0));
    thread_ = std::thread([this] { path_->Run(stop_.get()); });
  }
  ~Wire() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  void Send(const Packet& packet) {
    REQUIRE(write(near_.get(), packet.data(), packet.size()) == static_cast<ssize_t>(packet.size()));
  }
  Packet Receive() {
    Packet packet(kMaxTrainBytes);
    packet.resize(static_cast<size_t>(std::max<ssize_t>(0, read(far_.get(), packet.data(), packet.size()))));
    return packet;
  }
  WanTotals totals() const { return path_->totals(); }

 private:
  os::UniqueFd near_, in_, out_, far_, stop_;
  std::optional<WanPath> path_;
  std::thread thread_;
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_CASE("A packet arrives after the delay and its time on the wire, and not before") {
  Wire wire({.bits_per_s = 10'000'000, .delay_ns = 50'000'000, .queue_bytes = 1 << 20});
  const Packet packet = MakeTrain(60'000, 1000);  // 62,400 bytes on the wire: 49.92 ms
  const auto start = std::chrono::steady_clock::now();
  wire.Send(packet);
  wire.Send(packet);
  CHECK(wire.Receive() == packet);
  CHECK(SecondsSince(start) >= 0.0999);
  CHECK(wire.Receive() == packet);
  CHECK(SecondsSince(start) >= 0.1498);
}

TEST_CASE("A full queue drops the segments that find it full, and no others") {
  Wire wire({.bits_per_s = 1'000'000, .queue_bytes = 10'400});
  wire.Send(MakeTrain(30'000, 1000));
  const Packet arrived = wire.Receive();
  CHECK(Describe(arrived)->segments() == 11);  // one on the wire, ten in the queue
  CHECK(wire.totals().dropped == 19);
}

// Sends a train of 40 segments and takes what is left of it; the sizes of the pieces.
std::vector<size_t> Cross(Wire& wire, const Packet& train) {
  const WanTotals before = wire.totals();
  wire.Send(train);
  while (wire.totals().segments == before.segments) std::this_thread::yield();
  const size_t left = 40 - (wire.totals().lost - before.lost);
  std::vector<size_t> pieces;
  for (size_t taken = 0; taken < left; taken += pieces.back()) {
    const auto piece = Describe(wire.Receive());
    REQUIRE(piece);
    pieces.push_back(piece->segments());
  }
  return pieces;
}

TEST_CASE("Segments are lost one by one, as many as asked for, the same ones for the same seed") {
  const Packet train = MakeTrain(40'000, 1000);
  std::vector<size_t> crossed[2];
  for (auto& pieces : crossed) {
    Wire wire({.loss = 0.05, .seed = 7});
    for (int i = 0; i < 100; ++i) {
      const std::vector<size_t> more = Cross(wire, train);
      pieces.insert(pieces.end(), more.begin(), more.end());
    }
    CHECK(wire.totals().lost > 140);  // 200 of 4000, and four standard deviations
    CHECK(wire.totals().lost < 260);
    CHECK(pieces.size() > 100 + wire.totals().lost / 2);
  }
  CHECK(crossed[0] == crossed[1]);
}

}  // namespace
}  // namespace lockstep::bench
