// The threads that run asynchronous I/O.
#pragma once

#include <asio.hpp>
#include <cstddef>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

namespace lockstep::net {

// An asio::io_context run by `threads` threads until Stop() or destruction. What an object on the context needs must
// outlive the threads, not only the object: members are declared before the IoThreads that serve them, or Stop() is
// called first.
//
// Handlers and coroutines must not throw. Should one do so all the same, that is a bug: it is passed to `on_exception`
// (on the thread where it happened), and the thread continues with the next handler.
class IoThreads {
 public:
  using OnException = std::function<void(std::string_view what)>;

  // REQUIRES threads >= 1.
  IoThreads(size_t threads, OnException on_exception);
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  asio::io_context& context() { return context_; }

  // Handlers that have begun are finished, all others dropped; then the threads are joined. REQUIRES not to be called
  // from one of them. Idempotent.
  void Stop();

 private:
  void Run();

  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  OnException on_exception_;
  std::vector<std::thread> threads_;
};

// Starts a coroutine that is not waited for. Unlike with asio::detached, its exception reaches IoThreads' on_exception.
void Spawn(const asio::any_io_executor& executor, asio::awaitable<void> coroutine);

}  // namespace lockstep::net
