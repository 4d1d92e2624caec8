#include "common/layout/host_parts.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "common/base/status_testing.h"
#include "common/layout/copy_plan.h"
#include "common/model/module_names.h"

namespace lockstep::layout {
namespace {

using model::DType;

// Tensors of 8 x 4 in bfloat16, each of a source of its own and in a group of its own. Ranks 0 and 1 are on host 0, 2
// and 3 on host 1.
class Trainer {
 public:
  enum class Held { kFirstHost, kSecondHost, kAllReplicas, kRowsOfRank };

  Trainer& Add(const std::string& name, Held held) {
    const auto index = static_cast<uint32_t>(model_.tensors.size());
    model_.tensors.push_back({name, DType::kBF16, {8, 4}, 0});
    model_.groups.push_back(index);
    model_.sources.push_back({name, {8, 4}});
    model_.conversions.push_back({index, index, Whole({8, 4})});
    for (uint32_t rank = 0; rank < 4; ++rank) {
      if (held == Held::kRowsOfRank) {
        model_.holdings.push_back({rank, index, {2, 4}, ShardOf({8, 4}, 0, rank, 4)});
      } else if (held == Held::kAllReplicas || (rank < 2) == (held == Held::kFirstHost)) {
        model_.holdings.push_back({rank, index, {8, 4}, Whole({8, 4})});
      }
    }
    return *this;
  }
  // The last tensor is in the group of the one before it.
  Trainer& Join() {
    model_.groups.back() = model_.groups[model_.groups.size() - 2];
    return *this;
  }
  TrainingModel Model() const {
    TrainingModel model = model_;
    REQUIRE(PlaceTensors(model).ok());
    return model;
  }

 private:
  TrainingModel model_;
};

const std::vector<uint32_t> kHosts = {0, 0, 1, 1};
using Held = Trainer::Held;

TEST_CASE("A tensor goes to the host that holds most of it, and else where there is least") {
  Trainer trainer;
  trainer.Add("a.weight", Held::kSecondHost).Add("b.weight", Held::kAllReplicas).Add("c.weight", Held::kRowsOfRank);
  trainer.Add("d.weight", Held::kFirstHost).Add("e.weight", Held::kRowsOfRank);
  const TrainingModel model = trainer.Model();
  const auto hosts = HostOfTensors(model, kHosts);
  REQUIRE(hosts.ok());
  CHECK(*hosts == std::vector<uint32_t>{1, 0, 0, 0, 1});
}

TEST_CASE("What several ranks of a host hold counts once") {
  TrainingModel model = Trainer().Add("a.weight", Held::kFirstHost).Add("b.weight", Held::kFirstHost).Model();
  std::erase_if(model.holdings, [](const Holding& holding) { return holding.source == 1; });
  // Rows 0 to 2 are on both ranks of host 0; 3 to 6, and 7, on ranks of host 1.
  const std::vector<std::pair<uint64_t, uint64_t>> rows = {{0, 3}, {0, 3}, {3, 4}, {7, 1}};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto [first, count] = rows[rank];
    model.holdings.push_back({rank, 1, {count, 4}, Box({0, 0}, {first, 0}, {count, 4})});
  }
  const auto hosts = HostOfTensors(model, kHosts);
  REQUIRE(hosts.ok());
  CHECK(*hosts == std::vector<uint32_t>{0, 1});
}

TEST_CASE("Tensors of one module of an engine, or of one group, have one host") {
  Trainer trainer;
  trainer.Add("l.q_proj.weight", Held::kAllReplicas).Add("x.weight", Held::kAllReplicas);
  trainer.Add("l.k_proj.weight", Held::kAllReplicas).Add("l.v_proj.bias", Held::kAllReplicas);
  trainer.Add("y.weight", Held::kFirstHost).Add("z.weight", Held::kSecondHost).Join();
  const auto hosts = HostOfTensors(trainer.Model(), kHosts);
  REQUIRE(hosts.ok());
  CHECK((*hosts)[0] == (*hosts)[2]);
  CHECK((*hosts)[0] == (*hosts)[3]);
  CHECK((*hosts)[4] == (*hosts)[5]);
}

TEST_CASE("The parts of all hosts are the model, and no host writes another's bytes where it need not") {
  Trainer trainer;
  for (const char* name : {"a", "b", "c", "d"}) trainer.Add(std::string(name) + ".weight", Held::kAllReplicas);
  trainer.Add("e.weight", Held::kFirstHost).Add("f.weight", Held::kSecondHost).Add("g.weight", Held::kRowsOfRank);
  const TrainingModel model = trainer.Model();
  const auto hosts = HostOfTensors(model, kHosts);
  REQUIRE(hosts.ok());
  std::vector<std::string> names;
  uint64_t crossing = 0;
  for (uint32_t host = 0; host < 2; ++host) {
    const auto part = PartOf(model, *hosts, host);
    REQUIRE(part.ok());
    for (const model::TensorMeta& tensor : part->tensors) names.push_back(tensor.name);
    CHECK(part->tensors[0].offset == 0);
    const auto plan = CompileExport(*part, {host == 0, host == 0, host == 1, host == 1});
    REQUIRE(plan.ok());
    for (uint32_t rank = 0; rank < 4; ++rank) crossing += kHosts[rank] == host ? 0 : plan->ranks[rank].bytes;
  }
  std::sort(names.begin(), names.end());
  CHECK(names.size() == 7);
  CHECK(std::unique(names.begin(), names.end()) == names.end());
  CHECK(crossing == 8 * 4 * 2 / 2);  // half of g
}

TEST_CASE("A host without a tensor is an error") {
  Trainer trainer;
  trainer.Add("a.weight", Held::kFirstHost);
  CHECK_THAT(HostOfTensors(trainer.Model(), kHosts).status(),
             FailsWith(ErrorCode::kBadData, "the agent of host 1 of 2 would have no tensor"));
}

}  // namespace
}  // namespace lockstep::layout
