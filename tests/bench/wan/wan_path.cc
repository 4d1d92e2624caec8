#include "tests/bench/wan/wan_path.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace lockstep::bench {
namespace {

constexpr int kReadsInARow = 16;  // before checking whether something is due
constexpr size_t kRoomBeyond = size_t{32} << 20;
constexpr int64_t kLateNs = 1'000'000;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// What can be on its way at a time, and half as much again for headers and for small packets.
size_t RingBytes(const WanPathOptions& options) {
  const double on_the_way = static_cast<double>(options.bits_per_s) / 8 * static_cast<double>(options.delay_ns) * 1e-9;
  return static_cast<size_t>((on_the_way + static_cast<double>(options.queue_bytes)) * 1.5) + kRoomBeyond;
}

}  // namespace

uint8_t* PacketRing::Reserve() {
  if (entries_.empty()) {
    tail_ = 0;
  } else if (const size_t head = entries_.front().offset; tail_ <= head) {
    if (head - tail_ < kMaxTrainBytes) return nullptr;
  } else if (capacity_ - tail_ < kMaxTrainBytes) {
    if (head < kMaxTrainBytes) return nullptr;
    tail_ = 0;
  }
  return &memory_[tail_];
}

void PacketRing::Warm() {
  std::memset(memory_.get(), 0, capacity_);
}

void PacketRing::Commit(size_t bytes, int64_t due_ns) {
  entries_.push_back({tail_, bytes, due_ns});
  tail_ += bytes;
}

WanPath::WanPath(int in, int out, const WanPathOptions& options)
    : in_(in),
      out_(out),
      options_(options),
      ring_(RingBytes(options)),
      scratch_(new uint8_t[kMaxTrainBytes]),
      random_(options.seed),
      gap_(std::max(options.loss, 1e-12)),
      until_loss_(options.loss > 0 ? gap_(random_) : kNever) {
  ring_.Warm();
}

WanTotals WanPath::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void WanPath::Run(int stop) {
  pollfd waited[2] = {{in_, POLLIN, 0}, {stop, POLLIN, 0}};
  while (true) {
    bool more = true;
    for (int i = 0; i < kReadsInARow && more; ++i) more = ReadOne();
    const int64_t now = NowNs();
    Deliver(now);
    if (more) continue;
    timespec wait{};
    if (!ring_.empty()) {
      const int64_t left = std::max<int64_t>(0, ring_.front().due_ns - now);
      wait = {left / 1'000'000'000, left % 1'000'000'000};
    }
    ppoll(waited, 2, ring_.empty() ? nullptr : &wait, nullptr);
    if (waited[1].revents != 0) return;
  }
}

bool WanPath::ReadOne() {
  uint8_t* packet = ring_.Reserve();
  const bool room = packet != nullptr;
  if (!room) packet = scratch_.get();
  const ssize_t bytes = read(in_, packet, kMaxTrainBytes);
  if (bytes <= 0) return false;
  const std::lock_guard lock(mutex_);
  if (room) {
    Arrive(packet, static_cast<size_t>(bytes), NowNs());
  } else {
    ++totals_.failed;
  }
  return true;
}

void WanPath::Arrive(uint8_t* packet, size_t bytes, int64_t now_ns) {
  const std::optional<Train> train = Describe({packet, bytes});
  if (!train) return;  // IPv6's neighbour discovery, which is not needed here
  const size_t segments = train->segments();
  totals_.segments += segments;
  std::span<const uint8_t> whole{packet, bytes};  // moved away before the first piece is written over it
  size_t first = 0;
  for (size_t i = 0; i <= segments; ++i) {
    const bool passes = i < segments && Admit(train->WireBytes(i, 1), now_ns);
    if (passes) continue;
    if (first == 0 && i == segments) {
      ring_.Commit(bytes, free_ns_ + options_.delay_ns);
      return;
    }
    if (whole.data() == packet) {
      std::memcpy(scratch_.get(), packet, bytes);
      whole = {scratch_.get(), bytes};
    }
    if (i > first) Emit(whole, *train, first, i - first);
    first = i + 1;
  }
}

bool WanPath::Admit(size_t wire_bytes, int64_t now_ns) {
  if (until_loss_ == 0) {
    until_loss_ = gap_(random_);
    ++totals_.lost;
    return false;
  }
  if (until_loss_ != kNever) --until_loss_;
  free_ns_ = std::max(free_ns_, now_ns);
  if (options_.bits_per_s == 0) return true;
  const double ns_per_byte = 8e9 / static_cast<double>(options_.bits_per_s);
  if (static_cast<double>(free_ns_ - now_ns) > ns_per_byte * static_cast<double>(options_.queue_bytes)) {
    ++totals_.dropped;
    return false;
  }
  free_ns_ += static_cast<int64_t>(ns_per_byte * static_cast<double>(wire_bytes));
  return true;
}

void WanPath::Emit(std::span<const uint8_t> packet, const Train& train, size_t first, size_t count) {
  uint8_t* out = ring_.Reserve();
  if (out == nullptr) {
    ++totals_.failed;
    return;
  }
  ring_.Commit(Cut(packet, train, first, count, out), free_ns_ + options_.delay_ns);
}

void WanPath::Deliver(int64_t now_ns) {
  if (ring_.empty() || ring_.front().due_ns > now_ns) return;
  const std::lock_guard lock(mutex_);
  for (; !ring_.empty() && ring_.front().due_ns <= now_ns; ring_.Pop()) {
    const std::span<const uint8_t> packet = ring_.packet();
    ++totals_.trains;
    if (now_ns - ring_.front().due_ns > kLateNs) ++totals_.late;
    if (write(out_, packet.data(), packet.size()) == static_cast<ssize_t>(packet.size())) {
      totals_.bytes += packet.size() - kVirtioHeaderBytes;
    } else {
      ++totals_.failed;
    }
  }
}

}  // namespace lockstep::bench
