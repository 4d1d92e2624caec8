// Which copies a rank's placement has for what it takes, and what its index answers.
#include "raas_receiver/engine/placement/plan/rank_placement.h"

#include <catch2/catch.hpp>

#include "raas_receiver/engine/placement/plan/plan_testing.h"

namespace lockstep::engine {
namespace {

using layout::StridedCopy;

std::vector<StridedCopy> CopiesOf(const RankPlacement& rank) {
  std::vector<StridedCopy> copies;
  for (const MemoryCopy& one : rank.copies()) copies.push_back(one.copy);
  return copies;
}

// What the index says of `positions` of a block at `offset`: pairs of how many there are and where the first goes.
using Runs = std::vector<std::pair<size_t, uint64_t>>;
Runs RunsOf(const RankPlacement& rank, ByteRange block, const std::vector<uint32_t>& positions) {
  Runs runs;
  rank.ForEachRun(block, positions, [&](uint32_t, uint64_t to, std::span<const uint32_t> run) {
    runs.emplace_back(run.size(), to + run.front());
  });
  return runs;
}

TEST_CASE("Tensors that a rank takes whole and in order are one copy") {
  const auto layout = Layout({Tensor("a", {4, 3}), Tensor("b", {5}), Tensor("c", {2, 2, 2})});
  const auto plan =
      Compile(*layout, {Rank(0, {Same("c", {2, 2, 2}, 134), Same("a", {4, 3}, 100), Same("b", {5}, 124)})});
  CHECK(CopiesOf((*plan)[0]) == std::vector<StridedCopy>{{.target_offset = 100, .row_bytes = 50}});
  CHECK(RunsOf((*plan)[0], {10, 40}, {0, 2, 38}) == Runs{{3, 110}});
}

TEST_CASE("Rows that go to different ranks are one copy each") {
  const auto layout = Layout({Tensor("w", {6, 4})});
  const auto plan = Compile(*layout, {Rank(0, {Parameter("w", {4, 4}, 0, {{"w", {0, 0}, {4, 4}, {0, 0}}})}),
                                      Rank(1, {Parameter("w", {2, 4}, 8, {{"w", {4, 0}, {2, 4}, {0, 0}}})})});
  CHECK(CopiesOf((*plan)[1]) == std::vector<StridedCopy>{{.source_offset = 32, .target_offset = 8, .row_bytes = 16}});
  CHECK(RunsOf((*plan)[0], {0, 48}, {0, 30, 32, 46}) == Runs{{2, 0}});
  CHECK(RunsOf((*plan)[1], {0, 48}, {0, 30, 32, 46}) == Runs{{2, 8}});
}

TEST_CASE("Columns that go to different ranks are one copy each, with the tensor's rows") {
  const auto layout = Layout({Tensor("w", {6, 4})});
  const auto plan = Compile(*layout, {Rank(0, {Parameter("w", {6, 3}, 0, {{"w", {0, 0}, {6, 3}, {0, 0}}})}),
                                      Rank(1, {Parameter("w", {6, 1}, 8, {{"w", {0, 3}, {6, 1}, {0, 0}}})})});
  CHECK(CopiesOf((*plan)[1]) == std::vector<StridedCopy>{{6, 8, 6, 2, 8, 2}});
  // Runs end with the columns, and what others have is passed over.
  CHECK(RunsOf((*plan)[0], {0, 48}, {0, 2, 4, 6, 8, 14, 22, 28, 44}) == Runs{{3, 0}, {1, 6}, {1, 22}, {1, 34}});
  CHECK(RunsOf((*plan)[1], {0, 48}, {0, 2, 4, 6, 8, 14, 22, 28, 46}) == Runs{{1, 8}, {1, 10}, {1, 12}, {1, 18}});
}

TEST_CASE("A tensor that a rank has at two places goes to both") {
  const auto layout = Layout({Tensor("embed", {4, 2})});
  const auto plan = Compile(
      *layout,
      {Rank(0, {Same("embed", {4, 2}, 0), Parameter("head", {4, 2}, 64, {{"embed", {0, 0}, {4, 2}, {0, 0}}})})});
  CHECK((*plan)[0].copies().size() == 2);
  CHECK(WhereTo(*plan, 5) == Places{{0, 5}, {0, 69}});
  // Once as columns, once as it is: groups that reach into one another.
  EngineParameter turned = Parameter("turned", {4, 2}, 128, {{"embed", {0, 0}, {4, 2}, {0, 0}}});
  turned.strides = {1, 4};
  const auto other = Compile(*layout, {Rank(0, {Same("embed", {4, 2}, 0), turned})});
  CHECK((*other)[0].copies().size() == 3);
  CHECK(WhereTo(*other, 4 * 3 + 2) == Places{{0, 14}, {0, 128 + 2 * (4 + 3)}});
}

TEST_CASE("Experts fused in one tensor, gate and up cut by rows, are two copies with a row an expert") {
  const auto layout = Layout({Tensor("experts", {3, 8, 2})});  // gate's 4 rows, then up's
  std::vector<RankDescription> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(Rank(rank, {Parameter("w13", {3, 4, 2}, 0,
                                          {{"experts", {0, rank * 2, 0}, {3, 2, 2}, {0, 0, 0}},
                                           {"experts", {0, 4 + rank * 2, 0}, {3, 2, 2}, {0, 2, 0}}})}));
  }
  const auto plan = Compile(*layout, ranks);
  CHECK(CopiesOf((*plan)[1]) == std::vector<StridedCopy>{{8, 0, 3, 8, 32, 16}, {24, 8, 3, 8, 32, 16}});
  CHECK(WhereTo(*plan, 2 * 32 + 27) == Places{{1, 2 * 16 + 11}});
}

TEST_CASE("Experts fused in one tensor, cut by columns, are one copy of all their rows") {
  const auto layout = Layout({Tensor("experts", {3, 2, 4})});
  std::vector<RankDescription> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(Rank(rank, {Parameter("w2", {3, 2, 2}, 0, {{"experts", {0, 0, rank * 2}, {3, 2, 2}, {0, 0, 0}}})}));
  }
  const auto plan = Compile(*layout, ranks);
  CHECK(CopiesOf((*plan)[1]) == std::vector<StridedCopy>{{4, 0, 6, 4, 8, 4}});
}

