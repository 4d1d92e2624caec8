// Ranks that are threads of one test, each with one of the stand-in's GPUs and an NcclExchange.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "export_plugin/lockstep_nccl.hpp"
#include "tests/cuda/stand_in.h"
#include "tests/nccl/stand_in.h"

namespace lockstep::trainer {

using Memory = std::vector<std::byte>;

inline Memory Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  Memory noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

// Memory of `device` until the stand-in's next Reset(). The thread's device is as before.
inline std::byte* OnGpu(int device, const Memory& content) {
  int before = 0;
  void* memory = nullptr;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(device);
  if (cudaMalloc(&memory, content.size()) != cudaSuccess) throw std::bad_alloc();
  (void)cudaSetDevice(before);
  cuda::Write(memory, content);
  return static_cast<std::byte*>(memory);
}

// As new, with a GPU for each of `ranks`.
inline void ResetMachine(uint32_t ranks) {
  cuda::Reset(static_cast<int>(ranks));
  nccl::Reset();
}

using Milliseconds = std::chrono::milliseconds;

inline Milliseconds TimeOf(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - start);
}

// `body` for each rank, each on a thread.
inline void OnAllRanks(uint32_t ranks, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

using Exchanges = std::vector<std::unique_ptr<NcclExchange>>;

// Makes an exchange for each rank that `comes` (empty: for all); the others are null. `errors` gets the error of each.
inline Exchanges NewExchanges(uint32_t ranks, Milliseconds timeout, std::vector<Error>& errors,
                              const std::function<bool(uint32_t)>& comes = {}) {
  ncclUniqueId id;
  (void)ncclGetUniqueId(&id);
  Exchanges exchanges(ranks);
  errors.assign(ranks, {});
  OnAllRanks(ranks, [&](uint32_t rank) {
    if (comes && !comes(rank)) return;
    errors[rank] = NcclExchange::Create({id, ranks, rank, static_cast<int>(rank), timeout}, exchanges[rank]);
  });
  return exchanges;
}

inline Exchanges NewExchanges(uint32_t ranks, Milliseconds timeout = std::chrono::seconds(20)) {
  std::vector<Error> errors;
  Exchanges exchanges = NewExchanges(ranks, timeout, errors);
  for (const Error& error : errors) {
    INFO(error.message);
    REQUIRE_FALSE(error);
  }
  return exchanges;
}

// Nothing is left, and nothing was done that no program should do.
inline void CheckCleanMachine() {
  CHECK(nccl::LiveCommunicators() == 0);
  CHECK(nccl::Violations().empty());
  CHECK(cuda::Violations().empty());
  CHECK(cuda::Count().streams == 0);
  CHECK(cuda::Count().events == 0);
  CHECK(cuda::Count().under_way == 0);
}

inline void CheckContains(const Error& error, const std::string& part) {
  INFO(error.message);
  CHECK(error.code == LOCKSTEP_UNAVAILABLE);
  CHECK(error.message.find(part) != std::string::npos);
}

}  // namespace lockstep::trainer
