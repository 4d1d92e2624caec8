// An engine whose ranks do what portions say, and what its memory must hold: said by the plan's copies, one byte after
// the other.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "raas_receiver/placement/plan/random_engine.h"
#include "raas_receiver/placement/writes/portion_testing.h"
#include "raas_receiver/placement/writes/staged_writes.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::placement {

using Contents = std::vector<Bytes>;  // by buffer

inline std::shared_ptr<const PlacementPlan> CompilePlan(const model::ModelLayout& layout,
                                                        const std::vector<RankDescription>& ranks,
                                                        const std::vector<std::string>& unused = {}) {
  auto plan = PlacementPlan::Compile(layout, ranks, unused);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  return *plan;
}

// All that `plan` gives `buffer` of `data`, and its zeros; the rest stays.
inline void Fill(const PlacementPlan& plan, uint32_t buffer, ByteView data, Bytes& memory) {
  for (const StridedRange& range : plan.zeros(buffer)) {
    for (uint64_t row = 0; row < range.rows; ++row) {
      for (uint64_t i = 0; i < range.row_bytes; ++i) memory.at(range.offset + row * range.pitch + i) = std::byte{0};
    }
  }
  for (const layout::StridedCopy& copy : plan.copies(buffer)) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      for (uint64_t i = 0; i < copy.row_bytes; ++i) {
        memory.at(copy.target_offset + row * copy.target_pitch + i) =
            data[copy.source_offset + row * copy.source_pitch + i];
      }
    }
  }
}

// The plan's buffers, all bytes 0xa5 at first, and a writer for each of its ranks.
class TestMemory {
 public:
  explicit TestMemory(const PlacementPlan& plan) : plan_(plan) {
    for (uint32_t buffer = 0; buffer < plan.buffers().size(); ++buffer) {
      const auto [rank, memory, bytes] = plan.buffers()[buffer];
      contents_.emplace_back(bytes, std::byte{0xa5});
      buffers_[{rank, memory}] = buffer;
      if (rank < writers_.size()) continue;
      writers_.resize(rank);  // ranks without memory
      writers_.push_back(
          std::make_unique<PortionWriter>([this, rank](const os::UniqueFd& portion) { return Write(rank, portion); }));
    }
  }

  StagedWrites::Writers writers() const {
    StagedWrites::Writers writers;
    for (const auto& writer : writers_) writers.push_back(writer.get());
    return writers;
  }
  const Contents& contents() const { return contents_; }
  // What contents() is once the buffers in `wanted` hold `data`.
  Contents Expected(ByteView data, const std::vector<bool>& wanted) const {
    Contents expected;
    for (uint32_t buffer = 0; buffer < plan_.buffers().size(); ++buffer) {
      Bytes& memory = expected.emplace_back(plan_.buffers()[buffer].bytes, std::byte{0xa5});
      if (wanted[buffer]) Fill(plan_, buffer, data, memory);
    }
    return expected;
  }
  std::vector<bool> all() const { return std::vector<bool>(plan_.buffers().size(), true); }

 private:
  Status Write(uint32_t rank, const os::UniqueFd& portion) {
    const bool whole = ReadPortion(ContentOf(portion), [&](uint32_t memory, uint64_t offset, std::byte value) {
      contents_.at(buffers_.at({rank, memory})).at(offset) = value;
    });
    return whole ? OkStatus() : Status(ErrorCode::kInternal, "a portion is none");
  }

  const PlacementPlan& plan_;
  Contents contents_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> buffers_;  // by rank and memory
  std::vector<std::unique_ptr<PortionWriter>> writers_;        // by rank
};

}  // namespace lockstep::placement
