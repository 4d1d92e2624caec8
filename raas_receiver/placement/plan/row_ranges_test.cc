// Which row ranges and column copies a plan has for what ranks take.
#include <catch2/catch.hpp>

#include "raas_receiver/placement/plan/plan_testing.h"

namespace lockstep::placement {
namespace {

TEST_CASE("Tensors that one rank takes whole and in order are one range and one copy") {
  const auto layout = Layout({Tensor("a", {4, 3}), Tensor("b", {5}), Tensor("c", {2, 2, 2})});
  const auto plan =
      Compile(*layout, {Rank(0, {Same("c", {2, 2, 2}, 134), Same("a", {4, 3}, 100), Same("b", {5}, 124)})});
  REQUIRE(plan->row_ranges().size() == 1);
  CHECK(plan->row_ranges()[0].rows == 1);
  CHECK(plan->row_ranges()[0].pitch == 50);
  REQUIRE(plan->column_copies(plan->row_ranges()[0]).size() == 1);
  CHECK(plan->column_copies(plan->row_ranges()[0])[0].target_offset == 100);
  REQUIRE(plan->copies(0).size() == 1);
  CHECK(plan->copies(0)[0] == layout::StridedCopy{.source_offset = 0, .target_offset = 100, .row_bytes = 50});
}

TEST_CASE("Rows that go to different ranks are row ranges of one row and one copy each") {
  const auto layout = Layout({Tensor("w", {6, 4})});
  const auto plan = Compile(*layout, {Rank(0, {Parameter("w", {4, 4}, 0, {{"w", {0, 0}, {4, 4}, {0, 0}}})}),
                                      Rank(1, {Parameter("w", {2, 4}, 8, {{"w", {4, 0}, {2, 4}, {0, 0}}})})});
  REQUIRE(plan->row_ranges().size() == 2);
  CHECK(plan->row_ranges()[1].offset == 32);
  CHECK(plan->row_ranges()[1].rows == 1);
  CHECK(plan->row_ranges()[1].pitch == 16);
  REQUIRE(plan->column_copies(plan->row_ranges()[1]).size() == 1);
  CHECK(plan->column_copies(plan->row_ranges()[1])[0].buffer == 1);
  CHECK(plan->column_copies(plan->row_ranges()[1])[0].target_offset == 8);
}

TEST_CASE("Columns that go to different ranks are one range with the tensor's rows and a copy a rank") {
  const auto layout = Layout({Tensor("w", {6, 4})});
  const auto plan = Compile(*layout, {Rank(0, {Parameter("w", {6, 3}, 0, {{"w", {0, 0}, {6, 3}, {0, 0}}})}),
                                      Rank(1, {Parameter("w", {6, 1}, 8, {{"w", {0, 3}, {6, 1}, {0, 0}}})})});
  REQUIRE(plan->row_ranges().size() == 1);
  CHECK(plan->row_ranges()[0].rows == 6);
  CHECK(plan->row_ranges()[0].pitch == 8);
  const auto column_copies = plan->column_copies(plan->row_ranges()[0]);
  REQUIRE(column_copies.size() == 2);
  CHECK(column_copies[0].bytes == 6);
  CHECK(column_copies[0].target_pitch == 6);
  CHECK(column_copies[1].column == 6);
  CHECK(column_copies[1].bytes == 2);
  CHECK(column_copies[1].buffer == 1);
  CHECK(column_copies[1].target_offset == 8);
  CHECK(column_copies[1].target_pitch == 2);
}

TEST_CASE("A tensor that all ranks have is one range with a copy to each") {
  const auto layout = Layout({Tensor("norm", {8})});
  const auto plan = Compile(*layout, {Rank(0, {Same("norm", {8}, 4)}), Rank(1, {Same("norm", {8}, 6)})});
  REQUIRE(plan->row_ranges().size() == 1);
  CHECK(WhereTo(*plan, 3) == Places{{0, 7}, {1, 9}});
}

TEST_CASE("A tensor that a rank has at two places goes to both") {
  const auto layout = Layout({Tensor("embed", {4, 2})});
  const auto plan = Compile(
      *layout,
      {Rank(0, {Same("embed", {4, 2}, 0), Parameter("head", {4, 2}, 64, {{"embed", {0, 0}, {4, 2}, {0, 0}}})})});
  REQUIRE(plan->row_ranges().size() == 1);
  CHECK(WhereTo(*plan, 5) == Places{{0, 5}, {0, 69}});
}

TEST_CASE("Experts fused in one tensor, gate and up cut by rows, are a range of a row an expert") {
  const auto layout = Layout({Tensor("experts", {3, 8, 2})});  // gate's 4 rows, then up's
  std::vector<RankDescription> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(Rank(rank, {Parameter("w13", {3, 4, 2}, 0,
                                          {{"experts", {0, rank * 2, 0}, {3, 2, 2}, {0, 0, 0}},
                                           {"experts", {0, 4 + rank * 2, 0}, {3, 2, 2}, {0, 2, 0}}})}));
  }
  const auto plan = Compile(*layout, ranks);
  REQUIRE(plan->row_ranges().size() == 1);
  CHECK(plan->row_ranges()[0].rows == 3);
  CHECK(plan->row_ranges()[0].pitch == 32);
  CHECK(plan->column_copies(plan->row_ranges()[0]).size() == 4);
  CHECK(WhereTo(*plan, 2 * 32 + 27) == Places{{1, 2 * 16 + 11}});
}

TEST_CASE("Experts fused in one tensor, cut by columns, are one range of all their rows") {
  const auto layout = Layout({Tensor("experts", {3, 2, 4})});
  std::vector<RankDescription> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(Rank(rank, {Parameter("w2", {3, 2, 2}, 0, {{"experts", {0, 0, rank * 2}, {3, 2, 2}, {0, 0, 0}}})}));
  }
  const auto plan = Compile(*layout, ranks);
  REQUIRE(plan->row_ranges().size() == 1);
  CHECK(plan->row_ranges()[0].rows == 6);
  CHECK(plan->row_ranges()[0].pitch == 8);
  CHECK(plan->column_copies(plan->row_ranges()[0]).size() == 2);
}

