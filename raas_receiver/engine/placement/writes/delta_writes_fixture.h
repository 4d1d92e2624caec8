// An engine that executes write batches, and the content that its memory must have: that is copied byte by byte, as the
// plan says.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "raas_receiver/engine/placement/plan/random_engine.h"
#include "raas_receiver/engine/placement/writes/delta_writes.h"
#include "raas_receiver/engine/placement/writes/write_batch_testing.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::engine {

using Contents = std::vector<std::vector<Bytes>>;  // by rank and memory
using Ranks = std::vector<uint32_t>;

inline std::shared_ptr<const PlacementPlan> CompilePlan(const model::ModelLayout& layout,
                                                        const std::vector<RankDescription>& ranks,
                                                        const std::vector<std::string>& unused = {}) {
  auto plan = CompilePlacement(layout, ranks, unused);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  return *plan;
}

// All that `rank` has of `data`, and its zeros; the rest stays.
inline void Fill(const RankPlacement& rank, ByteView data, std::vector<Bytes>& memories) {
  for (const auto& [memory, range] : rank.zeros()) {
    for (uint64_t row = 0; row < range.rows; ++row) {
      for (uint64_t i = 0; i < range.row_bytes; ++i) {
        memories.at(memory).at(range.offset + row * range.pitch + i) = std::byte{0};
      }
    }
  }
  for (const auto& [memory, copy] : rank.copies()) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      for (uint64_t i = 0; i < copy.row_bytes; ++i) {
        memories.at(memory).at(copy.target_offset + row * copy.target_pitch + i) =
            data[copy.source_offset + row * copy.source_pitch + i];
      }
    }
  }
}

// The ranks' memories, all bytes 0xa5 at first.
class TestMemory {
 public:
  TestMemory(std::shared_ptr<const PlacementPlan> plan, const std::vector<RankDescription>& ranks)
      : plan_(std::move(plan)) {
    for (const RankDescription& rank : ranks) {
      std::vector<Bytes>& memories = first_.emplace_back();
      for (const uint64_t bytes : rank.memories) memories.emplace_back(bytes, std::byte{0xa5});
    }
    contents_ = first_;
  }

  // Does what write batches say.
  DeltaWrites::Pass pass() {
    return [this](uint32_t rank, const os::UniqueFd& batch) {
      std::lock_guard lock(mutex_);
      ++batches_;
      const bool whole = ReadWriteBatch(ContentOf(batch), [&](uint32_t memory, uint64_t offset, std::byte value) {
        contents_.at(rank).at(memory).at(offset) = value;
      });
      return whole ? OkStatus() : Status(ErrorCode::kInternal, "a write batch is none");
    };
  }
  int batches() const { return batches_; }
  const Contents& contents() const { return contents_; }
  // What contents() is once `ranks` hold `data`.
  Contents Expected(ByteView data, const Ranks& ranks) const {
    Contents expected = first_;
    for (const uint32_t rank : ranks) Fill((*plan_)[rank], data, expected[rank]);
    return expected;
  }
  Ranks all() const {
    Ranks all(plan_->size());
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  // Has `ranks` write everything.
  void WriteWhole(ByteView data, const Ranks& ranks) {
    const DeltaWrites::Pass write = pass();
    for (const uint32_t rank : ranks) {
      BatchWriter writer(data, [&](const os::UniqueFd& batch) { return write(rank, batch); });
      REQUIRE(writer.Fill((*plan_)[rank]).ok());
      REQUIRE(writer.Flush().ok());
      CHECK(writer.written_bytes() == (*plan_)[rank].bytes());
    }
  }

 private:
  const std::shared_ptr<const PlacementPlan> plan_;
  Contents first_;
  std::mutex mutex_;
  Contents contents_;
  int batches_ = 0;
};

}  // namespace lockstep::engine
