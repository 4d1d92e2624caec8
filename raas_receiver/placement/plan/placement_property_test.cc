// What the plans of random engines do is compared with what the descriptions say, element by element.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "raas_receiver/placement/plan/placement_plan.h"
#include "raas_receiver/placement/plan/random_engine.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kCases = 2000;

using Memory = std::vector<uint8_t>;

std::shared_ptr<const PlacementPlan> Compile(const TestEngine& engine) {
  const auto plan = PlacementPlan::Compile(*engine.layout, engine.ranks, engine.unused);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  return *plan;
}

uint64_t ElementBytes(model::DType dtype) {
  return model::FindDType(dtype)->bits / 8;
}

// Byte of the memory where the element of `parameter` at `at` + `index` begins; `index` may have fewer dimensions.
uint64_t ByteOf(const EngineParameter& parameter, const layout::Extents& at, const layout::Extents& index) {
  uint64_t byte = parameter.offset;
  const size_t leading = parameter.shape.size() - index.size();
  for (size_t k = 0; k < parameter.shape.size(); ++k) {
    const uint64_t here = at[k] + (k < leading ? 0 : index[k - leading]);
    byte += here * parameter.strides[k] * ElementBytes(parameter.dtype);
  }
  return byte;
}

// Calls visit(buffer, target byte, source byte) for every byte that the descriptions give, one element after the other,
// and zero(buffer, target byte) for those of elements, or of their lower halves, that nothing gives.
template <typename Visit, typename Zero>
void ForEachByte(const TestEngine& engine, Visit visit, Zero zero) {
  uint32_t first_buffer = 0;
  for (const RankDescription& rank : engine.ranks) {
    for (const EngineParameter& parameter : rank.parameters) {
      for (const Slice& slice : parameter.slices) {
        const auto& tensors = engine.layout->tensors();
        const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                         [&](const model::TensorMeta& one) { return one.name == slice.tensor; });
        const uint64_t bytes = ElementBytes(tensor->dtype);
        const uint64_t lower = ElementBytes(parameter.dtype) - bytes;
        layout::ForEachIndex(slice.shape, [&](const layout::Extents& index) {
          const uint64_t source = tensor->offset + layout::FlatIndex(tensor->shape, slice.from, index) * bytes;
          const uint64_t target = ByteOf(parameter, slice.at, index);
          for (uint64_t i = 0; i < lower; ++i) zero(first_buffer + parameter.memory, target + i);
          for (uint64_t i = 0; i < bytes; ++i) visit(first_buffer + parameter.memory, target + lower + i, source + i);
        });
      }
      for (const Padding& padding : parameter.padding) {
        layout::ForEachIndex(padding.shape, [&](const layout::Extents& index) {
          const uint64_t target = ByteOf(parameter, padding.at, index);
          for (uint64_t i = 0; i < ElementBytes(parameter.dtype); ++i)
            zero(first_buffer + parameter.memory, target + i);
        });
      }
    }
    first_buffer += static_cast<uint32_t>(rank.memories.size());
  }
}

using Targets = std::set<std::pair<uint32_t, uint64_t>>;  // buffer and byte

std::vector<Targets> TargetsByRowRanges(const PlacementPlan& plan, uint64_t data_bytes) {
  std::vector<Targets> targets(data_bytes);
  for (uint64_t position = 0; position < data_bytes; ++position) {
    const auto range = plan.RowRangeAt(position);
    if (range == plan.row_ranges().end() || position < range->offset) continue;
    const uint64_t row = (position - range->offset) / range->pitch;
    const uint64_t column = (position - range->offset) % range->pitch;
    for (const ColumnCopy& copy : plan.column_copies(*range)) {
      if (column < copy.column || column >= copy.column + copy.bytes) continue;
      targets[position].emplace(copy.buffer, copy.target_offset + row * copy.target_pitch + (column - copy.column));
    }
  }
  return targets;
}

