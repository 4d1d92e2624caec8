#include "tests/cuda/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

namespace lockstep::cuda {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAlignment = 256;  // of what cudaMalloc() gives

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto* left = static_cast<const std::byte*>(a);
  const auto* right = static_cast<const std::byte*>(b);
  return left != nullptr && right != nullptr && left < right + b_bytes && right < left + a_bytes;
}

int open_memory_depth = 0;  // of OpenMemory, under the lock

void Protect(int protection) {
  for (const auto& [base, allocation] : TheMachine().allocations) {
    (void)mprotect(allocation.pages, allocation.mapped - kPage, protection);
  }
}

}  // namespace

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

int& CurrentDevice() {
  thread_local int device = 0;
  thread_local uint64_t generation = 0;
  if (generation != TheMachine().generation) device = 0;
  generation = TheMachine().generation;
  return device;
}

const Allocation* FindAllocation(const void* pointer) {
  const auto* address = static_cast<const std::byte*>(pointer);
  const auto& allocations = TheMachine().allocations;
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  const Allocation& allocation = std::prev(next)->second;
  return address < allocation.base + allocation.bytes ? &allocation : nullptr;
}

const HostRange* FindHost(const void* pointer, const std::byte** base) {
  const auto* address = static_cast<const std::byte*>(pointer);
  const auto& host = TheMachine().host;
  auto next = host.upper_bound(address);
  if (next == host.begin()) return nullptr;
  --next;
  if (base != nullptr) *base = next->first;
  return address < next->first + next->second.bytes ? &next->second : nullptr;
}

// At the end of its pages, so that what runs over it meets the one behind.
Allocation* NewAllocation(int device, uint64_t bytes) {
  const uint64_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const uint64_t mapped = (aligned + kPage - 1) / kPage * kPage + kPage;
  void* const pages = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(pages);
  std::byte* const base = first + mapped - kPage - aligned;
  if (open_memory_depth > 0) (void)mprotect(first, mapped - kPage, PROT_READ | PROT_WRITE);
  return &(TheMachine().allocations[base] = {device, base, bytes, first, mapped});
}

void FreeAllocation(const void* base) {
  const auto found = TheMachine().allocations.find(static_cast<const std::byte*>(base));
  (void)munmap(found->second.pages, found->second.mapped);
  TheMachine().allocations.erase(found);
}

CUstream_st* StreamOf(cudaStream_t handle) {
  Machine& machine = TheMachine();
  if (handle != nullptr) return machine.streams.contains(handle) ? handle : nullptr;
  CUstream_st*& stream = machine.default_streams[CurrentDevice()];
  if (stream == nullptr) {
    stream = machine.all_streams.emplace_back(std::make_unique<CUstream_st>()).get();
    stream->device = CurrentDevice();
  }
  return stream;
}

bool Drive(CUstream_st& stream, CUevent_st* until, uint64_t count, uint64_t pieces) {
  if (stream.driven) return false;
  stream.driven = true;
  bool reached = true;
  const OpenMemory open;
  while (!stream.work.empty() && (until == nullptr || until->fired < count) && pieces-- > 0) {
    Work& next = stream.work.front();
    reached = !stream.held;
    if (reached && next.awaits != nullptr && next.awaits->fired < next.count) {
      reached = Drive(*next.in, next.awaits, next.count);
    }
    if (reached && next.ready) reached = next.ready();
    if (!reached) break;
    if (next.run) next.run();
    if (next.fires != nullptr) next.fires->fired = std::max(next.fires->fired, next.count);
    stream.work.pop_front();
  }
  stream.driven = false;
  return reached;
}

cudaError_t Await(Lock& lock, CUstream_st& stream, CUevent_st* until, uint64_t count, std::string_view who) {
  Machine& machine = TheMachine();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(machine.hold_limit_ms);
  while (!Drive(stream, until, count)) {
    // No signal says that something is ready by then.
    machine.released.wait_for(lock, std::chrono::milliseconds(1));
    if (std::chrono::steady_clock::now() > deadline) {
      machine.violations.push_back(std::string(who) + " waited for a stream that is held");
      return cudaErrorLaunchTimeout;
    }
  }
  const auto lost = machine.lost.find(stream.device);
  return lost == machine.lost.end() ? cudaSuccess : lost->second;
}

void CheckUnused(const void* memory, uint64_t bytes, std::string_view who) {
  for (const auto& stream : TheMachine().all_streams) {
    for (const Work& work : stream->work) {
      if (!Overlap(memory, bytes, work.memory[0], work.bytes[0]) &&
          !Overlap(memory, bytes, work.memory[1], work.bytes[1])) {
        continue;
      }
      TheMachine().violations.push_back(std::string(who) + " of memory that work under way uses");
      return;
    }
  }
}

void DropWork(CUstream_st& stream) {
  for (Work& work : stream.work) {
    if (work.fires != nullptr) work.fires->fired = std::max(work.fires->fired, work.count);
  }
  stream.work.clear();
  TheMachine().released.notify_all();
}

OpenMemory::OpenMemory() {
  if (open_memory_depth++ == 0) Protect(PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory() {
  if (--open_memory_depth == 0) Protect(PROT_NONE);
}

}  // namespace lockstep::cuda
