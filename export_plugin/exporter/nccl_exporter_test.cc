// The exporter of builds with CUDA over NCCL, both by their stand-ins: from GPUs of other hosts to a served version.
#include "export_plugin/exporter/cuda_testing.h"
#include "export_plugin/exporter/exporter_fixture.h"
#include "export_plugin/nccl_testing.h"

namespace lockstep::exporter {
namespace {

using Milliseconds = std::chrono::milliseconds;

// What the C ABI does: the trainer's exchange as the library's.
class Adapted : public Exchange {
 public:
  explicit Adapted(std::unique_ptr<trainer::NcclExchange> exchange) : exchange_(std::move(exchange)) {}

  std::optional<int> device() const override { return exchange_->device(); }
  Result<Transfer> StartSend(uint32_t peer, const void* data, uint64_t bytes) override {
    Transfer transfer = 0;
    LS_RETURN_IF_ERROR(AsStatus(exchange_->StartSend(peer, data, bytes, transfer)));
    return transfer;
  }
  Result<Transfer> StartReceive(uint32_t peer, void* data, uint64_t bytes) override {
    Transfer transfer = 0;
    LS_RETURN_IF_ERROR(AsStatus(exchange_->StartReceive(peer, data, bytes, transfer)));
    return transfer;
  }
  Status Wait(Transfer transfer) override { return AsStatus(exchange_->Wait(transfer)); }

 private:
  static Status AsStatus(const trainer::Error& error) {
    return error ? Status(ErrorCode::kUnavailable, error.message) : OkStatus();
  }

  const std::unique_ptr<trainer::NcclExchange> exchange_;
};

// Rank 0 is on the agent's host, the others send to it. Rank r has GPU r, and its tensors there where `on_gpus`.
class NcclFleet {
 public:
  NcclFleet(uint32_t ranks, bool on_gpus, Milliseconds timeout = std::chrono::seconds(20)) {
    trainer::ResetMachine(ranks);
    exchanges_ = trainer::NewExchanges(ranks, timeout);
    FleetOptions options{.shards = ranks, .beside = std::vector<bool>(ranks)};
    options.beside[0] = true;
    options.exchange = [this](uint32_t rank) { return std::make_unique<Adapted>(std::move(exchanges_[rank])); };
    if (on_gpus) options.filled = [this](uint32_t rank) { Upload(rank); };
    fleet_ = std::make_unique<Fleet>(SmallModel(), std::move(options));
    tensors_.resize(ranks);
    for (uint32_t rank = 0; on_gpus && rank < ranks; ++rank) {
      TestRank& its = fleet_->rank(rank);
      for (size_t i = 0; i < its.locals.size(); ++i) {
        tensors_[rank].push_back(OnGpu(static_cast<int>(rank), its.memory[i]));
        its.locals[i].address = tensors_[rank].back();
      }
    }
  }
  ~NcclFleet() {
    fleet_.reset();
    exchanges_.clear();
    trainer::CheckCleanMachine();
    CHECK(cuda::Count().registered_ranges == 0);
  }

  Fleet& fleet() { return *fleet_; }

 private:
  void Upload(uint32_t rank) {
    for (size_t i = 0; i < tensors_[rank].size(); ++i) cuda::Write(tensors_[rank][i], fleet_->rank(rank).memory[i]);
  }

  trainer::Exchanges exchanges_;
  std::vector<std::vector<std::byte*>> tensors_;
  std::unique_ptr<Fleet> fleet_;
};

bool OnDevice(const void* address) {
  cudaPointerAttributes attributes{};
  return cudaPointerGetAttributes(&attributes, address) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}

TEST_CASE("Shards go from GPU to GPU and into the pinned slot, and no payload lies in a sender's host memory") {
  NcclFleet nccl(4, true);
  nccl.fleet().Open();
  CHECK(nccl.fleet().exporter(0).pinned());
  cuda::ForgetCalls();
  for (Version version = 1; version <= 3; ++version) {
    if (version == 2) cuda::ForgetCalls();
    nccl.fleet().Publish(version);
    nccl.fleet().CheckServed(version);
    CHECK(cuda::Calls("cudaMalloc").empty());  // which may wait for what the exchange has there
    CHECK(cuda::Calls("cudaStreamCreateWithFlags").empty());
  }
  const auto largest = [](const std::vector<cuda::Call>& calls) {
    uint64_t bytes = 0;
    for (const cuda::Call& call : calls) {
      if (call.device == 0 || (OnDevice(call.to) && OnDevice(call.from))) continue;
      bytes = std::max(bytes, call.bytes * call.rows);
    }
    return bytes;
  };
  CHECK(largest(cuda::Calls("cudaMemcpyAsync")) == 8 * 65536);  // a bucket's sums
  CHECK(largest(cuda::Calls("cudaMemcpy2DAsync")) == 0);
  CHECK(nccl.fleet().Sum(&PublishStats::bytes_sent) > 0);
  CHECK(nccl.fleet().exporter(0).stats().bytes_received == nccl.fleet().Sum(&PublishStats::bytes_sent));
}

TEST_CASE("Tensors in host memory go over NCCL, too") {
  NcclFleet nccl(4, false);
  nccl.fleet().Open();
  for (Version version = 1; version <= 2; ++version) {
    nccl.fleet().Publish(version);
    nccl.fleet().CheckServed(version);
  }
}

TEST_CASE("A sender's GPU that fails a version fails it everywhere, and the next one is whole") {
  NcclFleet nccl(4, true);
  nccl.fleet().Open();
  nccl.fleet().Publish(1);
  cuda::FailCall("Sum", 1, cudaErrorLaunchFailure);
  const std::vector<Status> outcomes = nccl.fleet().TryPublish(2);
  for (const Status& outcome : outcomes) CHECK_FALSE(outcome.ok());
  nccl.fleet().Publish(3);
  nccl.fleet().CheckServed(3);
}

TEST_CASE("A rank that is gone is named within the deadline, and every later publish says so at once") {
  NcclFleet nccl(4, true, Milliseconds(2000));
  nccl.fleet().Open();
  nccl.fleet().Publish(1);
  std::vector<Status> outcomes;
  const Milliseconds took = trainer::TimeOf([&] { outcomes = nccl.fleet().TryPublish(2, {{1, kLeftOut}}); });
  CHECK(took < Milliseconds(15'000));
  CheckContains(outcomes[0], "rank 1");
  CheckContains(outcomes[0], "no answer within 2000 ms");
  CHECK(outcomes[0].code() == ErrorCode::kUnavailable);
  CHECK_FALSE(outcomes[2].ok());
  CHECK(trainer::TimeOf([&] { outcomes = nccl.fleet().TryPublish(3, {{1, kLeftOut}}); }) < Milliseconds(2000));
  CHECK_FALSE(outcomes[0].ok());
  nccl.fleet().CheckServed(1);
}

TEST_CASE("A GPU without room for the buckets is told when the model is opened") {
  NcclFleet nccl(2, true);
  cuda::FailCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
  const auto exporter = Exporter::Open(nccl.fleet().OptionsOf(1));
  CHECK(exporter.status().code() == ErrorCode::kResourceExhausted);
  CheckContains(exporter.status(), "bytes for the exchange's buckets (device 1)");
}

}  // namespace
}  // namespace lockstep::exporter
