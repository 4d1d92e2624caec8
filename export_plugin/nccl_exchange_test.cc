// On GPUs it needs two, and NCCL: bazel test --config=gpu //export_plugin:nccl_exchange_test. Over the stand-ins it is
// //export_plugin:nccl_exchange_on_stand_in_test, which needs neither.
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "export_plugin/lockstep_nccl.hpp"

namespace lockstep::trainer {
namespace {

constexpr size_t kMessages = 20, kBytes = 3 << 20, kSlots = 2;

using Bytes = std::vector<uint8_t>;

// One rank with two slots of its GPU's memory: message i + 2 is started when message i is done. Counts what fails.
class TestRank {
 public:
  TestRank(const ncclUniqueId& id, uint32_t rank) : rank_(rank) {
    const auto device = static_cast<int>(rank);
    Count(cudaSetDevice(device) == cudaSuccess);
    for (void*& slot : slots_) Count(cudaMalloc(&slot, kBytes) == cudaSuccess);
    Count(!NcclExchange::Create({id, 2, rank, device, std::chrono::seconds(60)}, exchange_));
  }
  ~TestRank() {
    exchange_.reset();
    for (void* slot : slots_) (void)cudaFree(slot);
  }

  int Run(const std::vector<Bytes>& sent, std::vector<Bytes>& received) {
    uint64_t transfers[kSlots] = {};
    for (size_t i = 0; exchange_ != nullptr && i < kMessages + kSlots; ++i) {
      void* const slot = slots_[i % kSlots];
      uint64_t& transfer = transfers[i % kSlots];
      if (i >= kSlots) Count(!exchange_->Wait(transfer));
      if (i >= kSlots && rank_ == 1) Copy(received[i - kSlots].data(), slot);
      if (i >= kMessages) continue;
      if (rank_ == 0) Copy(slot, sent[i].data());
      Count(rank_ == 0 ? !exchange_->StartSend(1, slot, kBytes, transfer)
                       : !exchange_->StartReceive(0, slot, kBytes, transfer));
    }
    return failures_;
  }

 private:
  void Count(bool ok) { failures_ += ok ? 0 : 1; }
  void Copy(void* to, const void* from) {
    Count(cudaMemcpy(to, from, kBytes, cudaMemcpyDefault) == cudaSuccess);
    Count(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }

  const uint32_t rank_;
  void* slots_[kSlots] = {};
  std::unique_ptr<NcclExchange> exchange_;
  int failures_ = 0;
};

TEST_CASE("Messages arrive whole and in order between two GPUs, two under way at a time") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  REQUIRE(devices >= 2);
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<Bytes> sent(kMessages), received(kMessages, Bytes(kBytes)), none;
  for (size_t i = 0; i < kMessages; ++i) sent[i].assign(kBytes, static_cast<uint8_t>(i + 1));
  int sender_failures = -1;
  std::thread sender([&] { sender_failures = TestRank(id, 0).Run(sent, none); });
  const int receiver_failures = TestRank(id, 1).Run(sent, received);
  sender.join();
  CHECK(sender_failures == 0);
  CHECK(receiver_failures == 0);
  CHECK(received == sent);
}

}  // namespace
}  // namespace lockstep::trainer
