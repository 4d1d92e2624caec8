// An engine with host memory, and what its memory must hold: said by the plan's copies, one byte after the other.
#pragma once

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "raas_receiver/placement/plan/random_engine.h"
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

// The plan's buffers as memory of this process, all bytes 0xa5 at first.
class HostEngine {
 public:
  explicit HostEngine(const PlacementPlan& plan) : plan_(plan) {
    for (const TargetBuffer& buffer : plan.buffers()) {
      auto lent = os::CreateMemfdSegment("buffer", buffer.bytes);
      REQUIRE(lent.ok());
      auto mapped = os::AdoptSegment(os::UniqueFd(fcntl(lent->fd(), F_DUPFD_CLOEXEC, 0)), buffer.bytes,
                                     os::Access::kReadWrite, "");
      REQUIRE(mapped.ok());
      std::fill_n(lent->data(), lent->bytes(), std::byte{0xa5});
      segments_.push_back(*std::move(lent));
      memories_.push_back(NewHostMemory(*std::move(mapped)));
    }
  }

  StagedWrites::Memories memories() const {
    StagedWrites::Memories memories;
    for (const auto& memory : memories_) memories.push_back(memory.get());
    return memories;
  }
  Contents contents() const {
    Contents contents;
    for (const os::MappedSegment& segment : segments_) {
      contents.emplace_back(segment.data(), segment.data() + segment.bytes());
    }
    return contents;
  }
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
  const PlacementPlan& plan_;
  std::vector<os::MappedSegment> segments_;
  std::vector<std::unique_ptr<TargetMemory>> memories_;
};

}  // namespace lockstep::placement
