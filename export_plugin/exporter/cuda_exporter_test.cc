// The exporter of builds with CUDA: tensors on GPUs to a served version.
#include "export_plugin/exporter/cuda_testing.h"
#include "export_plugin/exporter/exporter_fixture.h"

namespace lockstep::exporter {
namespace {

// A fleet with the tensors of rank r on GPU r % gpus.
class GpuFleet {
 public:
  GpuFleet(std::vector<Whole2D> model, FleetOptions options, int gpus) {
    options.filled = [this](uint32_t rank) { Upload(rank); };
    const size_t ranks = options.beside.size();
    fleet_ = std::make_unique<Fleet>(std::move(model), std::move(options));
    tensors_.resize(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      TestRank& its = fleet_->rank(rank);
      for (size_t i = 0; i < its.locals.size(); ++i) {
        tensors_[rank].push_back(OnGpu(static_cast<int>(rank) % gpus, its.memory[i]));
        its.locals[i].address = tensors_[rank].back();
      }
    }
  }
  // Exporters before the stand-in's next machine.
  ~GpuFleet() {
    fleet_.reset();
    CHECK(cuda::Count().streams == 0);
    CHECK(cuda::Count().registered_ranges == 0);
    CHECK(cuda::Violations().empty());
  }

  Fleet& fleet() { return *fleet_; }

 private:
  void Upload(uint32_t rank) {
    for (size_t i = 0; i < tensors_[rank].size(); ++i) cuda::Write(tensors_[rank][i], fleet_->rank(rank).memory[i]);
  }

  std::vector<std::vector<std::byte*>> tensors_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_CASE("Tensors on two GPUs are published, into pages that are pinned since the model was opened") {
  cuda::Reset(2);
  GpuFleet gpus(SmallModel(), {}, 2);
  gpus.fleet().Open();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(gpus.fleet().exporter(rank).pinned());
    CHECK(gpus.fleet().exporter(rank).pin_trouble().ok());
  }
  const size_t pinned = cuda::Calls("cudaHostRegister").size();
  for (Version version = 1; version <= 4; ++version) {
    gpus.fleet().Publish(version);
    gpus.fleet().CheckServed(version);
  }
  CHECK(cuda::Calls("cudaHostRegister").size() == pinned);
}

TEST_CASE("Tensors in host memory are published and sent without a call of CUDA") {
  cuda::Reset(2);
  {
    Fleet fleet(SmallModel(), {.beside = {true, false}});
    fleet.Open();
    for (Version version = 1; version <= 3; ++version) {
      fleet.Publish(version);
      fleet.CheckServed(version);
    }
    CHECK_FALSE(fleet.exporter(0).pinned());
    CHECK(fleet.exporter(0).pin_trouble().ok());
  }
  CHECK(cuda::Calls().empty());
}

TEST_CASE("Ranks on another host send buckets that are pinned") {
  cuda::Reset(2);
  GpuFleet gpus(SmallModel(), {.beside = {true, false}}, 2);
  gpus.fleet().Open();
  CHECK(gpus.fleet().exporter(1).pinned());
  for (Version version = 1; version <= 3; ++version) {
    gpus.fleet().Publish(version);
    gpus.fleet().CheckServed(version);
  }
}

TEST_CASE("A pin that fails is told, and what is published is the same") {
  cuda::Reset(2);
  GpuFleet gpus(SmallModel(), {}, 2);
  cuda::FailAlways("cudaHostRegister", cudaErrorMemoryAllocation);
  gpus.fleet().Open();
  CHECK_FALSE(gpus.fleet().exporter(0).pinned());
  CheckContains(gpus.fleet().exporter(0).pin_trouble(), "cudaErrorMemoryAllocation");
  gpus.fleet().Publish(1);
  gpus.fleet().CheckServed(1);
}

TEST_CASE("A publish that a GPU fails is gone, the next one is whole") {
  for (const char* call :
       {"cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize"}) {
    INFO(call);
    cuda::Reset(2);
    GpuFleet gpus(SmallModel(), {}, 2);
    gpus.fleet().Open();
    gpus.fleet().Publish(1);
    cuda::FailCall(call, 1, cudaErrorLaunchFailure);
    const std::vector<Status> outcomes = gpus.fleet().TryPublish(2);
    const auto told = std::count_if(outcomes.begin(), outcomes.end(), [](const Status& status) {
      return status.message().find("cudaErrorLaunchFailure") != std::string::npos;
    });
    CHECK(told >= 1);
    CHECK(cuda::Count().under_way == 0);
    gpus.fleet().Publish(3);
    gpus.fleet().CheckServed(3);
  }
}

TEST_CASE("While one batch is waited for and reported the next is on its way, and an error stops it") {
  cuda::Reset();
  GpuFleet gpus({{"big", model::DType::kF32, 4096, 8192}, {"last", model::DType::kBF16, 1, 64}},
                {.shards = 1, .beside = {true}}, 1);
  gpus.fleet().Open();
  cuda::ForgetCalls();
  gpus.fleet().Publish(1);
  std::string order;
  for (const cuda::Call& call : cuda::Calls()) {
    if (call.name == "cudaStreamWaitEvent") order += 'S';
    if (call.name == "cudaEventSynchronize") order += 'W';
  }
  CHECK(order == "SSWSWW");
  gpus.fleet().CheckServed(1);
  // Without an address the last batch does not start, while the one before it is on its way.
  const void* const addresses[] = {gpus.fleet().rank(0).locals[0].address, nullptr};
  CheckContains(gpus.fleet().exporter(0).Publish(2, addresses), "\"last\" has no address");
  CHECK(cuda::Count().under_way == 0);
}

}  // namespace
}  // namespace lockstep::exporter
