// Http2Guard: bounds the calls and bytes that one peer can make gRPC keep. The guard reads the headers of HTTP/2 frames
// that pass between the two (RFC 9113). Internal to common/rpc.
//
// gRPC 1.51 makes a call of some 12 kB for each HEADERS frame, and queues the call until a thread has time. When the
// peer resets the stream, gRPC no longer counts it against the limit of streams, but the call stays in the queue: a
// client that sends HEADERS and RST_STREAM in turns fills the memory. gRPC also keeps a request's headers and message
// until they are whole, without a time limit.
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

// CallSlots: bounds the unanswered calls of all connections of a port. Used on the one thread of `context`.
class CallSlots {
 public:
  // Calls `full` for each call that has to wait.
  CallSlots(asio::io_context& context, size_t slots, std::function<void()> full)
      : context_(context), free_(slots), full_(std::move(full)) {}

  // A call that waits for a slot.
  using Turn = std::shared_ptr<asio::steady_timer>;

  // Waits for a free slot and takes it; calls get slots in the order of coming. Returns false when `deadline` came
  // first, or Leave(turn) was called. Sets `turn` before it waits.
  asio::awaitable<bool> Take(std::chrono::steady_clock::time_point deadline, Turn& turn);
  void Leave(const Turn& turn);
  // Frees the slots of so many calls that handlers have answered.
  void Return(size_t slots);
  // Frees the slots of so many calls that ended without an answer of a handler. The calls may still be in gRPC's queue,
  // so the slots are free only after a time in which gRPC can work the queue off.
  void ReturnLater(size_t slots);

 private:
  asio::io_context& context_;
  size_t free_;
  const std::function<void()> full_;
  std::deque<Turn> waiting_;
};

// Length of the connection preface, "PRI * HTTP/2.0...", which a client sends before its first frame.
inline constexpr size_t kPrefaceBytes = 24;

// The header of an HTTP/2 frame.
struct Http2FrameHeader {
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
class Http2FrameReader {
 public:
  // `skipped` bytes come before the first frame.
  explicit Http2FrameReader(uint64_t skipped) : skipped_(skipped) {}

  // Removes bytes from the front of `bytes` up to the end of the next header, and returns that header. Removes all, and
  // returns no value, when no header ends in `bytes`.
  std::optional<Http2FrameHeader> Next(ByteView& bytes);

 private:
  uint64_t skipped_;  // bytes that are no header
  std::array<uint8_t, Http2FrameHeader::kBytes> header_;
  size_t filled_ = 0;  // of the header
};

// The guard of one connection. Used on one thread.
class Http2Guard {
 public:
  struct Limits {
    size_t calls;                   // at a time
    size_t unanswered_bytes;        // of requests that a peer may send before gRPC answers one
    std::chrono::seconds whole_in;  // for a request, from its first byte to its last
  };

  Http2Guard(const Limits& limits, CallSlots* slots) : limits_(limits), slots_(slots) {}
  Http2Guard(const Http2Guard&) = delete;
  ~Http2Guard();

  // How many of the bytes may be passed on to gRPC. With `begins`, a new call begins with the last of them: the caller
  // holds that byte back until Begin() has returned.
  struct Passed {
    size_t bytes;
    bool begins;
  };
  // Reads bytes that the peer sent. kResourceExhausted when they break a limit: the caller must cut the peer off.
  Result<Passed> FromPeer(ByteView bytes);
  // Waits until the new call has a slot. kResourceExhausted when it gets none: the caller must cut the peer off.
  asio::awaitable<Status> Begin();
  // Reads bytes that gRPC sent to the peer.
  void FromServer(ByteView bytes);
  // Ends a waiting Begin(). Called when the connection has ended.
  void Leave() { slots_->Leave(turn_); }

  // When the oldest request that is not whole must be whole; the far future when all are.
  std::chrono::steady_clock::time_point deadline() const;

 private:
  struct Call {
    std::chrono::steady_clock::time_point since;
    bool whole;
    bool answered = false;  // the call has no slot any more
  };

  const Limits limits_;
  CallSlots* const slots_;
  Http2FrameReader from_peer_{kPrefaceBytes};
  Http2FrameReader from_server_{0};
  std::map<uint32_t, Call> calls_;  // by stream: calls that gRPC has not ended and the peer has not reset
  uint32_t last_stream_ = 0;
  std::optional<Http2FrameHeader> beginning_;
  CallSlots::Turn turn_;
  size_t unanswered_ = 0;
};

}  // namespace lockstep::rpc
