// LaneConnection: the TCP connection of one lane: how it is opened, what is read from it, and what its failures are
// called.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/net/peer_stream.h"
#include "common/wire/frame.h"
#include "raas_receiver/pull/lane_peer.h"

namespace lockstep::pull {

// Everything runs on the strand of the executor. After an error of any read or write the stream is out of step: Close
// it, and Open it again.
class LaneConnection {
 public:
  using Strand = asio::strand<asio::io_context::executor_type>;

  // `peer` outlives this; `kind` is a literal: what the lane is called in errors. `number` counts the lanes of a peer.
  LaneConnection(const Strand& strand, const LanePeer& peer, std::string_view kind, uint32_t number);

  // Connects. kPermission where plain lanes may not lead. REQUIRES not to be open.
  asio::awaitable<Status> Open();
  // Proves that it has the ticket where lanes are encrypted. Says hello, with `requests` in the same packet, and reads
  // the welcome. An agent that refuses the ticket reads no request; its own code then.
  asio::awaitable<Status> Enter(const Ticket& ticket, const Bytes& requests);
  asio::awaitable<Status> Send(ByteView bytes, std::chrono::milliseconds timeout);

  // Fills `out` with what comes next: small frames out of a buffer, large payloads straight to where they belong.
  // kUnavailable when the peer closed or reset; kCancelled when the socket was cancelled or closed.
  asio::awaitable<Status> Read(std::span<std::byte> out);
  // The next frame's header: one of this model that answers `request_id`. kProtocol, kCorrupt.
  asio::awaitable<Status> ReadFrame(wire::FrameHeader& frame, uint32_t request_id);
  // Reads what follows the header of a kError frame: the agent's code and words, in `refusal`.
  asio::awaitable<Status> ReadRefusal(const wire::FrameHeader& frame, Status& refusal);

  // When bytes last came in, or Touch was called, which a lane does when it asks for something.
  std::chrono::steady_clock::time_point last_byte() const { return last_byte_; }
  void Touch() { last_byte_ = std::chrono::steady_clock::now(); }

  asio::ip::tcp::socket& socket() { return stream_.socket(); }
  // Closes the connection. Calls in progress end with an error.
  void Close();

  // Adds the lane, its pull and the agent's address to `status`.
  Status Explain(const Status& status) const;

 private:
  asio::awaitable<Status> Encrypt(const Ticket& ticket);
  size_t TakeBuffered(std::span<std::byte> out);

  const LanePeer& peer_;
  const std::string_view kind_;
  const uint32_t number_;
  net::PeerStream stream_;
  Bytes buffer_;
  bool large_ = false;  // payloads are: what follows a header is not to be copied through the buffer
  size_t begin_ = 0;    // of what is buffered
  size_t end_ = 0;
  std::chrono::steady_clock::time_point last_byte_;
};

}  // namespace lockstep::pull
