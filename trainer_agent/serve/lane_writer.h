// LaneWriter: gathers frames and sends them in few system calls, straight from the memory that their payloads are in.
//
// The kernel copies while the call lasts, and nothing refers to the memory after it: that is what lets a half be sent
// from while a trainer waits for it at most as long as one call takes. (sendfile and MSG_ZEROCOPY leave pages of the
// half in flight, whose bytes a trainer would change; they were also slower, docs/performance.md.)
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <vector>

#include "common/base/bytes.h"
#include "common/net/lane_io.h"
#include "common/wire/frame.h"

namespace lockstep::serve {

// Used by the one coroutine that owns the lane. After an error the lane is to be closed.
class LaneWriter {
 public:
  // In a system call; more would hold up a trainer for longer, and gain nothing.
  static constexpr size_t kBurstBytes = 1 << 20;

  // `timeout` is for what one Flush sends.
  LaneWriter(asio::ip::tcp::socket& socket, std::chrono::milliseconds timeout) : socket_(socket), timeout_(timeout) {}

  // A frame to be sent with the next Flush or SendLent; `payload` must stay until then. REQUIRES !full().
  void Add(wire::FrameHeader header, ByteView payload);
  void AddEnd(uint32_t request_id, uint32_t frames, Version version = 0);
  void AddError(uint32_t request_id, const Status& error);

  bool full() const { return bytes_ >= kBurstBytes || headers_.size() == kMaxFrames; }
  size_t bytes() const { return bytes_; }  // that are to be sent

  // Sends everything that was added.
  asio::awaitable<Status> Flush();

  // Of what was added, sends what the socket takes at once, and returns how many frames that is. The rest of a frame
  // that was cut is copied and counts as sent: the next Flush sends it. Frames not begun are dropped. No payload is
  // used after this has returned. REQUIRES that nothing was left to be sent before.
  Result<uint32_t> SendLent();

 private:
  static constexpr size_t kMaxFrames = 256;

  void Clear();
  void Skip(size_t bytes);
  uint32_t KeepCutFrame(size_t sent);

  asio::ip::tcp::socket& socket_;
  const std::chrono::milliseconds timeout_;
  std::vector<wire::FrameHeader> headers_;  // never more than were reserved: pieces point into it
  std::vector<iovec> pieces_;
  size_t next_ = 0;  // of the pieces, the first with bytes to send
  size_t bytes_ = 0;
  Bytes kept_;  // what is to be sent and is nobody else's: the rest of a cut frame, an error's text
};

}  // namespace lockstep::serve
