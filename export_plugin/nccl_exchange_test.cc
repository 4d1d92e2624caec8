// Needs two GPUs and NCCL: bazel test --config=gpu //export_plugin:nccl_exchange_test
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "export_plugin/lockstep_nccl.hpp"

namespace lockstep::trainer {
namespace {

TEST_CASE("Messages arrive whole and in order between two GPUs, two under way at a time") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  REQUIRE(devices >= 2);
  ncclComm_t communicators[2];
  const int ids[] = {0, 1};
  REQUIRE(ncclCommInitAll(communicators, 2, ids) == ncclSuccess);
  constexpr size_t kMessages = 20, kBytes = 3 << 20;
  std::vector<std::vector<uint8_t>> sent(kMessages), received(kMessages, std::vector<uint8_t>(kBytes));
  for (size_t i = 0; i < kMessages; ++i) sent[i].assign(kBytes, static_cast<uint8_t>(i + 1));
  // Each rank starts message i + 2 when message i is done.
  const auto run = [&](int rank) {
    (void)cudaSetDevice(rank);
    NcclExchange exchange(communicators[rank], std::chrono::seconds(60));
    uint64_t transfers[2] = {};
    int failures = 0;
    for (size_t i = 0; i < kMessages + 2; ++i) {
      uint64_t& transfer = transfers[i % 2];
      if (i >= 2 && exchange.Wait(transfer)) ++failures;
      if (i >= kMessages) continue;
      const Error error = rank == 0 ? exchange.StartSend(1, sent[i].data(), kBytes, transfer)
                                    : exchange.StartReceive(0, received[i].data(), kBytes, transfer);
      if (error) ++failures;
    }
    return failures;
  };
  int sender_failures = -1;
  std::thread sender([&] { sender_failures = run(0); });
  const int receiver_failures = run(1);
  sender.join();
  CHECK(sender_failures == 0);
  CHECK(receiver_failures == 0);
  CHECK(received == sent);
  for (ncclComm_t communicator : communicators) (void)ncclCommDestroy(communicator);
}

}  // namespace
}  // namespace lockstep::trainer
