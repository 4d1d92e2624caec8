// What the plans of random engines do is compared with what the descriptions say, element by element.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "raas_receiver/engine/placement/plan/placement_plan.h"
#include "raas_receiver/engine/placement/plan/random_engine.h"

namespace lockstep::engine {
namespace {

constexpr uint64_t kCases = 2000;

using Memory = std::vector<uint8_t>;

std::shared_ptr<const PlacementPlan> Compile(const TestEngine& engine) {
  const auto plan = CompilePlacement(*engine.layout, engine.ranks, engine.unused);
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

// A memory of a rank.
using Place = std::pair<uint32_t, uint32_t>;

// Calls visit(place, target byte, source byte) for every byte that the descriptions give, one element after the other,
// and zero(place, target byte) for those of elements, or of their lower halves, that nothing gives.
template <typename Visit, typename Zero>
void ForEachByte(const TestEngine& engine, Visit visit, Zero zero) {
  for (const RankDescription& rank : engine.ranks) {
    for (const EngineParameter& parameter : rank.parameters) {
      const Place place{static_cast<uint32_t>(&rank - engine.ranks.data()), parameter.memory};
      for (const Slice& slice : parameter.slices) {
        const auto& tensors = engine.layout->tensors();
        const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                         [&](const model::TensorMeta& one) { return one.name == slice.tensor; });
        const uint64_t bytes = ElementBytes(tensor->dtype);
        const uint64_t lower = ElementBytes(parameter.dtype) - bytes;
        layout::ForEachIndex(slice.shape, [&](const layout::Extents& index) {
          const uint64_t source = tensor->offset + layout::FlatIndex(tensor->shape, slice.from, index) * bytes;
          const uint64_t target = ByteOf(parameter, slice.at, index);
          for (uint64_t i = 0; i < lower; ++i) zero(place, target + i);
          for (uint64_t i = 0; i < bytes; ++i) visit(place, target + lower + i, source + i);
        });
      }
      for (const Padding& padding : parameter.padding) {
        layout::ForEachIndex(padding.shape, [&](const layout::Extents& index) {
          const uint64_t target = ByteOf(parameter, padding.at, index);
          for (uint64_t i = 0; i < ElementBytes(parameter.dtype); ++i) zero(place, target + i);
        });
      }
    }
  }
}

using Targets = std::set<std::pair<Place, uint64_t>>;  // and byte

TEST_CASE("Random engines: copies and zeros fill every memory as the description says, and write nothing else") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    Memory data(engine.layout->data_bytes());
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Between(0, 255));
    std::map<Place, Memory> expected;
    for (uint32_t rank = 0; rank < plan->size(); ++rank) {
      const std::vector<uint64_t>& sizes = engine.ranks[rank].memories;
      for (uint32_t memory = 0; memory < sizes.size(); ++memory) expected[{rank, memory}].assign(sizes[memory], 0xa5);
    }
    std::map<Place, Memory> filled = expected;
    std::map<Place, std::vector<bool>> written;
    for (const auto& [place, memory] : filled) written[place].resize(memory.size());
    const auto write = [&](Place place, uint64_t target, uint8_t value) {
      REQUIRE_FALSE(written[place].at(target));
      written[place][target] = true;
      filled[place][target] = value;
    };
    ForEachByte(
        engine, [&](Place place, uint64_t target, uint64_t source) { expected[place].at(target) = data.at(source); },
        [&](Place place, uint64_t target) { expected[place].at(target) = 0; });
    for (uint32_t rank = 0; rank < plan->size(); ++rank) {
      for (const auto& [memory, copy] : (*plan)[rank].copies()) {
        for (uint64_t row = 0; row < copy.rows; ++row) {
          for (uint64_t i = 0; i < copy.row_bytes; ++i) {
            write({rank, memory}, copy.target_offset + row * copy.target_pitch + i,
                  data.at(copy.source_offset + row * copy.source_pitch + i));
          }
        }
      }
      for (const auto& [memory, range] : (*plan)[rank].zeros()) {
        for (uint64_t row = 0; row < range.rows; ++row) {
          for (uint64_t i = 0; i < range.row_bytes; ++i) {
            write({rank, memory}, range.offset + row * range.pitch + i, 0);
          }
        }
      }
    }
    REQUIRE(filled == expected);
  }
}

// Rising, within `bytes`.
std::vector<uint32_t> SomePositions(layout::Random& random, uint64_t bytes) {
  std::vector<uint32_t> positions;
  for (uint32_t at = 0; at < bytes; ++at) {
    if (!random.OneIn(3)) positions.push_back(at);
  }
  return positions;
}

TEST_CASE("Random engines: changed bytes go to the very places that the description says, however they are cut") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    const uint64_t data_bytes = engine.layout->data_bytes();
    std::vector<Targets> described(data_bytes), expected(data_bytes), found(data_bytes);
    ForEachByte(
        engine, [&](Place place, uint64_t target, uint64_t source) { described[source].emplace(place, target); },
        [](Place, uint64_t) {});
    for (uint64_t offset = 0; offset < data_bytes;) {
      const uint64_t bytes = std::min(random.Between(1, 200), data_bytes - offset);
      const std::vector<uint32_t> positions = SomePositions(random, bytes);
      for (const uint32_t position : positions) expected[offset + position] = described[offset + position];
      for (uint32_t rank = 0; rank < plan->size(); ++rank) {
        const auto add = [&](uint32_t memory, uint64_t to, std::span<const uint32_t> run) {
          REQUIRE_FALSE(run.empty());
          for (const uint32_t position : run) {
            REQUIRE(found[offset + position].emplace(Place{rank, memory}, to + position).second);
          }
        };
        (*plan)[rank].ForEachRun({offset, bytes}, positions, add);
      }
      offset += bytes;
    }
    REQUIRE(found == expected);
  }
}

TEST_CASE("Random engines: ranges of the data section are copied to the very places that the description says") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    layout::Random random(seed);
    const TestEngine engine = RandomEngineMaker(random).Make();
    const auto plan = Compile(engine);
    const uint64_t data_bytes = engine.layout->data_bytes();
    std::vector<Targets> expected(data_bytes), found(data_bytes);
    ForEachByte(
        engine, [&](Place place, uint64_t target, uint64_t source) { expected[source].emplace(place, target); },
        [](Place, uint64_t) {});
    for (uint64_t offset = 0; offset < data_bytes;) {
      const uint64_t bytes = std::min(random.Between(1, 200), data_bytes - offset);
      for (uint32_t rank = 0; rank < plan->size(); ++rank) {
        (*plan)[rank].ForEachCopy({offset, bytes}, [&](uint32_t memory, const layout::StridedCopy& copy) {
          for (uint64_t row = 0; row < copy.rows; ++row) {
            for (uint64_t i = 0; i < copy.row_bytes; ++i) {
              const uint64_t source = copy.source_offset + row * copy.source_pitch + i;
              REQUIRE((source >= offset && source < offset + bytes));
              const uint64_t target = copy.target_offset + row * copy.target_pitch + i;
              REQUIRE(found[source].emplace(Place{rank, memory}, target).second);
            }
          }
        });
      }
      offset += bytes;
    }
    REQUIRE(found == expected);
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
    REQUIRE(other->size() == plan->size());
    for (uint32_t rank = 0; rank < plan->size(); ++rank) {
      REQUIRE(std::ranges::equal((*other)[rank].copies(), (*plan)[rank].copies()));
      REQUIRE(std::ranges::equal((*other)[rank].zeros(), (*plan)[rank].zeros()));
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
