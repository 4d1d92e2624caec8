// One direction of an emulated link: random loss, a queue, a rate, a delay, between two TUN devices.
//
// What enters the device `in` leaves `out` when its last byte would have left a wire of that rate, and the delay later.
// Segments are lost one by one, at random and independently, before the queue; those that find the queue full are
// dropped (drop tail). A train of segments (wan_packet.h) that loses none stays one train, and arrives at once, when
// its last segment would have: that is what large receive offload makes of them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>

#include "tests/bench/wan/wan_packet.h"

namespace lockstep::bench {

struct WanPathOptions {
  uint64_t bits_per_s = 0;  // 0: as fast as it goes
  int64_t delay_ns = 0;
  double loss = 0;           // share of segments, in [0, 1)
  uint64_t queue_bytes = 0;  // that wait for the wire; the packet on it does not count
  uint64_t seed = 0;
};

struct WanTotals {
  uint64_t segments = 0;  // that entered
  uint64_t bytes = 0;     // that left
  uint64_t lost = 0;      // segments, at random
  uint64_t dropped = 0;   // segments that found the queue full
  uint64_t failed = 0;    // trains that the emulator had no memory for, or the device did not take: it did not keep up
  uint64_t trains = 0;    // that left
  uint64_t late = 0;      // trains that left more than a millisecond after they were due
};

// Packets in the order of their leaving, in one circular piece of memory of a fixed size.
class PacketRing {
 public:
  struct Entry {
    size_t offset;
    size_t bytes;
    int64_t due_ns;
  };

  explicit PacketRing(size_t capacity) : memory_(new uint8_t[capacity]), capacity_(capacity) {}

  // Touches all of it: new memory is slow.
  void Warm();
  // Room for the next packet, of kMaxTrainBytes, until the next call; nullptr when there is none.
  uint8_t* Reserve();
  // The packet of `bytes` that was written there leaves at `due_ns`, not before those committed earlier.
  void Commit(size_t bytes, int64_t due_ns);

  bool empty() const { return entries_.empty(); }
  const Entry& front() const { return entries_.front(); }
  std::span<const uint8_t> packet() const { return {&memory_[front().offset], front().bytes}; }
  void Pop() { entries_.pop_front(); }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t capacity_;
  size_t tail_ = 0;
  std::deque<Entry> entries_;
};

// Run() on one thread; totals() on any.
class WanPath {
 public:
  // `in` and `out` are TUN descriptors with virtio headers, not blocking; they outlive this.
  WanPath(int in, int out, const WanPathOptions& options);

  // Until `stop`, a descriptor, becomes readable.
  void Run(int stop);

  WanTotals totals() const;

 private:
  bool ReadOne();
  void Arrive(uint8_t* packet, size_t bytes, int64_t now_ns);
  bool Admit(size_t wire_bytes, int64_t now_ns);
  void Emit(std::span<const uint8_t> packet, const Train& train, size_t first, size_t count);
  void Deliver(int64_t now_ns);

  const int in_;
  const int out_;
  const WanPathOptions options_;
  PacketRing ring_;
  std::unique_ptr<uint8_t[]> scratch_;
  std::mt19937_64 random_;
  std::geometric_distribution<uint64_t> gap_;
  uint64_t until_loss_;  // segments that still pass
  int64_t free_ns_ = 0;  // when the wire has sent all that was admitted
  mutable std::mutex mutex_;
  WanTotals totals_;
};

}  // namespace lockstep::bench
