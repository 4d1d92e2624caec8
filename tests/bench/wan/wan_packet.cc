#include "tests/bench/wan/wan_packet.h"

#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>

namespace lockstep::bench {
namespace {

// linux/virtio_net.h cannot be included from C++.
struct VirtioHeader {
  uint8_t flags;
  uint8_t gso_type;
  uint16_t header_bytes;  // a hint
  uint16_t gso_size;
  uint16_t checksum_start;
  uint16_t checksum_offset;
};
static_assert(sizeof(VirtioHeader) == kVirtioHeaderBytes);
constexpr uint8_t kGsoNone = 0;
constexpr uint8_t kGsoTcp4 = 1;

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The ones' complement sum of 16-bit words, in network order as they lie there; not yet inverted. `bytes` is even.
uint32_t SumWords(const uint8_t* data, size_t bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes; i += 2) sum += Load<uint16_t>(data + i);
  return sum;
}

uint16_t Folded(uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

void PatchIp(iphdr& ip, size_t total_bytes, size_t first) {
  ip.tot_len = htons(static_cast<uint16_t>(total_bytes));
  ip.id = htons(static_cast<uint16_t>(ntohs(ip.id) + first));
  ip.check = 0;
  uint8_t bytes[sizeof(iphdr)];
  std::memcpy(bytes, &ip, sizeof bytes);
  ip.check = static_cast<uint16_t>(~Folded(SumWords(bytes, sizeof bytes)));
}

// The sum over the pseudo header, which is what a partial checksum field holds.
uint16_t PseudoSum(const iphdr& ip, size_t transport_bytes) {
  uint8_t pseudo[12];
  std::memcpy(pseudo, &ip.saddr, 4);
  std::memcpy(pseudo + 4, &ip.daddr, 4);
  const uint16_t rest[2] = {htons(IPPROTO_TCP), htons(static_cast<uint16_t>(transport_bytes))};
  std::memcpy(pseudo + 8, rest, sizeof rest);
  return Folded(SumWords(pseudo, sizeof pseudo));
}

}  // namespace

size_t Train::WireBytes(size_t first, size_t count) const {
  const size_t begin = std::min(payload_bytes, first * segment_bytes);
  const size_t end = first + count == segments() ? payload_bytes : (first + count) * segment_bytes;
  return count * header_bytes + end - begin;
}

std::optional<Train> Describe(std::span<const uint8_t> packet) {
  if (packet.size() < kVirtioHeaderBytes + sizeof(iphdr)) return std::nullopt;
  const auto virtio = Load<VirtioHeader>(packet.data());
  const auto ip = Load<iphdr>(packet.data() + kVirtioHeaderBytes);
  const size_t bytes = packet.size() - kVirtioHeaderBytes;
  if (ip.version != 4 || ntohs(ip.tot_len) != bytes) return std::nullopt;
  if (virtio.gso_type == kGsoNone) return Train{bytes, 0, 0};
  if (virtio.gso_type != kGsoTcp4 || virtio.gso_size == 0 || ip.protocol != IPPROTO_TCP ||
      ip.ihl != sizeof(iphdr) / 4 || bytes < sizeof(iphdr) + sizeof(tcphdr)) {
    return std::nullopt;
  }
  const auto tcp = Load<tcphdr>(packet.data() + kVirtioHeaderBytes + sizeof(iphdr));
  const size_t headers = sizeof(iphdr) + tcp.doff * 4;
  if (tcp.doff < 5 || headers >= bytes) return std::nullopt;
  return Train{headers, bytes - headers, virtio.gso_size};
}

size_t Cut(std::span<const uint8_t> packet, const Train& train, size_t first, size_t count, uint8_t* out) {
  const size_t headers = kVirtioHeaderBytes + train.header_bytes;
  std::memcpy(out, packet.data(), headers);
  if (train.payload_bytes == 0) return headers;

  auto virtio = Load<VirtioHeader>(packet.data());
  auto ip = Load<iphdr>(packet.data() + kVirtioHeaderBytes);
  auto tcp = Load<tcphdr>(packet.data() + kVirtioHeaderBytes + sizeof(iphdr));
  const size_t begin = first * train.segment_bytes;
  const size_t payload = train.WireBytes(first, count) - count * train.header_bytes;
  if (payload <= train.segment_bytes) {
    virtio.gso_type = kGsoNone;
    virtio.gso_size = 0;
  }
  PatchIp(ip, train.header_bytes + payload, first);
  tcp.seq = htonl(ntohl(tcp.seq) + static_cast<uint32_t>(begin));
  if (begin + payload < train.payload_bytes) tcp.psh = tcp.fin = 0;
  tcp.check = PseudoSum(ip, train.header_bytes - sizeof(iphdr) + payload);
  std::memcpy(out, &virtio, sizeof virtio);
  std::memcpy(out + kVirtioHeaderBytes, &ip, sizeof ip);
  std::memcpy(out + kVirtioHeaderBytes + sizeof ip, &tcp, sizeof tcp);
  std::memcpy(out + headers, packet.data() + headers + begin, payload);
  return headers + payload;
}

}  // namespace lockstep::bench
