#include "raas_receiver/engine/placement/plan/placement_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "raas_receiver/engine/placement/description/description_testing.h"
#include "raas_receiver/engine/placement/plan/plan_testing.h"

namespace lockstep::engine {
namespace {

// ---- The format's example ----------------------------------------------------------------------------------------

std::shared_ptr<const model::ModelLayout> ExampleLayout() {
  return Layout({Tensor("model.embed_tokens.weight", {10, 4}), Tensor("model.norm.weight", {4}),
                 Tensor("model.q_proj.weight", {4, 4}), Tensor("model.k_proj.weight", {2, 4}),
                 Tensor("model.v_proj.weight", {2, 4}), Tensor("model.o_proj.weight", {4, 4}),
                 Tensor("model.experts.0.down_proj.weight", {4, 2}),
                 Tensor("model.experts.1.down_proj.weight", {4, 2})});
}

std::vector<RankDescription> ExampleRanks() {
  std::vector<RankDescription> ranks;
  for (const char* name : {"rank 0", "rank 1"}) {
    const auto rank = ParseDescription(FormatExample(name));
    INFO(rank.status().ToString());
    REQUIRE(rank.ok());
    ranks.push_back(*rank);
  }
  return ranks;
}

TEST_CASE("The example's plan is the one that the format describes") {
  const auto plan = Compile(*ExampleLayout(), ExampleRanks());
  REQUIRE(plan->size() == 2);
  CHECK(WhereTo(*plan, 58) == Places{{1, 10}});
  CHECK(WhereTo(*plan, 86) == Places{{0, 54}, {1, 54}});
  CHECK(WhereTo(*plan, 144) == Places{{1, 80}});
  CHECK(WhereTo(*plan, 180) == Places{{1, 94}});
  CHECK(WhereTo(*plan, 210) == Places{{1, 116}});
  CHECK(CopiedBytes((*plan)[0]) == 120);
  CHECK(CopiedBytes((*plan)[1]) == 104);
  CHECK((*plan)[0].zeros().empty());
  CHECK(Zeros((*plan)[1]) == std::vector<StridedRange>{{.offset = 32, .row_bytes = 16}});
}

// ---- Padding, and BF16 in F32 ------------------------------------------------------------------------------------

TEST_CASE("Padding is zeros: rows behind one another, or in every row") {
  const auto layout = Layout({Tensor("a", {3, 2})});
  EngineParameter p = Parameter("p", {5, 4}, 10, {{"a", {0, 0}, {3, 2}, {0, 0}}});
  p.padding = {{{0, 2}, {3, 1}}, {{0, 3}, {3, 1}}, {{4, 0}, {1, 4}}, {{3, 0}, {1, 4}}};
  const auto plan = Compile(*layout, {Rank(0, {p})});
  CHECK(Zeros((*plan)[0]) == std::vector<StridedRange>{{14, 4, 3, 8}, {.offset = 34, .row_bytes = 16}});
  EngineParameter other = p;
  other.padding = {{{0, 2}, {3, 2}}, {{3, 0}, {2, 4}}};
  const auto same = Compile(*layout, {Rank(0, {other})});
  CHECK(Zeros((*same)[0]) == Zeros((*plan)[0]));
  CHECK(std::ranges::equal((*same)[0].copies(), (*plan)[0].copies()));
}

TEST_CASE("A bf16 tensor goes into the upper halves of an fp32 parameter, and the lower halves are zeros") {
  const auto layout = Layout({Tensor("gate", {4, 3}), Tensor("norm", {4})});
  EngineParameter gate = Same("gate", {4, 3}, 8);
  gate.dtype = model::DType::kF32;
  const auto plan = Compile(*layout, {Rank(0, {gate, Same("norm", {4}, 56)}), Rank(1, {gate})});
  REQUIRE((*plan)[1].copies().size() == 1);
  CHECK((*plan)[1].copies()[0].copy == layout::StridedCopy{0, 10, 12, 2, 2, 4});
  CHECK(CopiedBytes((*plan)[0]) == 32);
  CHECK(Zeros((*plan)[0]) == std::vector<StridedRange>{{8, 2, 12, 4}});
  CHECK(WhereTo(*plan, 0) == Places{{0, 10}, {1, 10}});
  CHECK(WhereTo(*plan, 15) == Places{{0, 39}, {1, 39}});
  CHECK(WhereTo(*plan, 25) == Places{{0, 57}});
}

TEST_CASE("A parameter in fp32 may be of tensors of both kinds, turned around and padded") {
  const auto layout = Layout({Tensor("wide", {1, 3}, model::DType::kF32), Tensor("narrow", {2, 3})});
  EngineParameter p = Parameter("p", {3, 4}, 0, {{"narrow", {0, 0}, {2, 3}, {0, 0}}, {"wide", {0, 0}, {1, 3}, {2, 0}}});
  p.dtype = model::DType::kF32;
  p.strides = {1, 3};
  p.padding = {{{0, 3}, {3, 1}}};
  const auto plan = Compile(*layout, {Rank(0, {p})});
  CHECK(WhereTo(*plan, 4) == Places{{0, 20}});       // wide [0, 1] at [2, 1]
  CHECK(WhereTo(*plan, 12 + 8) == Places{{0, 18}});  // narrow [1, 1] at [1, 1]: element 4's upper half
  CHECK(Zeros((*plan)[0]) ==
        std::vector<StridedRange>{{0, 2, 2, 4}, {12, 2, 2, 4}, {24, 2, 2, 4}, {.offset = 36, .row_bytes = 12}});
}

TEST_CASE("Only bf16 in fp32 is widened") {
  for (const auto& [model, engine] : {std::pair{model::DType::kF16, model::DType::kF32},
                                      {model::DType::kF32, model::DType::kBF16},
                                      {model::DType::kBF16, model::DType::kF64},
                                      {model::DType::kBF16, model::DType::kI32},
                                      {model::DType::kF32, model::DType::kF64}}) {
    EngineParameter parameter = Same("a", {4, 2}, 0);
    parameter.dtype = engine;
    CHECK(Refusal(*Layout({Tensor("a", {4, 2}, model)}), {Rank(0, {parameter})}).find("converted or quantised") !=
          std::string::npos);
  }
}

// ---- Rules broken ------------------------------------------------------------------------------------------------

TEST_CASE("Overlapping slices are refused, naming both") {
  const auto layout = Layout({Tensor("a", {4, 2}), Tensor("b", {4, 2})});
  const std::string refusal = Refusal(
      *layout, {Rank(3, {Parameter("p", {7, 2}, 0, {{"a", {0, 0}, {4, 2}, {0, 0}}, {"b", {0, 0}, {4, 2}, {3, 0}}})})});
  CHECK(refusal ==
        "rank 3's parameter \"p\": slice 0 (of tensor \"a\") and slice 1 (of tensor \"b\") both give its "
        "elements [3:4, 0:2]");
}

TEST_CASE("Padding over a slice is refused") {
  const auto layout = Layout({Tensor("a", {4, 2})});
  EngineParameter parameter = Same("a", {4, 2}, 0);
  parameter.padding.push_back({{3, 1}, {1, 1}});
  CHECK(Refusal(*layout, {Rank(0, {parameter})}).find("slice 0 (of tensor \"a\") and padding 0 both give") !=
        std::string::npos);
}

TEST_CASE("Elements that nothing gives are refused with their number and the first") {
  const auto layout = Layout({Tensor("a", {4, 2})});
  const std::string refusal = Refusal(*layout, {Rank(0, {Parameter("p", {6, 2}, 0, {{"a", {0, 0}, {4, 2}, {1, 0}}})})});
  CHECK(refusal == "rank 0's parameter \"p\": no slice or padding gives 4 of its 12 elements, the first at [0, 0]");
}

TEST_CASE("Another dtype than the model's is refused with what to do instead") {
  const auto layout = Layout({Tensor("a", {4, 2})});
  EngineParameter parameter = Same("a", {4, 2}, 0);
  parameter.dtype = model::DType::kF16;
  CHECK(Refusal(*layout, {Rank(0, {parameter})}) ==
        "rank 0's parameter \"a\": the engine holds tensor \"a\" as F16 where the model has BF16: converted or "
        "quantised; publish that dtype, or let this engine take versions from the directory");
}

TEST_CASE("Slices of what is not in the model, or beyond it, are refused") {
  const auto layout = Layout({Tensor("a", {4, 2}), Tensor("mtp", {2})});
  const auto refuse = [&](const Slice& slice) {
    return Refusal(*layout, {Rank(0, {Same("a", {4, 2}, 0), Parameter("p", {2, 2}, 64, {slice})})}, {"mtp"});
  };
  CHECK(refuse({"b", {0, 0}, {2, 2}, {0, 0}}) == "rank 0's parameter \"p\": the model has no tensor \"b\"");
  CHECK(refuse({"mtp", {0}, {2}, {0, 0}}) ==
        "rank 0's parameter \"p\": tensor \"mtp\" is one that the engine does not take");
  CHECK(refuse({"a", {3, 0}, {2, 2}, {0, 0}}).find("leaves the tensor of shape [4, 2]") != std::string::npos);
  CHECK(refuse({"a", {~uint64_t{0}, 0}, {2, 2}, {0, 0}}).find("leaves the tensor") != std::string::npos);
  CHECK(refuse({"a", {0, 0}, {2, 2}, {1, 0}}).find("leaves the parameter of shape [2, 2]") != std::string::npos);
  CHECK(refuse({"a", {0}, {2}, {0, 0}}).find("does not have the dimensions") != std::string::npos);
  CHECK(refuse({"a", {0, 0}, {2, 2}, {0}}).find("does not have the dimensions") != std::string::npos);
  CHECK(Refusal(*layout, {}, {"mpt"}) == "unused tensor \"mpt\" is not in the model");
  const auto stacked = Layout({Tensor("a", {2, 2, 2})});
  CHECK(Refusal(*stacked, {Rank(0, {Parameter("p", {4, 2}, 0, {{"a", {0, 0, 0}, {2, 2, 2}, {0, 0}}})})})
            .find("\"a\" has 3 dimensions, the parameter 2") != std::string::npos);
}

TEST_CASE("A wanted tensor, or an element of it, that no rank takes is refused by name") {
  const auto layout = Layout({Tensor("a", {4, 6}), Tensor("b", {2})});
  CHECK(Refusal(*layout, {Rank(0, {Same("a", {4, 6}, 0)})}) == "no rank takes tensor \"b\"");
  const auto take = [&](std::vector<Slice> slices) {
    std::vector<RankDescription> ranks{Rank(0, {Same("b", {2}, 0)})};
    for (uint32_t i = 0; i < slices.size(); ++i) {
      slices[i].at = {0, 0};
      ranks.push_back(Rank(i + 1, {Parameter("p", slices[i].shape, 0, {slices[i]})}));
    }
    return Refusal(*layout, ranks);
  };
  CHECK(take({{"a", {0, 0}, {3, 6}, {}}}) == "no rank takes element [3, 0] of tensor \"a\"");
  CHECK(take({{"a", {1, 0}, {3, 6}, {}}}) == "no rank takes element [0, 0] of tensor \"a\"");
  CHECK(take({{"a", {0, 0}, {4, 2}, {}}, {"a", {0, 3}, {4, 3}, {}}}) == "no rank takes element [0, 2] of tensor \"a\"");
  // Many replicas of one half do not make up for the other.
  CHECK(take({{"a", {0, 0}, {2, 6}, {}}, {"a", {0, 0}, {2, 6}, {}}, {"a", {2, 0}, {1, 6}, {}}}) ==
        "no rank takes element [3, 0] of tensor \"a\"");
  CHECK(take({{"a", {0, 0}, {4, 5}, {}}, {"a", {0, 1}, {3, 5}, {}}}) == "no rank takes element [3, 5] of tensor \"a\"");
}

TEST_CASE("Tensors that no rank takes are unused where a rank ignores them, and refused by name where none does") {
  const auto layout = Layout({Tensor("a", {4}), Tensor("mtp.b", {2}), Tensor("mtp.c", {2})});
  std::vector<RankDescription> ranks{Rank(0, {Same("a", {4}, 0)}), Rank(1, {Same("mtp.c", {2}, 0)})};
  const auto none = UnusedTensors(*layout, ranks);
  CHECK(none.status().code() == ErrorCode::kBadData);
  CHECK(none.status().message().find("no parameter of the engine takes tensor mtp.b of the model:") == 0);
  ranks[1].ignore = {"mtp.*"};
  CHECK(*UnusedTensors(*layout, ranks) == std::vector<std::string>{"mtp.b"});
  ranks.pop_back();
  CHECK(UnusedTensors(*layout, ranks).status().message().find("tensor mtp.b of the model, nor 1 others") !=
        std::string::npos);
}

TEST_CASE("Overlapping parts of different ranks, as of replicated heads, are taken") {
  const auto layout = Layout({Tensor("k", {4, 2})});
  const auto plan = Compile(*layout, {Rank(0, {Parameter("k", {3, 2}, 0, {{"k", {0, 0}, {3, 2}, {0, 0}}})}),
                                      Rank(1, {Parameter("k", {3, 2}, 0, {{"k", {1, 0}, {3, 2}, {0, 0}}})})});
  CHECK(WhereTo(*plan, 2) == Places{{0, 2}});
  CHECK(WhereTo(*plan, 6) == Places{{0, 6}, {1, 2}});
  CHECK(WhereTo(*plan, 13) == Places{{1, 9}});
}

TEST_CASE("Parameters that share memory are refused, naming both and the byte") {
  const auto layout = Layout({Tensor("a", {4, 2}), Tensor("b", {4, 2})});
  CHECK(Refusal(*layout, {Rank(2, {Same("a", {4, 2}, 0), Same("b", {4, 2}, 14)})}) ==
        "rank 2's parameters \"a\" and \"b\" share byte 14 of memory 0 without being the same");
  CHECK(Refusal(*layout, {Rank(2, {Same("a", {4, 2}, 0), Same("b", {4, 2}, 0)})}).find("share byte 0") !=
        std::string::npos);
  EngineParameter elsewhere = Same("b", {4, 2}, 14);
  elsewhere.memory = 1;
  RankDescription rank = Rank(2, {Same("a", {4, 2}, 0), elsewhere});
  rank.memories.push_back(100);
  const auto apart = Compile(*layout, {rank});
  REQUIRE((*apart)[0].copies().size() == 2);
  CHECK((*apart)[0].copies()[1].memory == 1);
}

TEST_CASE("A tied head counts once") {
  const auto layout = Layout({Tensor("embed", {4, 2})});
  const EngineParameter head = Parameter("head", {4, 2}, 8, {{"embed", {0, 0}, {4, 2}, {0, 0}}});
  const auto plan = Compile(*layout, {Rank(0, {Same("embed", {4, 2}, 8), head})});
  CHECK(CopiedBytes((*plan)[0]) == 16);
  CHECK(WhereTo(*plan, 0) == Places{{0, 8}});
  // At one place, but made of other rows.
  EngineParameter other =
      Parameter("head", {4, 2}, 8, {{"embed", {2, 0}, {2, 2}, {0, 0}}, {"embed", {0, 0}, {2, 2}, {2, 0}}});
  CHECK(Refusal(*layout, {Rank(0, {Same("embed", {4, 2}, 8), other})}).find("share byte 8") != std::string::npos);
}

TEST_CASE("Columns of one buffer may be parameters of their own, as long as they are apart") {
  const auto layout = Layout({Tensor("a", {3, 2}), Tensor("b", {3, 2})});
  EngineParameter a = Same("a", {3, 2}, 0);
  EngineParameter b = Same("b", {3, 2}, 4);
  a.strides = b.strides = {4, 1};
  const auto plan = Compile(*layout, {Rank(0, {a, b})});
  CHECK(WhereTo(*plan, 10) == Places{{0, 18}});
  CHECK(WhereTo(*plan, 12 + 10) == Places{{0, 22}});
  b.offset = 2;
  CHECK(Refusal(*layout, {Rank(0, {a, b})}).find("share byte 2") != std::string::npos);
}

TEST_CASE("Parameters that leave their memory or overlap themselves are refused") {
  const auto layout = Layout({Tensor("a", {4, 2})});
  RankDescription rank = Rank(1, {Same("a", {4, 2}, 8)});
  rank.memories[0] = 23;
  CHECK(Refusal(*layout, {rank}).find("rank 1's parameter \"a\": shape [4, 2] of BF16") == 0);
  rank = Rank(1, {Same("a", {4, 2}, 8)});
  rank.parameters[0].memory = 1;
  CHECK(Refusal(*layout, {rank}).find("it lies in memory 1 of 1") != std::string::npos);
  rank = Rank(1, {Same("a", {4, 2}, 8)});
  rank.parameters[0].strides = {1, 1};
  CHECK(Refusal(*layout, {rank}).find("overlap or interleave") != std::string::npos);
  rank = Rank(1, {Same("a", {4, 2}, 8)});
  rank.memories.clear();
  CHECK(Refusal(*layout, {rank}).find("memory 0 of 0") != std::string::npos);
}

TEST_CASE("A parameter that lies too scattered is for the directory") {
  const uint64_t side = 1025;
  const auto cube = Layout({Tensor("cube", {side, side, side})});
  EngineParameter reversed = Same("cube", {side, side, side}, 0);
  reversed.strides = {1, side, side * side};
  CHECK(Refusal(*cube, {Rank(0, {reversed})}).find("rank 0's parameter \"cube\" takes more than 1048576 copies") == 0);
  const auto row = Layout({Tensor("row", {side})});
  EngineParameter padded = Parameter("padded", {side, side, side}, 0, {{"row", {0}, {side}, {0, 0, 0}}});
  padded.strides = {2, 2 * side, 2 * side * (side + 1)};
  padded.padding = {{{0, 1, 0}, {1, side - 1, side}}, {{1, 0, 0}, {side - 1, side, side}}};
  CHECK(Refusal(*row, {Rank(0, {padded})}).find("rank 0's parameter \"padded\" takes more than 1048576 copies") == 0);
  // One rank has every column elsewhere, another one every row: neither is cut by what the other has.
  const auto layout = Layout({Tensor("w", {2048, 1024})});
  EngineParameter columns = Parameter("columns", {2048, 1024}, 0, {});
  for (uint64_t i = 0; i < 1024; ++i) columns.slices.push_back({"w", {0, i}, {2048, 1}, {0, 1023 - i}});
  EngineParameter rows = Parameter("rows", {2048, 1024}, 0, {});
  for (uint64_t i = 0; i < 2048; ++i) rows.slices.push_back({"w", {i, 0}, {1, 1024}, {2047 - i, 0}});
  const auto plan = Compile(*layout, {Rank(0, {columns}), Rank(1, {rows})});
  CHECK(WhereTo(*plan, 2 * (5 * 1024 + 3)) == Places{{0, 2 * (5 * 1024 + 1020)}, {1, 2 * (2042 * 1024 + 3)}});
}

}  // namespace
}  // namespace lockstep::engine
