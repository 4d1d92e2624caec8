// Versions of which only what changed crosses the bus, against the trainer's tensors.
#include "export_plugin/exporter/cuda_trainer.h"

namespace lockstep::exporter {
namespace {

// Bytes that were given to be copied from devices to the host.
uint64_t BytesToHost() {
  uint64_t bytes = 0;
  for (const cuda::Call& call : cuda::Calls()) {
    const bool copies = call.name == "cudaMemcpyAsync" || call.name == "cudaMemcpy2DAsync";
    cudaPointerAttributes from{};
    if (copies && cudaPointerGetAttributes(&from, call.from) == cudaSuccess && from.type == cudaMemoryTypeDevice) {
      bytes += call.bytes * call.rows;
    }
  }
  return bytes;
}

TEST_CASE("Whatever share of the weights changes, what is served is what the tensors are") {
  for (const bool masters : {false, true}) {
    cuda::Reset(2);
    Trainer trainer(Shards(), masters, 1);
    trainer.Open(true);
    Version version = 0;
    for (const double density : {0.0, 0.01, 0.01, 0.0, 0.0, 0.03, 0.2, 0.01, 0.01, 1.0, 0.0, 0.06, 0.06, 0.0}) {
      INFO("masters " << masters << ", density " << density);
      trainer.Train(density);
      trainer.Publish(++version);
    }
  }
}

TEST_CASE("Of weights that hardly change little crosses the bus, from the third version on") {
  const bool masters = GENERATE(false, true);
  cuda::Reset(2);
  Trainer trainer(Shards(), masters, 2);
  trainer.Open(true);
  Version version = 0;
  std::vector<uint64_t> crossed;
  for (const double density : {0.0, 0.01, 0.01, 0.01, 0.3, 0.01, 0.01, 0.01}) {
    trainer.Train(density);
    cuda::ForgetCalls();
    trainer.Publish(++version);
    crossed.push_back(BytesToHost());
  }
  const uint64_t all = crossed[1];  // the frozen tensor crosses twice, with the first two
  CHECK(crossed[0] == all);
  for (const size_t sparse : {2, 3, 7}) CHECK(crossed[sparse] < all / 8);
  for (const size_t dense : {4, 5}) CHECK(crossed[dense] > all / 2);  // what the half before lacks counts
  CHECK(crossed[6] < all / 8);
}

std::vector<ManifestDigest> Digests(bool shadow) {
  cuda::Reset(2);
  Trainer trainer(Shards(), true, 3);
  trainer.Open(shadow);
  std::vector<ManifestDigest> digests;
  for (Version version = 1; version <= 6; ++version) {
    trainer.Train(0.02);
    trainer.Publish(version);
    digests.push_back(trainer.fleet().host().Await(version).manifest->digest);
  }
  return digests;
}

TEST_CASE("With a shadow and without one the digests are the same") {
  CHECK(Digests(true) == Digests(false));
}

TEST_CASE("A shadow takes the device memory that was told before") {
  cuda::Reset(2);
  Trainer trainer(Shards(), false, 4);
  trainer.Open(false);
  for (const uint32_t rank : {0u, 1u}) {
    Exporter& exporter = trainer.fleet().exporter(rank);
    const uint64_t told = exporter.shadow_bytes();
    CHECK_FALSE(exporter.has_shadow());
    cuda::ForgetCalls();
    REQUIRE(exporter.UseShadow().ok());
    uint64_t taken = 0;
    for (const cuda::Call& call : cuda::Calls("cudaMalloc")) taken += call.bytes;
    CHECK(taken == told);
    CHECK(exporter.shadow_bytes() == told);
  }
}

TEST_CASE("Memory that a shadow cannot have is told, and without it versions go out as before") {
  for (const char* call : {"cudaMalloc", "cudaMallocHost"}) {
    cuda::Reset(2);
    Trainer trainer(Shards(), false, 5);
    trainer.Open(false);
    cuda::FailCall(call, 2, cudaErrorMemoryAllocation);
    const Status refused = trainer.fleet().exporter(0).UseShadow();
    CHECK(refused.code() == ErrorCode::kResourceExhausted);
    CheckContains(refused, "shadow");
    CHECK_FALSE(trainer.fleet().exporter(0).has_shadow());
    REQUIRE(trainer.fleet().exporter(0).UseShadow().ok());
    trainer.Publish(1);
  }
}

TEST_CASE("A tensor that is on another device than the others is refused where there is a shadow") {
  cuda::Reset(2);
  Trainer trainer(Shards(), false, 6);
  trainer.Open(true);
  std::vector<const void*> addresses;
  for (const LocalTensor& local : trainer.fleet().rank(0).locals) addresses.push_back(local.address);
  const void* const own = std::exchange(addresses[2], OnGpu(1, Memory(61 * 65 * 2)));
  trainer.fleet().SetAddresses(0, addresses);
  const std::vector<Status> outcomes = trainer.fleet().TryPublish(1);
  CHECK(outcomes[0].code() == ErrorCode::kBadData);
  CheckContains(outcomes[0], "is not on device 0");
  addresses[2] = own;
  trainer.fleet().SetAddresses(0, addresses);
  trainer.Publish(2);
}

TEST_CASE("Only what the marks lead from is advanced, and not a number that has come again") {
  ShadowVersions versions;
  const auto publish = [&](Version version, Version held) {
    const bool advances = versions.Begin(version, held);
    versions.Done(version);
    return advances;
  };
  CHECK_FALSE(publish(3, 1));
  CHECK_FALSE(publish(5, 0));
  CHECK(publish(6, 3));
  CHECK_FALSE(publish(7, 3));
  CHECK(publish(8, 6));
  CHECK_FALSE(publish(8, 0));  // as it was aborted, with other bytes
  CHECK_FALSE(publish(9, 8));
  CHECK(publish(10, 8));
  CHECK_FALSE(versions.Begin(11, 0));  // and fails
  CHECK_FALSE(publish(12, 10));
  CHECK_FALSE(publish(13, 0));
  CHECK(publish(14, 12));
}

TEST_CASE("Weights in host memory are copied whole, with a shadow or without") {
  cuda::Reset(1);
  Fleet fleet(SmallModel(), {});
  fleet.Open();
  for (const uint32_t rank : {0u, 1u}) {
    REQUIRE(fleet.exporter(rank).UseShadow().ok());
    CHECK_FALSE(fleet.exporter(rank).has_shadow());
  }
  fleet.Publish(1);
  fleet.CheckServed(1);
}

TEST_CASE("Large shares are advanced batch by batch, by several threads") {
  cuda::Reset(2);
  Trainer trainer(
      {{"big", model::DType::kBF16, 4352, 8192, Cut::kNone}, {"small", model::DType::kBF16, 64, 64, Cut::kRows}}, false,
      7, {.threads = 2});
  trainer.Open(true);
  for (Version version = 1; version <= 4; ++version) {
    trainer.Train(version == 4 ? 0.001 : 0.0001);
    cuda::ForgetCalls();
    trainer.Publish(version);
  }
  CHECK(cuda::Calls("TakeStripe").size() == 3);
}

}  // namespace
}  // namespace lockstep::exporter
