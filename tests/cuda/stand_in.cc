#include "tests/cuda/stand_in.h"

#include <cstring>

#include "tests/cuda/machine.h"

namespace lockstep::cuda {

void Reset(int devices) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  while (!machine.allocations.empty()) FreeAllocation(machine.allocations.begin()->first);
  for (const auto& [base, range] : machine.host) {
    if (range.allocated) ::operator delete (const_cast<std::byte*>(base), std::align_val_t{4096});
  }
  machine.devices = devices;
  machine.driver = kDriverVersion;
  machine.hold_limit_ms = 10'000;
  ++machine.generation;
  machine.integrated.clear();
  machine.lost.clear();
  machine.contexts.clear();
  machine.faults.clear();
  machine.calls.clear();
  machine.violations.clear();
  machine.host.clear();
  machine.streams.clear();
  machine.default_streams.clear();
  machine.events.clear();
  machine.all_streams.clear();
  machine.all_events.clear();
}

void SetDriver(int version) {
  const Lock lock(TheMachine().mutex);
  TheMachine().driver = version;
}

void SetIntegrated(int device, bool integrated) {
  const Lock lock(TheMachine().mutex);
  TheMachine().integrated[device] = integrated;
}

std::vector<Call> Calls(std::string_view name) {
  const Lock lock(TheMachine().mutex);
  std::vector<Call> calls;
  for (const Call& call : TheMachine().calls) {
    if (name.empty() || call.name == name) calls.push_back(call);
  }
  return calls;
}

void ForgetCalls() {
  const Lock lock(TheMachine().mutex);
  TheMachine().calls.clear();
}

void FailCall(std::string_view name, uint64_t nth, cudaError_t error) {
  const Lock lock(TheMachine().mutex);
  TheMachine().faults.push_back({.name = std::string(name), .nth = nth, .error = error});
}

void FailAlways(std::string_view name, cudaError_t error) {
  const Lock lock(TheMachine().mutex);
  TheMachine().faults.push_back({.name = std::string(name), .always = true, .error = error});
}

void LoseDevice(int device, cudaError_t error) {
  const Lock lock(TheMachine().mutex);
  TheMachine().lost[device] = error;
  for (const auto& stream : TheMachine().all_streams) {
    if (stream->device == device) DropWork(*stream);
  }
}

void Hold(cudaStream_t stream) {
  const Lock lock(TheMachine().mutex);
  if (CUstream_st* const found = StreamOf(stream)) found->held = true;
}

void Release(cudaStream_t stream) {
  const Lock lock(TheMachine().mutex);
  if (CUstream_st* const found = StreamOf(stream)) found->held = false;
  TheMachine().released.notify_all();
}

void SetHoldLimit(uint64_t milliseconds) {
  const Lock lock(TheMachine().mutex);
  TheMachine().hold_limit_ms = milliseconds;
}

std::vector<std::byte> Read(const void* device_memory, uint64_t bytes) {
  const Lock lock(TheMachine().mutex);
  const OpenMemory open;
  const auto* from = static_cast<const std::byte*>(device_memory);
  return {from, from + bytes};
}

void Write(void* device_memory, std::span<const std::byte> bytes) {
  const Lock lock(TheMachine().mutex);
  const OpenMemory open;
  std::memcpy(device_memory, bytes.data(), bytes.size());
}

Live Count() {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  Live live{.streams = machine.streams.size(),
            .events = machine.events.size(),
            .device_allocations = machine.allocations.size()};
  for (const auto& [base, range] : machine.host) ++(range.allocated ? live.host_allocations : live.registered_ranges);
  for (const auto& stream : machine.all_streams) live.under_way += stream->work.size();
  return live;
}

std::set<int> Contexts() {
  const Lock lock(TheMachine().mutex);
  return TheMachine().contexts;
}

std::vector<std::string> Violations() {
  const Lock lock(TheMachine().mutex);
  return TheMachine().violations;
}

}  // namespace lockstep::cuda
