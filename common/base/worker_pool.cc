#include "common/base/worker_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <new>

#include "common/base/mutex.h"

namespace lockstep {

WorkerPool::WorkerPool(size_t threads, int nice) : process_(::getpid()), state_(std::make_unique<State>()) {
  state_->threads.reserve(threads);
  try {
    for (size_t i = 0; i < threads; ++i) state_->threads.emplace_back([this, nice] { Loop(nice); });
  } catch (...) {
    Stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  if (::getpid() == process_) {
    Stop();
  } else {
    (void)state_.release();  // its lock may be held, and its condition waited for, by threads that are not here
  }
}

void WorkerPool::Stop() {
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void WorkerPool::Post(std::function<void()> task) {
  {
    MutexLock lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

void WorkerPool::Loop(int nice) {
  if (nice > 0) (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice);
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(state_->mutex);
      state_->wake.wait(lock,
                        [this]() LS_REQUIRES(state_->mutex) { return state_->stopping || !state_->tasks.empty(); });
      if (state_->tasks.empty()) return;
      task = std::move(state_->tasks.front());
      state_->tasks.pop_front();
    }
    task();
  }
}

namespace {

// Shared by the caller and its helpers; a helper that starts after the last item is taken finds nothing and goes.
class SharedLoop {
 public:
  explicit SharedLoop(size_t count) : count_(count) {}

  // Runs items until none is left. After one that throws, those that have not begun are left out.
  void Run(const std::function<void(size_t)>& body) {
    size_t taken = 0;
    try {
      for (size_t i = next_++; i < count_; i = next_++) {
        ++taken;
        body(i);
      }
    } catch (...) {
      taken += count_ - std::min(next_.exchange(count_), count_);
      {
        MutexLock lock(mutex_);
        if (thrown_ == nullptr) thrown_ = std::current_exception();
      }
      CountDone(taken);
      throw;
    }
    CountDone(taken);
  }

  // Until no thread is in `body`, and none will be.
  void Wait() {
    MutexLock lock(mutex_);
    finished_.wait(lock, [&]() LS_REQUIRES(mutex_) { return done_ == count_; });
  }

  // After Wait(). Null: no item has thrown.
  const std::exception_ptr& thrown() const { return thrown_; }

 private:
  void CountDone(size_t items) {
    if (items == 0 || done_.fetch_add(items) + items < count_) return;
    MutexLock lock(mutex_);
    finished_.notify_all();
  }

  const size_t count_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> done_{0};
  Mutex mutex_;
  std::condition_variable finished_;
  std::exception_ptr thrown_ LS_GUARDED_BY(mutex_);  // the first
};

}  // namespace

void WorkerPool::ParallelFor(size_t count, const std::function<void(size_t)>& body) {
  if (count == 0) return;
  auto loop = std::make_shared<SharedLoop>(count);
  const auto help = [loop, &body] {
    try {
      loop->Run(body);
    } catch (...) {  // the caller throws it
    }
  };
  const size_t helpers = std::min(size(), count - 1);
  try {
    for (size_t i = 0; i < helpers; ++i) Post(help);
  } catch (const std::bad_alloc&) {  // the caller does what no helper does
  }
  // `body` is only touched while items remain, and the caller does not leave before all are done.
  try {
    loop->Run(body);
  } catch (...) {
    loop->Wait();
    throw;
  }
  loop->Wait();
  if (loop->thrown() != nullptr) std::rethrow_exception(loop->thrown());
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
