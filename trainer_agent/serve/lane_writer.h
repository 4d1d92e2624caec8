// LaneWriter: what one lane sends: frames, gathered and sent in few system calls, straight from the memory that their
// payloads are in, at the lane's pace, and counted in its span.
//
// The kernel copies while the call lasts, and nothing refers to the memory after it. So a trainer waits for a slot at
// most as long as one call takes. (sendfile and MSG_ZEROCOPY leave pages of the slot in flight, and a trainer would
// change them; they were also slower, docs/reference/performance-notes.md.)
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <vector>

#include "common/base/bytes.h"
#include "common/net/peer_stream.h"
#include "common/wire/frame.h"
#include "trainer_agent/serve/lane_limits.h"
#include "trainer_agent/serve/pull.h"
#include "trainer_agent/serve/serve_span.h"

namespace lockstep::serve {

// The outcome of a request, before the lane sends the request's end or error.
struct LaneAnswer {
  Status refusal;         // not OK: why it cannot be answered in full
  uint32_t frames = 0;    // sent for it
  Version target = 0;     // of a stream request: what the delta has led to
  bool end_sent = false;  // along with the last frame
};

// Used by the one coroutine that owns the lane. After an error the lane is to be closed.
class LaneWriter {
 public:
  // Most bytes of one system call. A larger burst would hold up a trainer for longer, and gain nothing.
  static constexpr size_t kBurstBytes = 1 << 20;

  // `timeout` is for each burst. Everything given outlives this.
  LaneWriter(net::PeerStream& stream, std::chrono::milliseconds timeout, LanePace pace, Pull& pull, ServeSpan& span)
      : stream_(stream), timeout_(timeout), pace_(std::move(pace)), pull_(pull), span_(span) {}

  // A frame to be sent with the next Flush or SendLent; `payload` must stay until then. REQUIRES !full().
  void Add(wire::FrameHeader header, ByteView payload);
  void AddEnd(uint32_t request_id, uint32_t frames, Version version = 0);
  void AddError(uint32_t request_id, const Status& error);
  bool full() const { return bytes_ >= kBurstBytes || headers_.size() == kMaxFrames; }

  // Waits for the lane's turn, then sends everything that was added.
  asio::awaitable<Status> Flush();

  // For memory that is lent for a moment: first waits for the lane's turn to send `bytes` of payload.
  asio::awaitable<void> WaitForPace(uint64_t bytes);
  // Sends as many of the added frames as the socket takes at once, and returns how many that is. Copies the rest of a
  // frame that was cut, for SendKept; that frame counts as sent. Drops the frames after it. Uses no payload after it
  // has returned. REQUIRES SendKept to have sent the rest of the call before.
  Result<uint32_t> SendLent();
  asio::awaitable<Status> SendKept();
  asio::awaitable<Status> UntilWritable();

 private:
  static constexpr size_t kMaxFrames = 256;

  void Count(uint64_t bytes);
  void Clear();
  void Skip(size_t bytes);
  uint32_t KeepCutFrame(size_t sent);

  net::PeerStream& stream_;
  const std::chrono::milliseconds timeout_;
  LanePace pace_;
  Pull& pull_;
  ServeSpan& span_;
  std::vector<wire::FrameHeader> headers_;  // never more than were reserved: pieces point into it
  std::vector<iovec> pieces_;
  size_t next_ = 0;  // of the pieces, the first with bytes to send
  size_t bytes_ = 0;
  Bytes kept_;  // what is to be sent and has no other owner: the rest of a cut frame, an error's text
};

}  // namespace lockstep::serve
