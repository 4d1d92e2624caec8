// A TCP server for tests, which answers what a test says, byte for byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/text.h"
#include "common/os/unique_fd.h"

namespace lockstep::http {

class TestHttpServer {
 public:
  // `answer` gets the connection when a whole request was read from it; then it is closed.
  using Answer = std::function<void(int connection)>;

  explicit TestHttpServer(Answer answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    (void)::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~TestHttpServer() {
    stopping_ = true;
    thread_.join();
  }

  std::string url() const { return Cat("http://127.0.0.1:", port_); }
  bool stopping() const { return stopping_; }
  std::vector<std::string> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }

  static void Write(int connection, std::string_view bytes) {
    [[maybe_unused]] const auto sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // A whole answer with `status`, say "200 OK".
  static void Reply(int connection, std::string_view status, std::string_view body) {
    Write(connection, Cat("HTTP/1.1 ", status, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  }
  // Closes it so that the other end sees a reset.
  static void Reset(int connection) {
    const linger now{1, 0};
    ::setsockopt(connection, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

 private:
  void Serve() {
    while (!stopping_) {
      pollfd event{listener_.get(), POLLIN, 0};
      if (::poll(&event, 1, 20) <= 0) continue;
      const os::UniqueFd connection(::accept(listener_.get(), nullptr, nullptr));
      const std::string request = ReadRequest(connection.get());
      if (request.empty()) continue;
      {
        std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      answer_(connection.get());
    }
  }

  static std::string ReadRequest(int connection) {
    std::string request;
    char buffer[4096];
    while (true) {
      const size_t head = request.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t length = request.find("Content-Length: ");
        const size_t body = length == std::string::npos ? 0 : std::stoul(request.substr(length + 16));
        if (request.size() >= head + 4 + body) return request;
      }
      const ssize_t got = ::recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) return "";
      request.append(buffer, static_cast<size_t>(got));
    }
  }

  const Answer answer_;
  const os::UniqueFd listener_;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace lockstep::http
