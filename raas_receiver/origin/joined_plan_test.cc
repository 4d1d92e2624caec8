#include "raas_receiver/origin/joined_plan.h"

#include <catch2/catch.hpp>

#include "common/model/manifest.h"

namespace lockstep::origin {
namespace {

using model::DType;
using model::ModelLayout;

const RunId kRun{{1}};

const ModelLayout& Whole() {
  static const auto whole = *ModelLayout::Join(
      {*ModelLayout::Create({{"a", DType::kU8, {10}, 0}}), *ModelLayout::Create({{"b", DType::kU8, {10}, 0}})});
  return *whole;
}

// Of a part's version.
ManifestDigest Digest(uint8_t part, Version version) {
  return {{part, static_cast<uint8_t>(version)}};
}

// A plan of `part` through `versions`: it starts at the first, and its target is the last.
Plan Through(uint8_t part, const std::vector<Version>& versions) {
  Plan plan{.transfer = part + 10U,
            .base = {kRun, versions.front()},
            .target = {kRun, versions.back()},
            .target_digest = Digest(part, versions.back()),
            .committed_unix_ns = static_cast<int64_t>(versions.back() * 100 + part),
            .label = "step " + std::to_string(versions.back())};
  for (size_t i = 1; i < versions.size(); ++i) {
    plan.steps.push_back({.payload_id = i,
                          .base = versions[i - 1],
                          .target = versions[i],
                          .target_digest = Digest(part, versions[i]),
                          .entries = part,
                          .data_bytes = 100U * part,
                          .changed_elements = 7});
  }
  return plan;
}

// Versions that a joined plan goes through; empty: there is none. Both parts begin with known versions, but with
// `catches_up`.
std::vector<Version> Joined(const std::vector<Version>& one, const std::vector<Version>& other, Version held = 5,
                            bool catches_up = false) {
  const std::vector<ManifestDigest> known = {Digest(1, one.front()), Digest(2, other.front())};
  const auto joined = JoinPlans(Whole(), {Through(1, one), Through(2, other)},
                                catches_up ? std::vector<ManifestDigest>(2) : known, {kRun, catches_up ? 0 : held});
  if (!joined) return {};
  std::vector<Version> versions = {joined->plan.base.version};
  for (const pull::DeltaStep& step : joined->plan.steps) {
    CHECK(step.base == versions.back());
    versions.push_back(step.target);
  }
  const Version target = joined->plan.target.version;
  CHECK((joined->plan.steps.empty() || versions.back() == target));
  CHECK(joined->plan.target_digest == model::JoinedDigest(Whole(), std::vector{Digest(1, target), Digest(2, target)}));
  if (joined->plan.steps.empty()) return {target};
  CHECK(joined->plan.steps.back().target_digest == joined->plan.target_digest);
  return versions;
}

using Versions = std::vector<Version>;

TEST_CASE("Plans that reach the same version go there together") {
  CHECK(Joined({5, 6}, {5, 6}) == Versions{5, 6});
  CHECK(Joined({5, 6, 7}, {5, 6, 7}) == Versions{5, 6, 7});
}

TEST_CASE("A part that is ahead goes only as far as the others do") {
  CHECK(Joined({5, 6}, {5, 6, 7, 8}) == Versions{5, 6});
  CHECK(Joined({5, 6, 7, 8}, {5, 6, 7}) == Versions{5, 6, 7});
  CHECK(Joined({5}, {5, 6}) == Versions{5});  // one has nothing newer: up to date
}

TEST_CASE("A version that one part lacks is passed over, by a step to it of the others") {
  CHECK(Joined({5, 6, 7}, {5, 7}) == Versions{5, 6, 7});
  CHECK(Joined({5, 7, 8}, {5, 6, 8}) == Versions{5, 6, 7, 8});
}

TEST_CASE("Parts that reach no newer version in common stay at what is held") {
  CHECK(Joined({5, 6}, {5, 7}) == Versions{5});
  CHECK(Joined({5, 6, 8}, {5, 6, 7}) == Versions{5});  // 6 has no label that is known
}

TEST_CASE("Blocks of a full pull that came in different versions come to one") {
  CHECK(Joined({6, 7}, {5, 6, 7}, 0, true) == Versions{5, 6, 7});
  CHECK(Joined({6, 7}, {5, 7}, 0, true) == Versions{5, 6, 7});  // the first part's blocks are at 6: a step begins there
  CHECK(Joined({7}, {5, 7}, 0, true) == Versions{5, 7});
  // The first part's blocks are at 6, whose digest is not known: 6 cannot be the target.
  CHECK(Joined({6, 7}, {5, 6}, 0, true) == Versions{});
}

TEST_CASE("A joined plan has the sums of its parts, and what is known of its target") {
  const auto joined =
      JoinPlans(Whole(), {Through(1, {5, 6, 7}), Through(2, {5, 7})}, {Digest(1, 5), Digest(2, 5)}, {kRun, 5});
  REQUIRE(joined);
  const Plan& plan = joined->plan;
  CHECK(
      (plan.label == "step 7" && plan.committed_unix_ns == 702 && plan.transfer == 11 && plan.changed_elements == 21));
  REQUIRE(plan.steps.size() == 2);
  CHECK((plan.steps[0].entries == 1 && plan.steps[0].data_bytes == 100));
  CHECK((plan.steps[1].entries == 3 && plan.steps[1].data_bytes == 300));
  CHECK(plan.steps[0].target_digest == model::JoinedDigest(Whole(), std::vector{Digest(1, 6), Digest(2, 5)}));
  CHECK((joined->steps[0].size() == 2 && joined->steps[1].size() == 1));
}

TEST_CASE("Full pulls are joined where all are of one version") {
  std::vector<Plan> plans = {Through(1, {7}), Through(2, {7})};
  for (Plan& plan : plans) plan.full = true;
  const auto joined = JoinPlans(Whole(), plans, std::vector<ManifestDigest>(2), {kRun, 5});
  REQUIRE(joined);
  CHECK((joined->plan.full && joined->plan.target.version == 7 && joined->plan.steps.empty()));
  plans[1] = Through(2, {5, 6, 7, 8});  // it has deltas
  const auto mixed = JoinPlans(Whole(), plans, {{}, Digest(2, 5)}, {kRun, 5});
  REQUIRE(mixed);
  CHECK((mixed->plan.full && mixed->plan.target.version == 7 && mixed->plan.mode() == "full"));
  CHECK(mixed->plan.target_digest == model::JoinedDigest(Whole(), std::vector{Digest(1, 7), Digest(2, 7)}));
  plans[1] = Through(2, {8});
  CHECK_FALSE(JoinPlans(Whole(), plans, std::vector<ManifestDigest>(2), {kRun, 5}));
}

}  // namespace
}  // namespace lockstep::origin
