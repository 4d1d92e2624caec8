// NcclExchange: the exchange of C++ trainers that have NCCL between their hosts. Header-only, C++17; CUDA 12.5 and NCCL
// 2.14, or newer.
//
// It makes a communicator of its own, over all ranks in the order of their descriptions, and moves what the exporter
// packs in GPU memory; liblockstep.so must be one with CUDA. No call waits for a peer past its deadline: the
// communicator is one that does not block, which this asks how far it is, and that is aborted as soon as something is
// wrong. NCCL cannot lose one peer and go on with the others: the exchange is broken then, on this rank at once, on the
// others by their own deadlines at the latest.
#ifndef LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_NCCL_HPP_
#define LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_NCCL_HPP_

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep.hpp"

namespace lockstep::trainer {

struct NcclOptions {
  ncclUniqueId id{};  // from ncclGetUniqueId() on one of the ranks, for this exchange alone; the same on all
  uint32_t ranks = 0;
  uint32_t rank = 0;
  int device = 0;  // this rank's GPU
  // Of making the communicator, and of a message from Wait() on.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

// Used by one thread at a time, whatever its current device is. That stays as it is if it has a context; else it is
// this rank's then, since CUDA would make a context on the other one.
class NcclExchange : public Exchange {
 public:
  // On every rank at once. On failure `exchange` stays as it was.
  static Error Create(const NcclOptions& options, std::unique_ptr<NcclExchange>& exchange) {
    const OnDevice on_device(options.device);
    std::unique_ptr<NcclExchange> made(new NcclExchange(options));
    if (Error error = made->Open(on_device.error())) return made->Break(std::move(error));
    exchange = std::move(made);
    return {};
  }
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;

  // What is under way is aborted; without any, peers get what was sent to them. Takes twice kCloseTime at most.
  ~NcclExchange() override {
    const OnDevice on_device(device_);
    if (comm_ != nullptr && !Finished()) Abort();
    for (const auto& [number, message] : messages_) free_.push_back(message.done);
    for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  int device() const override { return device_; }

  Error StartSend(uint32_t peer, const void* data, uint64_t bytes, uint64_t& transfer) override {
    return Start({peer, data, nullptr, bytes}, transfer);
  }
  Error StartReceive(uint32_t peer, void* data, uint64_t bytes, uint64_t& transfer) override {
    return Start({peer, nullptr, data, bytes}, transfer);
  }

  // After an error nothing touches the memory of any message any more, unless the GPU did not stop within kCloseTime;
  // every later call answers the same error.
  Error Wait(uint64_t transfer) override {
    if (broken_) return broken_;
    const OnDevice on_device(device_);
    const auto found = messages_.find(transfer);
    if (found == messages_.end()) return {LOCKSTEP_STATE, "there is no transfer " + std::to_string(transfer)};
    const auto deadline = Clock::now() + timeout_;
    while (true) {
      bool done = false;
      if (Error error = Ask(found->first, found->second, done)) return Break(std::move(error));
      if (done) break;
      if (Error error = Progress()) return Break(std::move(error));
      if (Clock::now() > deadline) return Break({LOCKSTEP_UNAVAILABLE, Text(transfer) + ": no answer" + Within()});
      std::this_thread::sleep_for(kPause);
    }
    free_.push_back(found->second.done);
    messages_.erase(found);
    return {};
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kPause{50};
  static constexpr std::chrono::milliseconds kCloseTime{5000};
  // How long a start waits for NCCL to take the message over. The first between two ranks waits for both: it is given
  // to the GPU by a later call.
  static constexpr std::chrono::milliseconds kStartTime{5};

  struct Message {
    uint32_t peer = 0;
    const void* from = nullptr;  // of one that is sent
    void* to = nullptr;
    uint64_t bytes = 0;
    bool given = false;  // to NCCL
    cudaEvent_t done = nullptr;
  };

  // Makes this rank's device current, and the one from before again when it goes, if that has a context.
  class OnDevice {
   public:
    explicit OnDevice(int device) : device_(device), before_(device) {
      (void)cudaGetDevice(&before_);
      error_ = cudaSetDevice(device);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    ~OnDevice() {
      if (before_ != device_ && HasContext(before_)) (void)cudaSetDevice(before_);
    }
    cudaError_t error() const { return error_; }

   private:
    // The runtime has no call for it, the driver has.
    static bool HasContext(int device) {
      void* entry = nullptr;
      cudaDriverEntryPointQueryResult found{};
      const cudaError_t error =
          cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &entry, 12000, cudaEnableDefault, &found);
      if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
      unsigned flags = 0;
      int active = 0;
      const auto state = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(entry);
      return state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
    }

    const int device_;
    int before_;
    cudaError_t error_ = cudaSuccess;
  };

  explicit NcclExchange(const NcclOptions& options)
      : id_(options.id),
        ranks_(options.ranks),
        rank_(options.rank),
        device_(options.device),
        timeout_(options.timeout) {}

  static Error Cuda(cudaError_t error, const std::string& what) {
    if (error == cudaSuccess) return {};
    return {LOCKSTEP_UNAVAILABLE, what + ": CUDA: " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)};
  }
  // What a query answered. CUDA keeps that as this thread's last error, where the trainer would take it for its own.
  static bool IsBusy(cudaError_t answer) {
    if (answer != cudaErrorNotReady) return false;
    if (cudaPeekAtLastError() == cudaErrorNotReady) (void)cudaGetLastError();
    return true;
  }
  // ncclInProgress is no error: the communicator does not block.
  static Error Nccl(ncclResult_t result, const std::string& what) {
    if (result == ncclSuccess || result == ncclInProgress) return {};
    return {LOCKSTEP_UNAVAILABLE, what + ": NCCL: " + ncclGetErrorString(result)};
  }
  std::string Within() const { return " within " + std::to_string(timeout_.count()) + " ms"; }

  // A message for errors: whether it is sent or received, its number and size, and the peer.
  std::string Text(uint64_t number) const {
    const Message& message = messages_.at(number);
    return std::string(message.from != nullptr ? "sending" : "receiving") + " message " + std::to_string(number) +
           " of " + std::to_string(message.bytes) + " bytes " + (message.from != nullptr ? "to" : "from") + " rank " +
           std::to_string(message.peer);
  }

  Error Open(cudaError_t device_taken) {
    const std::string what = "making the communicator of rank " + std::to_string(rank_) + " of " +
                             std::to_string(ranks_) + " (device " + std::to_string(device_) + ")";
    if (Error error = Cuda(device_taken, what)) return error;
    if (Error error = Cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), what)) return error;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun =
        ncclCommInitRankConfig(&comm_, static_cast<int>(ranks_), id_, static_cast<int>(rank_), &config);
    if (Error error = Nccl(begun, what)) return error;
    const auto deadline = Clock::now() + timeout_;
    while (true) {
      ncclResult_t state = ncclSuccess;
      if (Error error = Nccl(ncclCommGetAsyncError(comm_, &state), what)) return error;
      if (state != ncclInProgress) return Nccl(state, what);
      if (Clock::now() > deadline) return {LOCKSTEP_UNAVAILABLE, what + ": not all ranks came" + Within()};
      std::this_thread::sleep_for(kPause);
    }
  }

