// What the stand-in's calls work on. The product's tests do not include this.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/cuda/stand_in.h"

struct CUevent_st {
  int device = 0;
  CUstream_st* stream = nullptr;  // of the last record
  uint64_t recorded = 0;
  uint64_t fired = 0;
};

struct Work {
  std::function<void()> run;
  std::function<bool()> ready;   // where it waits for other work
  CUevent_st* fires = nullptr;   // when it is reached
  CUevent_st* awaits = nullptr;  // before what follows
  CUstream_st* in = nullptr;     // where `awaits` was recorded
  uint64_t count = 0;            // of `fires` or `awaits`
  const void* memory[2] = {};    // what it touches, for violations
  uint64_t bytes[2] = {};
};

struct CUstream_st {
  int device = 0;
  bool held = false;
  bool driven = false;  // its work is being run
  std::deque<Work> work;
};

namespace lockstep::cuda {

using Lock = std::unique_lock<std::mutex>;

// Memory of a device: its pages, behind them one that belongs to none.
struct Allocation {
  int device = 0;
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  std::byte* pages = nullptr;
  uint64_t mapped = 0;
};

struct HostRange {
  uint64_t bytes = 0;
  int device = 0;
  bool allocated = false;  // by cudaMallocHost()
};

struct Fault {
  std::string name;
  uint64_t nth = 0;
  bool always = false;
  cudaError_t error = cudaSuccess;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable released;
  uint64_t generation = 1;  // counts Reset(): threads' current devices are of one
  int devices = 1;
  int driver = kDriverVersion;
  std::map<int, bool> integrated;
  std::map<int, cudaError_t> lost;
  std::set<int> contexts;  // devices that have one
  std::vector<Fault> faults;
  std::vector<Call> calls;
  std::vector<std::string> violations;
  uint64_t hold_limit_ms = 10'000;
  std::map<const std::byte*, Allocation> allocations;
  std::map<const std::byte*, HostRange> host;
  std::set<CUstream_st*> streams;
  std::map<int, CUstream_st*> default_streams;
  std::set<CUevent_st*> events;
  uint64_t handles = 0;
  std::vector<std::unique_ptr<CUstream_st>> all_streams;  // kept until Reset(): a handle is never used again
  std::vector<std::unique_ptr<CUevent_st>> all_events;
};

Machine& TheMachine();
int& CurrentDevice();  // of this thread; call with the lock

// The allocation or host range that holds `pointer`, or null.
const Allocation* FindAllocation(const void* pointer);
const HostRange* FindHost(const void* pointer, const std::byte** base = nullptr);
Allocation* NewAllocation(int device, uint64_t bytes);  // null: no memory
void FreeAllocation(const void* base);

// The stream of a handle, the default one for null; or null.
CUstream_st* StreamOf(cudaStream_t handle);

// Runs the work of `stream` until it is empty, or `until` has fired `count` times. False where that needs a stream that
// is held. `pieces` is how many pieces to run at most.
bool Drive(CUstream_st& stream, CUevent_st* until, uint64_t count, uint64_t pieces = ~uint64_t{0});
// The same, waiting for Release(). cudaErrorLaunchTimeout after the limit.
cudaError_t Await(Lock& lock, CUstream_st& stream, CUevent_st* until, uint64_t count, std::string_view who);

// A violation if work that has not run touches the memory.
void CheckUnused(const void* memory, uint64_t bytes, std::string_view who);
// What is under way will not run; its events have fired.
void DropWork(CUstream_st& stream);

// Makes the memory of all devices this process' as long as it lives.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
};

}  // namespace lockstep::cuda