TEST_CASE("Rows taken alternately from two tensors are a range a tensor") {
  const auto layout = Layout({Tensor("gate", {16, 2}), Tensor("up", {16, 2})});
  std::vector<Slice> slices;
  for (uint64_t row = 0; row < 16; ++row) {
    slices.push_back({"gate", {row, 0}, {1, 2}, {2 * row, 0}});
    slices.push_back({"up", {row, 0}, {1, 2}, {2 * row + 1, 0}});
  }
  const auto plan = Compile(*layout, {Rank(0, {Parameter("w13", {32, 2}, 0, slices)})});
  REQUIRE(plan->row_ranges().size() == 2);
  CHECK(plan->row_ranges()[1].rows == 16);
  CHECK(plan->row_ranges()[1].pitch == 4);
  CHECK(plan->column_copies(plan->row_ranges()[1])[0].target_offset == 4);
  CHECK(plan->column_copies(plan->row_ranges()[1])[0].target_pitch == 8);
}

TEST_CASE("A parameter that lies transposed has a copy for each index of its shorter side") {
  const auto layout = Layout({Tensor("wide", {3, 100}), Tensor("tall", {100, 3})});
  EngineParameter wide = Same("wide", {3, 100}, 0);
  wide.strides = {1, 3};
  EngineParameter tall = Same("tall", {100, 3}, 600);
  tall.strides = {1, 100};
  const auto plan = Compile(*layout, {Rank(0, {wide, tall})});
  REQUIRE(plan->row_ranges().size() == 4);
  CHECK(plan->row_ranges()[2].rows == 100);
  CHECK(plan->row_ranges()[2].pitch == 2);
  CHECK(plan->column_copies(plan->row_ranges()[2])[0].target_pitch == 6);
  CHECK(plan->row_ranges()[3].rows == 100);
  CHECK(plan->row_ranges()[3].pitch == 6);
  CHECK(plan->column_copies(plan->row_ranges()[3]).size() == 3);
  CHECK(WhereTo(*plan, 2 * (1 * 100 + 50)) == Places{{0, 2 * (1 + 50 * 3)}});
  CHECK(WhereTo(*plan, 600 + 2 * (50 * 3 + 1)) == Places{{0, 600 + 2 * (50 + 100)}});
}

TEST_CASE("Bytes of tensors that the engine does not take are in no range") {
  const auto layout = Layout({Tensor("a", {4}), Tensor("mtp", {4}), Tensor("b", {4})});
  const auto plan = Compile(*layout, {Rank(0, {Same("a", {4}, 0), Same("b", {4}, 8)})}, {"mtp"});
  REQUIRE(plan->row_ranges().size() == 2);
  CHECK(plan->RowRangeAt(0) == plan->row_ranges().begin());
  CHECK(plan->RowRangeAt(7) == plan->row_ranges().begin());
  CHECK(plan->RowRangeAt(8)->offset == 16);
  CHECK(plan->RowRangeAt(16)->offset == 16);
  CHECK(plan->RowRangeAt(23)->offset == 16);
  CHECK(plan->RowRangeAt(24) == plan->row_ranges().end());
  CHECK(WhereTo(*plan, 10).empty());
}

TEST_CASE("A scalar and an empty tensor are placed, and a rank may hold nothing") {
  const auto layout = Layout({Tensor("scalar", {}), Tensor("empty", {0, 4})});
  RankDescription nothing = Rank(1, {});
  nothing.memories.clear();
  const auto plan = Compile(*layout, {Rank(0, {Same("scalar", {}, 6), Same("empty", {0, 4}, 0)}), nothing});
  CHECK(plan->buffers().size() == 1);
  CHECK(CopiedBytes(*plan, 0) == 2);
  CHECK(WhereTo(*plan, 1) == Places{{0, 7}});
  CHECK(Compile(*layout, {Rank(0, {Same("scalar", {}, 6)})})->row_ranges().size() == 1);
}

}  // namespace
}  // namespace lockstep::placement
