#include "tests/bench/delta/adam_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "kernels/diff.h"
#include "tests/bench/common/models.h"

namespace lockstep::bench {
namespace {

using Data = std::vector<std::byte>;

// The changes of bf16 tensors between two versions.
struct Delta {
  uint64_t elements = 0;
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;

  double density() const { return static_cast<double>(positions.size()) / static_cast<double>(elements); }
  // Share of changes by `low` to `high` units in the last place, up or down.
  double Share(int low, int high) const {
    const auto count = std::count_if(steps.begin(), steps.end(), [&](uint64_t step) {
      const int size = std::abs(static_cast<int16_t>(step));
      return low <= size && size <= high;
    });
    return static_cast<double>(count) / static_cast<double>(steps.size());
  }
};

Delta Compare(const Data& before, const Data& after) {
  Delta delta{.elements = before.size() / 2};
  delta.positions.resize(delta.elements);
  delta.steps.resize(delta.elements);
  const size_t found = kernels::FindChangesAndHash(before.data(), after.data(), before.size(), 2,
                                                   delta.positions.data(), delta.steps.data())
                           .changes;
  delta.positions.resize(found);
  delta.steps.resize(found);
  return delta;
}

struct Trained {
  explicit Trained(uint32_t first_step = 40) : model(QwenLayout(50'000'000), first_step), pool(1) {}

  Data Version(uint32_t version, double rate) {
    Data data(model.layout()->data_bytes());
    model.Write(version, rate, data, pool);
    return data;
  }
  Delta First(double rate) { return Compare(Version(0, rate), Version(1, rate)); }

  AdamModel model;
  WorkerPool pool;
};

TEST_CASE("Density falls with the steps of training, from about 2 % to below 1 %", "[adam]") {
  std::map<uint32_t, double> density;
  for (const uint32_t step : {0u, 7u, 39u}) density[step] = Trained(step).First(1e-6).density();
  CHECK(density[0] == Approx(0.0215).margin(0.006));  // 2.15 % in matrices of deviation 0.02
  CHECK(density[7] / density[0] == Approx(1.1 / 2.15).margin(0.08));
  CHECK(density[39] / density[0] == Approx(0.88 / 2.15).margin(0.08));
}

TEST_CASE("Every density of a sweep has a learning rate", "[adam]") {
  Trained trained;
  for (const double density : {0.0005, 0.003, 0.006, 0.01, 0.025, 0.05, 0.1, 0.5}) {
    const double rate = trained.model.LearningRateFor(density);
    INFO("density " << density << ", rate " << rate);
    CHECK(trained.First(rate).density() == Approx(density).epsilon(0.1));
  }
}

TEST_CASE("Steps are of the sizes that real deltas have", "[adam]") {
  Trained trained;
  const Delta delta = trained.First(trained.model.LearningRateFor(0.01));
  CHECK(delta.Share(1, 1) == Approx(0.88).margin(0.03));
  CHECK(delta.Share(2, 2) == Approx(0.05).margin(0.02));
  CHECK(delta.Share(3, 3) == Approx(0.02).margin(0.01));
  CHECK(delta.Share(8, 1 << 16) == Approx(0.023).margin(0.012));
}

TEST_CASE("Gaps inside a matrix are near geometric", "[adam]") {
  Trained trained;
  const Delta delta = trained.First(trained.model.LearningRateFor(0.009));
  const auto& layout = *trained.model.layout();
  size_t tensor = 0;
  while (layout.tensors()[tensor].name.find(".1.mlp.down_proj") == std::string::npos) ++tensor;
  const uint64_t begin = layout.tensors()[tensor].offset / 2;
  const uint64_t end = begin + layout.tensor_bytes(tensor) / 2;
  std::vector<double> gaps;
  for (size_t i = 1; i < delta.positions.size(); ++i) {
    if (delta.positions[i - 1] >= begin && delta.positions[i] < end) {
      gaps.push_back(delta.positions[i] - delta.positions[i - 1]);
    }
  }
  REQUIRE(gaps.size() > 1000);
  double mean = 0;
  for (const double gap : gaps) mean += gap / static_cast<double>(gaps.size());
  std::sort(gaps.begin(), gaps.end());
  CHECK(gaps[gaps.size() / 2] / mean == Approx(73.0 / 113).margin(0.08));
  CHECK(gaps[gaps.size() * 99 / 100] / mean == Approx(581.0 / 113).margin(1));
}

}  // namespace
}  // namespace lockstep::bench
