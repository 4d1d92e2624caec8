// Reads a lane's byte stream: small frames out of a buffer, large payloads straight to where they belong.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <cstddef>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace lockstep::pull {

// Belongs to one lane and runs on its strand. After an error the stream is out of step: open a new one.
class FrameReader {
 public:
  // REQUIRES the executor of `socket` to be a strand, and `socket` to outlive the reader.
  explicit FrameReader(asio::ip::tcp::socket& socket);

  // Fills `out`. kUnavailable when the peer closed or reset; kCancelled when the socket was cancelled or closed.
  asio::awaitable<Status> Read(std::span<std::byte> out);

  // When bytes last came in.
  std::chrono::steady_clock::time_point last_byte() const { return last_byte_; }
  // Starts a new silence: something was asked for just now.
  void Touch() { last_byte_ = std::chrono::steady_clock::now(); }

 private:
  size_t TakeBuffered(std::span<std::byte> out);

  asio::ip::tcp::socket& socket_;
  Bytes buffer_;
  bool large_ = false;  // payloads are: what follows a header is not to be copied through the buffer
  size_t begin_ = 0;    // of what is buffered
  size_t end_ = 0;
  std::chrono::steady_clock::time_point last_byte_;
};

}  // namespace lockstep::pull
