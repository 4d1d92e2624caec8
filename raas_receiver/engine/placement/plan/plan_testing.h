// For tests of plans: models, ranks and parameters in a few words, and where a plan puts a byte.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "raas_receiver/engine/placement/plan/placement_plan.h"

namespace lockstep::engine {

using Places = std::vector<std::pair<uint32_t, uint64_t>>;  // rank and byte

inline std::shared_ptr<const model::ModelLayout> Layout(std::vector<model::TensorMeta> tensors) {
  REQUIRE(model::AssignOffsets(tensors).ok());
  auto layout = model::ModelLayout::Create(std::move(tensors));
  INFO(layout.status().ToString());
  REQUIRE(layout.ok());
  return *layout;
}

inline model::TensorMeta Tensor(const std::string& name, layout::Extents shape,
                                model::DType dtype = model::DType::kBF16) {
  return {.name = name, .dtype = dtype, .shape = std::move(shape)};
}

// A contiguous parameter in bf16.
inline EngineParameter Parameter(const std::string& name, const layout::Extents& shape, uint64_t offset,
                                 std::vector<Slice> slices) {
  return {.name = name,
          .shape = shape,
          .strides = layout::ContiguousStrides(shape),
          .offset = offset,
          .slices = std::move(slices)};
}

// All of the tensor of the same name.
inline EngineParameter Same(const std::string& name, const layout::Extents& shape, uint64_t offset) {
  return Parameter(name, shape, offset, {{name, layout::Extents(shape.size()), shape, layout::Extents(shape.size())}});
}

inline RankDescription Rank(uint32_t number, std::vector<EngineParameter> parameters) {
  return {.rank = number, .world = 4, .memories = {uint64_t{1} << 34}, .parameters = std::move(parameters)};
}

inline std::shared_ptr<const PlacementPlan> Compile(const model::ModelLayout& layout,
                                                    const std::vector<RankDescription>& ranks,
                                                    const std::vector<std::string>& unused = {}) {
  const auto plan = CompilePlacement(layout, ranks, unused);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  return *plan;
}

inline std::string Refusal(const model::ModelLayout& layout, const std::vector<RankDescription>& ranks,
                           const std::vector<std::string>& unused = {}) {
  const auto plan = CompilePlacement(layout, ranks, unused);
  REQUIRE(plan.status().code() == ErrorCode::kBadData);
  return plan.status().message();
}

inline Places WhereTo(const PlacementPlan& plan, uint64_t position) {
  Places where;
  const uint32_t first = 0;
  for (uint32_t rank = 0; rank < plan.size(); ++rank) {
    plan[rank].ForEachRun({position, 1}, std::span(&first, 1),
                          [&](uint32_t, uint64_t to, std::span<const uint32_t>) { where.emplace_back(rank, to); });
  }
  std::sort(where.begin(), where.end());
  return where;
}

inline uint64_t CopiedBytes(const RankPlacement& rank) {
  uint64_t bytes = 0;
  for (const MemoryCopy& one : rank.copies()) bytes += one.copy.bytes();
  return bytes;
}

inline std::vector<StridedRange> Zeros(const RankPlacement& rank) {
  std::vector<StridedRange> zeros;
  for (const MemoryZeros& one : rank.zeros()) zeros.push_back(one.range);
  return zeros;
}

}  // namespace lockstep::engine
