// Internal to common/rpc: what one peer may have gRPC keep, told from the frames of HTTP/2 that pass by (RFC 9113).
//
// gRPC 1.51 makes a call of each HEADERS frame, some 12 kB, and queues the call until a thread has time. A stream that
// its peer resets counts no more against the limit of streams, and its call stays in the queue: by HEADERS and
// RST_STREAM in turns one client fills the memory. gRPC also keeps a request's headers and message until they are
// whole, without a limit of time.
#pragma once

#include <array>
#include <asio.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace lockstep::rpc {

// The calls that gRPC may have not answered yet, of all connections of a port. Used on the one thread of `context`.
class CallSlots {
 public:
  // `full` is called for each call that has to wait.
  CallSlots(asio::io_context& context, size_t slots, std::function<void()> full)
      : context_(context), free_(slots), full_(std::move(full)) {}

  // Who waits for a slot.
  using Turn = std::shared_ptr<asio::steady_timer>;

  // Takes a slot, once one is free; those who wait get theirs in the order of coming. False: `deadline` came first, or
  // Leave(). `turn` is set while it waits.
  asio::awaitable<bool> Take(std::chrono::steady_clock::time_point deadline, Turn& turn);
  void Leave(const Turn& turn);
  // gRPC has answered as many calls.
  void Return(size_t slots);
  // As many calls ended without an answer of a handler: they may be in gRPC's queue, for how long is not known. The
  // slots are free when gRPC had time to see to them.
  void ReturnLater(size_t slots);

 private:
  asio::io_context& context_;
  size_t free_;
  const std::function<void()> full_;
  std::deque<Turn> waiting_;
};

// What a client says before its first frame, "PRI * HTTP/2.0...".
inline constexpr size_t kPrefaceBytes = 24;

// The header of a frame.
struct FrameHeader {
  enum Type : uint8_t { kData = 0, kHeaders = 1, kResetStream = 3, kContinuation = 9 };
  static constexpr size_t kBytes = 9;
  static constexpr uint8_t kEndStream = 1;  // of kData and kHeaders

  uint32_t payload_bytes;
  uint8_t type;
  uint8_t flags;
  uint32_t stream;

  bool ends_stream() const { return type <= kHeaders && (flags & kEndStream) != 0; }
};

// Finds the headers of frames in one direction of a connection.
class FrameReader {
 public:
  // `skipped` bytes come before the first frame.
  explicit FrameReader(uint64_t skipped) : skipped_(skipped) {}

  // Takes bytes off `bytes`, up to the end of the next header, or all; nothing when no header has ended.
  std::optional<FrameHeader> Next(ByteView& bytes);

 private:
  uint64_t skipped_;  // bytes that are no header
  std::array<uint8_t, FrameHeader::kBytes> header_;
  size_t filled_ = 0;  // of the header
};

// One connection's. Used on one thread.
class Http2Guard {
 public:
  struct Limits {
    size_t calls;                   // at a time
    size_t unanswered_bytes;        // of requests that a peer may say before gRPC answers one
    std::chrono::seconds whole_in;  // for a request, from its first byte to its last
  };

  Http2Guard(const Limits& limits, CallSlots* slots) : limits_(limits), slots_(slots) {}
  Http2Guard(const Http2Guard&) = delete;
  ~Http2Guard();

  // What of `bytes`, which the peer says, may be passed on. A new call begins with the last byte of it when `begins`:
  // that byte is held back until Begin().
  struct Passed {
    size_t bytes;
    bool begins;
  };
  // kResourceExhausted: the peer is to be cut off.
  Result<Passed> FromPeer(ByteView bytes);
  // Waits until the new call has a slot. kResourceExhausted as FromPeer().
  asio::awaitable<Status> Begin();
  // What gRPC says.
  void FromServer(ByteView bytes);
  // The connection has ended: Begin() waits no longer.
  void Leave() { slots_->Leave(turn_); }

  // When the oldest request that is not whole has to be; the far future when all are.
  std::chrono::steady_clock::time_point deadline() const;

 private:
  struct Call {
    std::chrono::steady_clock::time_point since;
    bool whole;
    bool answered = false;  // it has no slot any more
  };

  const Limits limits_;
  CallSlots* const slots_;
  FrameReader from_peer_{kPrefaceBytes};
  FrameReader from_server_{0};
  std::map<uint32_t, Call> calls_;  // by stream: what gRPC has not ended, and the peer has not reset
  uint32_t last_stream_ = 0;
  std::optional<FrameHeader> beginning_;
  CallSlots::Turn turn_;
  size_t unanswered_ = 0;
};

}  // namespace lockstep::rpc
