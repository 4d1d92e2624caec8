// One IPv4 packet as the kernel gives it to a TUN device with offloads on, and its cutting into what would be on a
// wire.
//
// The kernel hands over TCP segments many at a time: one header, up to 64 KiB of payload, and a virtio_net_hdr before
// it that says how large the segments are (gso_size). A wire loses and queues segments, not such trains. Cut() makes of
// some consecutive segments of a train a train of their own, as if the others had never been sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::bench {

inline constexpr size_t kVirtioHeaderBytes = 10;
// The largest thing that a read of the device gives.
inline constexpr size_t kMaxTrainBytes = kVirtioHeaderBytes + 65535;

// What a train of segments consists of. Sizes in bytes.
struct Train {
  size_t header_bytes = 0;   // IPv4 and transport headers, which each segment has
  size_t payload_bytes = 0;  // of all segments
  size_t segment_bytes = 0;  // payload of each segment but the last; payload_bytes when there is one segment only

  size_t segments() const { return payload_bytes <= segment_bytes ? 1 : (payload_bytes - 1) / segment_bytes + 1; }
  // Bytes of IPv4 packets `count` segments from `first` on are on a wire.
  size_t WireBytes(size_t first, size_t count) const;
};

// nullopt: not IPv4, a train that is not TCP, or lengths that contradict each other. `packet` starts with the
// virtio_net_hdr.
std::optional<Train> Describe(std::span<const uint8_t> packet);

// Writes the train of `count` segments of `packet` from `first` on to `out`, which has room for kMaxTrainBytes; returns
// its bytes, virtio_net_hdr included. REQUIRES train = Describe(packet), 0 < count, first + count <= train.segments().
// Checksums of TCP stay partial, as they are in `packet`: neither kernel computes or checks them on this path.
size_t Cut(std::span<const uint8_t> packet, const Train& train, size_t first, size_t count, uint8_t* out);

}  // namespace lockstep::bench