TEST_CASE("Random engines: copies and zeros fill every memory as the description says, and write nothing else") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    Memory data(engine.layout->data_bytes());
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Between(0, 255));
    std::vector<Memory> expected, filled;
    for (const TargetBuffer& buffer : plan->buffers()) expected.emplace_back(buffer.bytes, 0xa5);
    filled = expected;
    ForEachByte(
        engine,
        [&](uint32_t buffer, uint64_t target, uint64_t source) { expected[buffer].at(target) = data.at(source); },
        [&](uint32_t buffer, uint64_t target) { expected[buffer].at(target) = 0; });
    for (uint32_t buffer = 0; buffer < plan->buffers().size(); ++buffer) {
      std::vector<bool> written(filled[buffer].size());
      for (const layout::StridedCopy& copy : plan->copies(buffer)) {
        for (uint64_t row = 0; row < copy.rows; ++row) {
          for (uint64_t i = 0; i < copy.row_bytes; ++i) {
            const uint64_t target = copy.target_offset + row * copy.target_pitch + i;
            REQUIRE_FALSE(written.at(target));
            written[target] = true;
            filled[buffer][target] = data.at(copy.source_offset + row * copy.source_pitch + i);
          }
        }
      }
      for (const StridedRange& range : plan->zeros(buffer)) {
        for (uint64_t row = 0; row < range.rows; ++row) {
          for (uint64_t i = 0; i < range.row_bytes; ++i) {
            const uint64_t target = range.offset + row * range.pitch + i;
            REQUIRE_FALSE(written.at(target));
            written[target] = true;
            filled[buffer][target] = 0;
          }
        }
      }
    }
    REQUIRE(filled == expected);
  }
}

TEST_CASE(
    "Random engines: by row ranges and column copies every byte goes to the very places that the description says") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    std::vector<Targets> expected(engine.layout->data_bytes());
    ForEachByte(
        engine, [&](uint32_t buffer, uint64_t target, uint64_t source) { expected[source].emplace(buffer, target); },
        [](uint32_t, uint64_t) {});
    REQUIRE(TargetsByRowRanges(*plan, expected.size()) == expected);
  }
}

TEST_CASE("Random engines: row ranges rise without overlap, and their copies by column, within row and buffer") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    uint64_t end = 0;
    for (const RowRange& range : plan->row_ranges()) {
      REQUIRE(range.offset >= end);
      end = range.end();
      REQUIRE(range.copies > 0);
      uint64_t column = 0;
      for (const ColumnCopy& copy : plan->column_copies(range)) {
        REQUIRE(copy.column >= column);
        column = copy.column;
        REQUIRE(copy.bytes > 0);
        REQUIRE(copy.column + copy.bytes <= range.pitch);
        REQUIRE((range.rows > 1 || copy.target_pitch == 0));
        REQUIRE(copy.target_offset + (range.rows - 1) * copy.target_pitch + copy.bytes <=
                plan->buffers()[copy.buffer].bytes);
      }
    }
    REQUIRE(end <= engine.layout->data_bytes());
  }
}

// The same engine, described in other words: slices cut and in another order.
TestEngine Redescribed(layout::Random& random, const TestEngine& engine) {
  TestEngine other = engine;
  for (RankDescription& rank : other.ranks) {
    for (EngineParameter& parameter : rank.parameters) {
      std::vector<Slice> slices;
      for (const Slice& slice : parameter.slices) {
        for (const layout::Piece& box : layout::RandomTiling(random, slice.shape)) {
          Slice cut = slice;
          cut.shape = box.size;
          const size_t leading = slice.at.size() - slice.from.size();
          for (size_t k = 0; k < box.size.size(); ++k) {
            cut.from[k] += box.source[k];
            cut.at[leading + k] += box.source[k];
          }
          slices.push_back(std::move(cut));
        }
      }
      random.Shuffle(slices);
      if (parameter.name != "tied") parameter.slices = std::move(slices);
    }
    std::erase_if(rank.parameters, [](const EngineParameter& one) { return one.name == "tied"; });
    random.Shuffle(rank.parameters);
  }
  return other;
}

TEST_CASE("Random engines: a plan does the same, however the ranks are described") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    const auto other = Compile(Redescribed(random, engine));
    REQUIRE(other->buffers() == plan->buffers());
    for (uint32_t buffer = 0; buffer < plan->buffers().size(); ++buffer) {
      REQUIRE(std::ranges::equal(other->copies(buffer), plan->copies(buffer)));
      REQUIRE(std::ranges::equal(other->zeros(buffer), plan->zeros(buffer)));
    }
    REQUIRE(other->row_ranges().size() == plan->row_ranges().size());
  }
}

}  // namespace
}  // namespace lockstep::placement
