#include "common/base/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>

namespace lockstep {

WorkerPool::WorkerPool(size_t threads) {
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void WorkerPool::Loop() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
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
  const size_t helpers = std::min(threads_.size(), count - 1);
  // `body` is only touched while items remain, and the caller does not return before all are done.
  for (size_t i = 0; i < helpers; ++i) Post([loop, count, &body] { RunItems(*loop, count, body); });
  RunItems(*loop, count, body);
  std::unique_lock lock(loop->mutex);
  loop->finished.wait(lock, [&] { return loop->done.load() == count; });
}

}  // namespace lockstep
