#include "common/net/io_threads.h"

#include <exception>

namespace lockstep::net {

IoThreads::IoThreads(size_t threads, OnException on_exception)
    : context_(static_cast<int>(threads)),
      work_(asio::make_work_guard(context_)),
      on_exception_(std::move(on_exception)) {
  // Its descriptors are made with the first socket, and throw where there are none: now is better than in the middle.
  asio::use_service<asio::detail::reactor>(context_).init_task();
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

IoThreads::~IoThreads() {
  Stop();
}

void IoThreads::Stop() {
  work_.reset();
  context_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void IoThreads::Run() {
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception& error) {
      on_exception_(error.what());
    } catch (...) {
      on_exception_("unknown exception");
    }
  }
}

void Spawn(const asio::any_io_executor& executor, asio::awaitable<void> coroutine) {
  asio::co_spawn(executor, std::move(coroutine), [](const std::exception_ptr& error) {
    if (error != nullptr) std::rethrow_exception(error);
  });
}

}  // namespace lockstep::net