  Error Start(Message message, uint64_t& transfer) {
    if (broken_) return broken_;
    const OnDevice on_device(device_);
    if (Error error = TakeEvent(message, on_device.error())) return Break(std::move(error));
    messages_[++last_] = message;
    const auto deadline = Clock::now() + kStartTime;
    while (true) {
      if (Error error = Progress()) return Break(std::move(error));
      if (next_ > last_ || Clock::now() > deadline) break;
      std::this_thread::sleep_for(kPause);
    }
    transfer = last_;
    return {};
  }

  Error TakeEvent(Message& message, cudaError_t device_taken) {
    if (!free_.empty()) {
      message.done = free_.back();
      free_.pop_back();
      return {};
    }
    const std::string what = "making an event on device " + std::to_string(device_);
    if (Error error = Cuda(device_taken, what)) return error;
    return Cuda(cudaEventCreateWithFlags(&message.done, cudaEventDisableTiming), what);
  }

  // Gives NCCL the messages one after the other: while it is at one, it takes no other, and nothing may be behind it in
  // the stream.
  Error Progress() {
    for (; next_ <= last_; ++next_) {
      Message& message = messages_.at(next_);
      if (!message.given) {
        message.given = true;
        if (Error error = Nccl(Give(message), Text(next_))) return error;
      }
      ncclResult_t state = ncclSuccess;
      if (Error error = Nccl(ncclCommGetAsyncError(comm_, &state), Text(next_))) return error;
      if (state == ncclInProgress) return {};
      if (Error error = Nccl(state, Text(next_))) return error;
      if (Error error = Cuda(cudaEventRecord(message.done, stream_), Text(next_))) return error;
    }
    return {};
  }

  ncclResult_t Give(const Message& message) {
    const int peer = static_cast<int>(message.peer);
    return message.from != nullptr ? ncclSend(message.from, message.bytes, ncclUint8, peer, comm_, stream_)
                                   : ncclRecv(message.to, message.bytes, ncclUint8, peer, comm_, stream_);
  }

  // What came before something went wrong counts.
  Error Ask(uint64_t number, const Message& message, bool& done) {
    if (number >= next_) return {};
    const cudaError_t state = cudaEventQuery(message.done);
    done = state == cudaSuccess;
    if (!IsBusy(state)) return Cuda(state, Text(number));
    ncclResult_t asynchronous = ncclSuccess;
    if (Error error = Nccl(ncclCommGetAsyncError(comm_, &asynchronous), Text(number))) return error;
    return Nccl(asynchronous, Text(number));
  }

  Error Break(Error error) {
    broken_ = error;
    Abort();
    return error;
  }

  // Waits, for kCloseTime at most, until the GPU is done with the messages' memory.
  void Abort() {
    if (comm_ != nullptr) (void)ncclCommAbort(comm_);
    comm_ = nullptr;
    const auto deadline = Clock::now() + kCloseTime;
    while (stream_ != nullptr && IsBusy(cudaStreamQuery(stream_)) && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
    }
  }

  // Whether the communicator was closed with nothing under way.
  bool Finished() {
    if (!messages_.empty()) return false;
    ncclResult_t state = ncclCommFinalize(comm_);
    const auto deadline = Clock::now() + kCloseTime;
    while (state == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
    }
    if (state != ncclSuccess) return false;
    (void)ncclCommDestroy(std::exchange(comm_, nullptr));  // gone, whatever it answers
    return true;
  }

  const ncclUniqueId id_;
  const uint32_t ranks_;
  const uint32_t rank_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::map<uint64_t, Message> messages_;  // by number, until they were waited for
  uint64_t last_ = 0;
  uint64_t next_ = 1;  // that NCCL is at, or gets next
  std::vector<cudaEvent_t> free_;
  Error broken_;  // the first
};

}  // namespace lockstep::trainer

#endif  // LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_NCCL_HPP_
