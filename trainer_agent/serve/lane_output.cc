#include "trainer_agent/serve/lane_output.h"

namespace lockstep::serve {

asio::awaitable<Status> LaneOutput::Flush() {
  const size_t bytes = writer_.bytes();
  if (bytes == 0) co_return OkStatus();
  co_await WaitForPace(bytes);
  Sent(bytes);
  pull_.Touch();
  co_return co_await writer_.Flush();
}

asio::awaitable<void> LaneOutput::WaitForPace(uint64_t bytes) {
  const auto wait = pace_.Book(bytes);
  if (wait.count() == 0) co_return;
  asio::steady_timer timer(socket_.get_executor(), wait);
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

void LaneOutput::Sent(uint64_t bytes) {
  pace_.Sent(bytes);
  span_.Sent(bytes);
}

asio::awaitable<Status> LaneOutput::UntilWritable() {
  return net::UntilReady(socket_, asio::socket_base::wait_write, timeout_);
}

}  // namespace lockstep::serve