TEST_CASE("Rows taken alternately from two tensors are a copy a tensor") {
  const auto layout = Layout({Tensor("gate", {16, 2}), Tensor("up", {16, 2})});
  std::vector<Slice> slices;
  for (uint64_t row = 0; row < 16; ++row) {
    slices.push_back({"gate", {row, 0}, {1, 2}, {2 * row, 0}});
    slices.push_back({"up", {row, 0}, {1, 2}, {2 * row + 1, 0}});
  }
  const auto plan = Compile(*layout, {Rank(0, {Parameter("w13", {32, 2}, 0, slices)})});
  CHECK(CopiesOf((*plan)[0]) == std::vector<StridedCopy>{{0, 0, 16, 4, 4, 8}, {64, 4, 16, 4, 4, 8}});
}

TEST_CASE("Rows of one tensor dealt to three parameters are a copy a parameter") {
  const auto layout = Layout({Tensor("qkv", {12, 2})});
  std::vector<EngineParameter> parameters;
  for (uint64_t part = 0; part < 3; ++part) {
    std::vector<Slice> slices;
    for (uint64_t head = 0; head < 4; ++head) slices.push_back({"qkv", {3 * head + part, 0}, {1, 2}, {head, 0}});
    parameters.push_back(Parameter("p" + std::to_string(part), {4, 2}, 100 * part, slices));
  }
  const auto plan = Compile(*layout, {Rank(0, parameters)});
  CHECK(CopiesOf((*plan)[0]) ==
        std::vector<StridedCopy>{{0, 0, 4, 4, 12, 4}, {4, 100, 4, 4, 12, 4}, {8, 200, 4, 4, 12, 4}});
  CHECK(RunsOf((*plan)[0], {0, 48}, {2, 4, 6, 26}) == Runs{{1, 2}, {2, 100}, {1, 10}});
}

TEST_CASE("A parameter that lies transposed has a copy for each column of its tensor") {
  const auto layout = Layout({Tensor("w", {100, 3})});
  EngineParameter w = Same("w", {100, 3}, 600);
  w.strides = {1, 100};
  const auto plan = Compile(*layout, {Rank(0, {w})});
  CHECK(CopiesOf((*plan)[0]) ==
        std::vector<StridedCopy>{{0, 600, 100, 2, 6, 2}, {2, 800, 100, 2, 6, 2}, {4, 1000, 100, 2, 6, 2}});
  CHECK(WhereTo(*plan, 2 * (50 * 3 + 1)) == Places{{0, 600 + 2 * (50 + 100)}});
}

TEST_CASE("Bytes of tensors that the engine does not take go nowhere") {
  const auto layout = Layout({Tensor("a", {4}), Tensor("mtp", {4}), Tensor("b", {4})});
  const auto plan = Compile(*layout, {Rank(0, {Same("a", {4}, 0), Same("b", {4}, 8)})}, {"mtp"});
  CHECK(WhereTo(*plan, 7) == Places{{0, 7}});
  CHECK(WhereTo(*plan, 8).empty());
  CHECK(WhereTo(*plan, 15).empty());
  CHECK(WhereTo(*plan, 16) == Places{{0, 8}});
  CHECK(WhereTo(*plan, 24).empty());
  int copies = 0;
  (*plan)[0].ForEachCopy({6, 12}, [&](uint32_t, const StridedCopy& copy) {
    CHECK(copy.source_offset == (++copies == 1 ? 6 : 16));
    CHECK(copy.row_bytes == 2);
  });
  CHECK(copies == 2);
}

TEST_CASE("A scalar and an empty tensor are placed, and a rank may hold nothing") {
  const auto layout = Layout({Tensor("scalar", {}), Tensor("empty", {0, 4})});
  RankDescription nothing = Rank(1, {});
  nothing.memories.clear();
  const auto plan = Compile(*layout, {Rank(0, {Same("scalar", {}, 6), Same("empty", {0, 4}, 0)}), nothing});
  CHECK((*plan)[0].bytes() == 2);
  CHECK((*plan)[1].bytes() == 0);
  CHECK(WhereTo(*plan, 1) == Places{{0, 7}});
}

TEST_CASE("The first position that is not below a limit is found from anywhere before it") {
  const std::vector<uint32_t> positions{2, 4, 6, 8, 10, 30, 50, 70, 90, 91, 92, 100};
  for (size_t from = 0; from <= positions.size(); ++from) {
    for (uint64_t limit = from == 0 ? 0 : positions[from - 1]; limit < 110; ++limit) {
      const auto first = std::lower_bound(positions.begin() + static_cast<ptrdiff_t>(from), positions.end(), limit);
      CHECK(FirstAtOrAfter(positions, from, limit) == static_cast<size_t>(first - positions.begin()));
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
