// NcclExchange over the stand-ins: order of calls, and peers and calls that fail.
#include <algorithm>
#include <set>

#include "export_plugin/nccl_testing.h"

namespace lockstep::trainer {
namespace {

constexpr Milliseconds kTimeout{300};
constexpr Milliseconds kInTime{3000};  // a busy machine's patience
constexpr uint64_t kBytes = 5000;

TEST_CASE("Bytes are exact from every rank to every other, several under way at once") {
  constexpr uint32_t kRanks = 4;
  constexpr uint32_t kRounds = 5;
  ResetMachine(kRanks);
  Exchanges exchanges = NewExchanges(kRanks);
  std::vector<int> wrong(kRanks);
  OnAllRanks(kRanks, [&](uint32_t rank) {
    const auto seed = [](uint32_t round, uint32_t from, uint32_t to) { return round * 100 + from * 10 + to; };
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::vector<uint64_t> transfers;
      std::vector<std::byte*> received(kRanks);
      for (uint32_t step = 1; step < kRanks; ++step) {
        // Pairs meet in the same step: the lower rank sends first.
        const uint32_t peer = rank ^ step;
        const std::byte* const sent = OnGpu(static_cast<int>(rank), Noise(kBytes + peer, seed(round, rank, peer)));
        received[peer] = OnGpu(static_cast<int>(rank), Memory(kBytes + rank));
        for (const bool sends : {rank<peer, rank> peer}) {
          uint64_t transfer = 0;
          const Error error = sends ? exchanges[rank]->StartSend(peer, sent, kBytes + peer, transfer)
                                    : exchanges[rank]->StartReceive(peer, received[peer], kBytes + rank, transfer);
          if (error) ++wrong[rank];
          transfers.push_back(transfer);
        }
      }
      for (const uint64_t transfer : transfers) {
        if (exchanges[rank]->Wait(transfer)) ++wrong[rank];
      }
      for (uint32_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        if (cuda::Read(received[peer], kBytes + rank) != Noise(kBytes + rank, seed(round, peer, rank))) ++wrong[rank];
      }
    }
  });
  CHECK(wrong == std::vector<int>(kRanks));
  OnAllRanks(kRanks, [&](uint32_t rank) { exchanges[rank].reset(); });
  CheckCleanMachine();
}

TEST_CASE("A message's event comes behind it in the exchange's own stream, which is not waited for") {
  ResetMachine(2);
  Exchanges exchanges = NewExchanges(2);
  std::byte* const from = OnGpu(0, Noise(kBytes, 1));
  std::byte* const to = OnGpu(1, Memory(kBytes));
  cuda::ForgetCalls();
  OnAllRanks(2, [&](uint32_t rank) {
    for (int message = 0; message < 2; ++message) {
      uint64_t transfer = 0;
      if (rank == 0) (void)exchanges[0]->StartSend(1, from, kBytes, transfer);
      if (rank == 1) (void)exchanges[1]->StartReceive(0, to, kBytes, transfer);
      (void)exchanges[rank]->Wait(transfer);
    }
  });
  CHECK((cuda::Read(to, kBytes) == Noise(kBytes, 1)));
  for (const int device : {0, 1}) {
    std::string order;
    std::vector<cudaStream_t> streams;
    for (const cuda::Call& call : cuda::Calls()) {
      if (call.device != device) continue;
      if (call.name == "ncclSend" || call.name == "ncclRecv") order += 'M';
      if (call.name == "cudaEventRecord") order += 'E';
      if (call.name.find("Synchronize") != std::string::npos || call.name == "cudaMalloc") order += '!';
      if (call.stream != nullptr && call.name != "cudaStreamQuery") streams.push_back(call.stream);
    }
    CHECK(order == "MEME");
    CHECK(std::all_of(streams.begin(), streams.end(), [&](cudaStream_t one) { return one == streams[0]; }));
  }
}

TEST_CASE("A message that is not there yet leaves the trainer's thread no error of CUDA") {
  ResetMachine(2);
  Exchanges exchanges = NewExchanges(2, kTimeout);
  std::byte* const from = OnGpu(0, Noise(kBytes, 1));
  std::byte* const to = OnGpu(1, Memory(kBytes));
  std::vector<cudaError_t> last(2, cudaErrorUnknown);
  OnAllRanks(2, [&](uint32_t rank) {
    uint64_t transfer = 0;
    (void)(rank == 0 ? exchanges[0]->StartSend(1, from, kBytes, transfer)
                     : exchanges[1]->StartReceive(0, to, kBytes, transfer));
    (void)exchanges[rank]->Wait(transfer);
    last[rank] = cudaGetLastError();
  });
  const std::vector<cuda::Call> queries = cuda::Calls("cudaEventQuery");
  CHECK(std::any_of(queries.begin(), queries.end(),
                    [](const cuda::Call& query) { return query.result == cudaErrorNotReady; }));
  CHECK(last == std::vector<cudaError_t>(2, cudaSuccess));
  uint64_t never = 0;
  REQUIRE_FALSE(exchanges[1]->StartReceive(0, to, kBytes, never));
  CheckContains(exchanges[1]->Wait(never), "no answer within 300 ms");
  CHECK(cudaGetLastError() == cudaSuccess);
  exchanges.clear();
  CheckCleanMachine();
}

TEST_CASE("The thread's current device stays as it is") {
  ResetMachine(2);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  ncclUniqueId id;
  (void)ncclGetUniqueId(&id);
  std::unique_ptr<NcclExchange> alone;
  REQUIRE_FALSE(NcclExchange::Create({id, 1, 0, 1, kTimeout}, alone));
  CHECK(alone->device() == 1);
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
  alone.reset();
  CheckCleanMachine();
}

TEST_CASE("A thread that chose no device makes no context but on its rank's") {
  ResetMachine(3);
  ncclUniqueId id;
  (void)ncclGetUniqueId(&id);
  std::vector<int> wrong(2);
  std::vector<int> devices(2);
  OnAllRanks(2, [&](uint32_t rank) {
    const int device = static_cast<int>(rank) + 1;
    std::unique_ptr<NcclExchange> exchange;
    if (NcclExchange::Create({id, 2, rank, device, std::chrono::seconds(20)}, exchange)) ++wrong[rank];
    std::thread([&] {  // its device is 0
      void* memory = nullptr;
      uint64_t transfer = 0;
      (void)cudaGetDevice(&devices[rank]);
      if (devices[rank] != 0) ++wrong[rank];
      std::thread([&] { (void)cudaSetDevice(device), (void)cudaMalloc(&memory, kBytes); }).join();
      const Error started = rank == 0 ? exchange->StartSend(1, memory, kBytes, transfer)
                                      : exchange->StartReceive(0, memory, kBytes, transfer);
      if (started || exchange->Wait(transfer)) ++wrong[rank];
    })
        .join();
    std::thread([&] {
      exchange.reset();
      (void)cudaGetDevice(&devices[rank]);
    }).join();
  });
  CHECK(wrong == std::vector<int>(2));
  CHECK(devices == std::vector<int>{1, 2});
  CHECK(cuda::Contexts() == std::set<int>{1, 2});
  CheckCleanMachine();
}

TEST_CASE("A rank that does not come ends the others' start within the deadline") {
  ResetMachine(3);
  std::vector<Error> errors;
  const Milliseconds took = TimeOf([&] {
    const Exchanges exchanges = NewExchanges(3, kTimeout, errors, [](uint32_t rank) { return rank != 2; });
    CHECK(exchanges[0] == nullptr);
  });
  CHECK(took < kInTime);
  CheckContains(errors[0], "making the communicator of rank 0 of 3 (device 0): not all ranks came within 300 ms");
  CheckContains(errors[1], "rank 1 of 3");
  CheckCleanMachine();
}

TEST_CASE("A peer that never begins a message is named with the message, within the deadline") {
  for (const bool sends : {true, false}) {
    ResetMachine(2);
    Exchanges exchanges = NewExchanges(2, kTimeout);
    std::byte* const memory = OnGpu(0, Noise(kBytes, 1));
    uint64_t transfers[2] = {};
    Error error;
    const Milliseconds took = TimeOf([&] {
      for (uint64_t& transfer : transfers) {
        const Error started = sends ? exchanges[0]->StartSend(1, memory, kBytes, transfer)
                                    : exchanges[0]->StartReceive(1, memory, kBytes, transfer);
        REQUIRE_FALSE(started);
      }
      error = exchanges[0]->Wait(transfers[0]);
    });
    CHECK(took >= kTimeout);
    CHECK(took < kInTime);
    CheckContains(error, sends ? "sending message 1 of 5000 bytes to rank 1: no answer within 300 ms"
                               : "receiving message 1 of 5000 bytes from rank 1: no answer within 300 ms");
    // At once, and the same.
    CHECK(TimeOf([&] { CHECK(exchanges[0]->Wait(transfers[1]).message == error.message); }) < kTimeout);
    uint64_t transfer = 0;
    CHECK(exchanges[0]->StartSend(1, memory, kBytes, transfer).message == error.message);
    exchanges.clear();
    CheckCleanMachine();
  }
}

TEST_CASE("A peer that dies in the middle of a message is an error within the deadline, and its memory is let go") {
  ResetMachine(2);
  Exchanges exchanges = NewExchanges(2, kTimeout);
  std::byte* const from = OnGpu(0, Noise(kBytes, 1));
  std::byte* const to = OnGpu(1, Memory(kBytes));
  uint64_t first[2] = {};
  OnAllRanks(2, [&](uint32_t rank) {  // the two know each other
    (void)(rank == 0 ? exchanges[0]->StartSend(1, from, kBytes, first[0])
                     : exchanges[1]->StartReceive(0, to, kBytes, first[1]));
    (void)exchanges[rank]->Wait(first[rank]);
  });
  uint64_t sent = 0;
  uint64_t received = 0;
  REQUIRE_FALSE(exchanges[0]->StartSend(1, from, kBytes, sent));
  REQUIRE_FALSE(exchanges[1]->StartReceive(0, to, kBytes, received));
  CHECK(cuda::Calls("ncclRecv").size() == 2);  // it is in the stream
  nccl::Kill(0);
  Error error;
  CHECK(TimeOf([&] { error = exchanges[1]->Wait(received); }) < kInTime);
  CheckContains(error, "receiving message 2 of 5000 bytes from rank 0");
  CHECK(cudaFree(to) == cudaSuccess);
  CHECK(TimeOf([&] { exchanges.clear(); }) < kInTime);
  CheckCleanMachine();
}

TEST_CASE("An exchange that goes while a message is under way does not wait for the peer") {
  ResetMachine(2);
  Exchanges exchanges = NewExchanges(2, std::chrono::minutes(10));
  uint64_t transfer = 0;
  REQUIRE_FALSE(exchanges[1]->StartReceive(0, OnGpu(1, Memory(kBytes)), kBytes, transfer));
  CHECK(TimeOf([&] { exchanges.clear(); }) < kInTime);
  CheckCleanMachine();
}

TEST_CASE("What NCCL tells later ends a wait at once") {
  ResetMachine(2);
  Exchanges exchanges = NewExchanges(2, std::chrono::minutes(10));
  uint64_t transfer = 0;
  REQUIRE_FALSE(exchanges[1]->StartReceive(0, OnGpu(1, Memory(kBytes)), kBytes, transfer));
  nccl::FailLater(1, ncclRemoteError);
  Error error;
  CHECK(TimeOf([&] { error = exchanges[1]->Wait(transfer); }) < kInTime);
  CheckContains(error, "from rank 0: NCCL: remote process exited");
  exchanges.clear();
  CheckCleanMachine();
}

TEST_CASE("A message that came before NCCL told of an error counts, whatever is under way behind it") {
  ResetMachine(3);
  Exchanges exchanges = NewExchanges(3);
  std::byte* const from = OnGpu(0, Noise(kBytes, 2));
  std::byte* const to = OnGpu(1, Memory(kBytes));
  uint64_t transfers[2] = {};
  const auto start = [&](uint32_t rank) {
    (void)(rank == 0 ? exchanges[0]->StartSend(1, from, kBytes, transfers[0])
                     : exchanges[1]->StartReceive(0, to, kBytes, transfers[1]));
  };
  OnAllRanks(2, [&](uint32_t rank) {  // the two know each other
    start(rank);
    (void)exchanges[rank]->Wait(transfers[rank]);
  });
  cuda::Write(to, Memory(kBytes));
  start(0);
  start(1);
  OnAllRanks(2, [&](uint32_t rank) {
    (void)cudaSetDevice(static_cast<int>(rank));
    (void)cudaDeviceSynchronize();
  });
  uint64_t later = 0;
  REQUIRE_FALSE(exchanges[1]->StartReceive(2, OnGpu(1, Memory(kBytes)), kBytes, later));
  nccl::FailLater(1, ncclRemoteError);
  CHECK_FALSE(exchanges[1]->Wait(transfers[1]));
  CHECK((cuda::Read(to, kBytes) == Noise(kBytes, 2)));
  exchanges.clear();
  CheckCleanMachine();
}

TEST_CASE("Whichever call of NCCL or CUDA fails, the error says where, and nothing is left") {
  for (const char* call : {"ncclCommInitRankConfig", "ncclSend", "ncclCommGetAsyncError", "cudaStreamCreateWithFlags",
                           "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery"}) {
    INFO(call);
    ResetMachine(2);
    const bool of_nccl = std::string(call).find("nccl") == 0;
    if (of_nccl) {
      nccl::FailCall(call, 1, ncclSystemError);
    } else {
      cuda::FailCall(call, 1, cudaErrorLaunchFailure);
    }
    std::vector<Error> errors;
    Exchanges exchanges = NewExchanges(2, kTimeout, errors);
    OnAllRanks(2, [&](uint32_t rank) {
      uint64_t transfer = 0;
      if (exchanges[rank] == nullptr) return;
      std::byte* const memory = OnGpu(static_cast<int>(rank), Memory(kBytes));
      errors[rank] = rank == 0 ? exchanges[0]->StartSend(1, memory, kBytes, transfer)
                               : exchanges[1]->StartReceive(0, memory, kBytes, transfer);
      if (!errors[rank]) errors[rank] = exchanges[rank]->Wait(transfer);
    });
    const std::string part = of_nccl ? ": NCCL: " : "cudaErrorLaunchFailure";
    const auto told = [&](const Error& error) { return error.message.find(part) != std::string::npos; };
    INFO(errors[0].message << " | " << errors[1].message);
    CHECK(std::count_if(errors.begin(), errors.end(), told) >= 1);
    exchanges.clear();
    CheckCleanMachine();
  }
}

TEST_CASE("A transfer that is not under way is an error, and breaks nothing") {
  ResetMachine(1);
  Exchanges exchanges = NewExchanges(1);
  CHECK(exchanges[0]->Wait(7).code == LOCKSTEP_STATE);
  CHECK(exchanges[0]->Wait(7).message == "there is no transfer 7");
}

}  // namespace
}  // namespace lockstep::trainer
