#include "common/base/worker_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace lockstep {

WorkerPool::WorkerPool(size_t threads) : process_(::getpid()), state_(std::make_unique<State>()) {
  state_->threads.reserve(threads);
  for (size_t i = 0; i < threads; ++i) state_->threads.emplace_back([this] { Loop(); });
}

WorkerPool::~WorkerPool() {
  if (::getpid() != process_) {
    (void)state_.release();  // its lock may be held, and its condition waited for, by threads that are not here
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void WorkerPool::Post(std::function<void()> task) {
  {
    std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

void WorkerPool::Loop() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(state_->mutex);
      state_->wake.wait(lock, [this] { return state_->stopping || !state_->tasks.empty(); });
      if (state_->tasks.empty()) return;
      task = std::move(state_->tasks.front());
      state_->tasks.pop_front();
    }
    task();
  }
}

namespace {

// Shared by the caller and its helpers; a helper that starts after the last item is taken finds nothing and goes.
struct Loop {
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  std::mutex mutex;
  std::condition_variable finished;
};

void RunItems(Loop& loop, size_t count, const std::function<void(size_t)>& body) {
  size_t ran = 0;
  for (size_t i = loop.next++; i < count; i = loop.next++, ++ran) body(i);
  if (ran == 0 || loop.done.fetch_add(ran) + ran < count) return;
  std::lock_guard lock(loop.mutex);
  loop.finished.notify_all();
}

}  // namespace

void WorkerPool::ParallelFor(size_t count, const std::function<void(size_t)>& body) {
  if (count == 0) return;
  auto loop = std::make_shared<struct Loop>();
  const size_t helpers = std::min(size(), count - 1);
  // `body` is only touched while items remain, and the caller does not return before all are done.
  for (size_t i = 0; i < helpers; ++i) Post([loop, count, &body] { RunItems(*loop, count, body); });
  RunItems(*loop, count, body);
  std::unique_lock lock(loop->mutex);
  loop->finished.wait(lock, [&] { return loop->done.load() == count; });
}

Status WorkerPool::ParallelTry(size_t count, const std::function<Status(size_t)>& body) {
  std::vector<Status> outcomes(count);
  std::atomic<bool> failed = false;  // items begin in order: the first that fails has begun by then
  ParallelFor(count, [&](size_t i) {
    if (failed) return;
    outcomes[i] = body(i);
    if (!outcomes[i].ok()) failed = true;
  });
  for (const Status& outcome : outcomes) LS_RETURN_IF_ERROR(outcome);
  return OkStatus();
}

}  // namespace lockstep
