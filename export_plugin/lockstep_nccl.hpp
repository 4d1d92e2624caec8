// NcclExchange: the exchange of C++ trainers that have NCCL between their hosts. Header-only, C++17.
//
// Give it a communicator of its own, over all ranks in the order of their sheets: what the trainer has under way in
// another would come between the messages. Buckets are host memory and go through GPU memory, which this holds: one
// buffer for each message under way, of which there are at most two.
#ifndef LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_NCCL_HPP_
#define LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_NCCL_HPP_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep.hpp"

namespace lockstep::trainer {

// Used by one thread at a time, with the communicator's device current.
class NcclExchange : public Exchange {
 public:
  // `communicator` outlives this. A message that takes longer than `timeout` is a failure; then abort the communicator.
  explicit NcclExchange(ncclComm_t communicator, std::chrono::milliseconds timeout = std::chrono::minutes(10))
      : communicator_(communicator), timeout_(timeout) {}
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;
  ~NcclExchange() override {
    if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
    for (const auto& [number, message] : under_way_) free_.push_back(message.staging);
    for (const Staging& staging : free_) {
      (void)cudaFree(staging.memory);
      (void)cudaEventDestroy(staging.done);
    }
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Error StartSend(uint32_t peer, const void* data, uint64_t bytes, uint64_t& transfer) override {
    Message message{peer, {}};
    if (auto error = Take(bytes, message.staging)) return error;
    void* const device = message.staging.memory;
    Error error = Cuda(cudaMemcpyAsync(device, data, bytes, cudaMemcpyHostToDevice, stream_), peer);
    if (!error) {
      error = Nccl(ncclSend(device, bytes, ncclUint8, static_cast<int>(peer), communicator_, stream_), peer);
    }
    return Started(message, std::move(error), transfer);
  }

  Error StartReceive(uint32_t peer, void* data, uint64_t bytes, uint64_t& transfer) override {
    Message message{peer, {}};
    if (auto error = Take(bytes, message.staging)) return error;
    void* const device = message.staging.memory;
    Error error = Nccl(ncclRecv(device, bytes, ncclUint8, static_cast<int>(peer), communicator_, stream_), peer);
    if (!error) error = Cuda(cudaMemcpyAsync(data, device, bytes, cudaMemcpyDeviceToHost, stream_), peer);
    return Started(message, std::move(error), transfer);
  }

  Error Wait(uint64_t transfer) override {
    const auto found = under_way_.find(transfer);
    if (found == under_way_.end()) return {LOCKSTEP_STATE, "there is no transfer " + std::to_string(transfer)};
    const Message message = found->second;
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (true) {
      const cudaError_t state = cudaEventQuery(message.staging.done);
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) return Cuda(state, message.peer);
      ncclResult_t asynchronous = ncclSuccess;
      if (auto error = Nccl(ncclCommGetAsyncError(communicator_, &asynchronous), message.peer)) return error;
      if (asynchronous != ncclInProgress) {
        if (auto error = Nccl(asynchronous, message.peer)) return error;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        return {LOCKSTEP_UNAVAILABLE, "rank " + std::to_string(message.peer) + " did not answer in time"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    under_way_.erase(found);
    free_.push_back(message.staging);
    return {};
  }

 private:
  struct Staging {
    void* memory = nullptr;
    uint64_t bytes = 0;
    cudaEvent_t done = nullptr;
  };
  struct Message {
    uint32_t peer = 0;
    Staging staging;
  };

  static Error Cuda(cudaError_t error, uint32_t peer) {
    if (error == cudaSuccess) return {};
    return {LOCKSTEP_UNAVAILABLE, "message of rank " + std::to_string(peer) + ": CUDA: " + cudaGetErrorString(error)};
  }
  static Error Nccl(ncclResult_t error, uint32_t peer) {
    if (error == ncclSuccess) return {};
    return {LOCKSTEP_UNAVAILABLE, "message of rank " + std::to_string(peer) + ": NCCL: " + ncclGetErrorString(error)};
  }

  // A free buffer of at least `bytes`.
  Error Take(uint64_t bytes, Staging& staging) {
    if (stream_ == nullptr) {
      if (auto error = Cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), 0)) return error;
    }
    if (!free_.empty()) {
      staging = free_.back();
      free_.pop_back();
    } else if (auto error = Cuda(cudaEventCreateWithFlags(&staging.done, cudaEventDisableTiming), 0)) {
      return error;
    }
    if (staging.bytes >= bytes) return {};
    (void)cudaFree(staging.memory);
    staging.memory = nullptr;
    staging.bytes = 0;
    if (auto error = Cuda(cudaMalloc(&staging.memory, bytes), 0)) {
      free_.push_back(staging);
      return error;
    }
    staging.bytes = bytes;
    return {};
  }

  // `error`: why it could not be started. What uses its buffer next is behind it in the stream.
  Error Started(const Message& message, Error error, uint64_t& transfer) {
    if (!error) error = Cuda(cudaEventRecord(message.staging.done, stream_), message.peer);
    if (error) {
      free_.push_back(message.staging);
      return error;
    }
    transfer = ++last_;
    under_way_[transfer] = message;
    return {};
  }

  const ncclComm_t communicator_;
  const std::chrono::milliseconds timeout_;
  cudaStream_t stream_ = nullptr;
  std::vector<Staging> free_;
  std::map<uint64_t, Message> under_way_;
  uint64_t last_ = 0;
};

}  // namespace lockstep::trainer

#endif  // LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_NCCL_HPP_
