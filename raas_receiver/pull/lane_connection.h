// LaneConnection: the TCP connection of one lane, of a pull or of a live subscription: how it is opened, what is read
// from it, and what its failures are called.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/wire/frame.h"
#include "raas_receiver/pull/frame_reader.h"
#include "raas_receiver/pull/lane_peer.h"

namespace lockstep::pull {

// Everything runs on the strand of the executor. After an error of any read or write the stream is out of step: Close
// it, and Open it again.
class LaneConnection {
 public:
  using Strand = asio::strand<asio::io_context::executor_type>;

  // `peer` outlives this; `kind` is a literal: what the lane is called in errors. `number` counts the lanes of a peer.
  LaneConnection(const Strand& strand, const LanePeer& peer, std::string_view kind, uint32_t number);

  // Connects. REQUIRES not to be open.
  asio::awaitable<Status> Open();
  // Says hello, with `requests` in the same packet, and reads the welcome. An agent that refuses the ticket reads no
  // request; its own code then.
  asio::awaitable<Status> Enter(const Ticket& ticket, const Bytes& requests);
  asio::awaitable<Status> Send(ByteView bytes, std::chrono::milliseconds timeout);

  // Fills `out` with what comes next.
  asio::awaitable<Status> Read(std::span<std::byte> out) { return reader_->Read(out); }
  // What a header just read must be: one of this model that answers `request_id`. kProtocol, kCorrupt.
  Status Check(const wire::FrameHeader& frame, uint32_t request_id) const;
  // Reads what follows the header of a kError frame: the agent's code and words, in `refusal`.
  asio::awaitable<Status> ReadRefusal(const wire::FrameHeader& frame, Status& refusal);

  // When bytes last came in, or Touch was called: something was asked for just then. REQUIRES to have been open.
  std::chrono::steady_clock::time_point last_byte() const { return reader_->last_byte(); }
  void Touch() { reader_->Touch(); }

  asio::ip::tcp::socket& socket() { return socket_; }
  // What is in progress ends with an error.
  void Close();

  // `status` with which lane it is and whose.
  Status Explain(const Status& status) const;

 private:
  const LanePeer& peer_;
  const std::string_view kind_;
  const uint32_t number_;
  asio::ip::tcp::socket socket_;
  std::optional<FrameReader> reader_;
};

}  // namespace lockstep::pull
