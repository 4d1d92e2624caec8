// A fixed set of threads that run tasks, and the loop that spreads blocks over them.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace lockstep {

// Thread-safe. The destructor runs what is queued, then joins; in a process that is forked off it does nothing, and
// nothing else may be called there: the threads are the parent's.
class WorkerPool {
 public:
  // Threads with a `nice` above 0 give way to others. REQUIRES threads >= 1.
  explicit WorkerPool(size_t threads, int nice = 0);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  size_t size() const { return state_->threads.size(); }

  // Runs `task` on one of the threads, soon. It throws nothing.
  void Post(std::function<void()> task);

  // Calls body(i) for every i in [0, count), spread over the pool and the calling thread, and returns when all are
  // done. Safe to call from several threads at once, the pool's own among them: the caller takes what no other thread
  // has, and waits only for items that are at work. The first exception of an item is thrown to the caller, after all
  // threads have left `body`; items that have not begun then are left out.
  void ParallelFor(size_t count, const std::function<void(size_t)>& body);
  // As above, but stops at errors: leaves out items that have not begun when one fails, and returns the error of the
  // first that failed.
  Status ParallelTry(size_t count, const std::function<Status(size_t)>& body);

 private:
  struct State {
    Mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void()>> tasks LS_GUARDED_BY(mutex);
    bool stopping LS_GUARDED_BY(mutex) = false;
    std::vector<std::thread> threads;
  };

  void Loop(int nice);
  void Stop();

  const pid_t process_;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
