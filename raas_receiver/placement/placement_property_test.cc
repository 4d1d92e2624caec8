// What the plans of random engines do is compared with what the descriptions say, element by element.
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "raas_receiver/placement/placement_plan.h"
#include "raas_receiver/placement/random_engine.h"

namespace lockstep {
namespace {

constexpr uint64_t kCases = 2000;

using Memory = std::vector<uint8_t>;

std::shared_ptr<const PlacementPlan> Compile(const Engine& engine) {
  const auto plan = PlacementPlan::Compile(*engine.layout, engine.ranks, engine.unused);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  return *plan;
}

uint64_t ElementBytes(DType dtype) {
  return FindDType(dtype)->bits / 8;
}

// Byte of the memory where the element of `parameter` at `at` + `index` begins; `index` may have fewer dimensions.
uint64_t ByteOf(const EngineParameter& parameter, const Extents& at, const Extents& index) {
  uint64_t byte = parameter.offset;
  const size_t leading = parameter.shape.size() - index.size();
  for (size_t k = 0; k < parameter.shape.size(); ++k) {
    const uint64_t here = at[k] + (k < leading ? 0 : index[k - leading]);
    byte += here * parameter.strides[k] * ElementBytes(parameter.dtype);
  }
  return byte;
}

// Calls visit(window, target byte, source byte) for every byte that the descriptions give, one element after the other,
// and zero(window, target byte) for those of elements, or of their lower halves, that nothing gives.
template <typename Visit, typename Zero>
void ForEachByte(const Engine& engine, Visit visit, Zero zero) {
  uint32_t first_window = 0;
  for (const RankDescription& rank : engine.ranks) {
    for (const EngineParameter& parameter : rank.parameters) {
      for (const Slice& slice : parameter.slices) {
        const auto& tensors = engine.layout->tensors();
        const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                         [&](const TensorMeta& one) { return one.name == slice.tensor; });
        const uint64_t bytes = ElementBytes(tensor->dtype);
        const uint64_t lower = ElementBytes(parameter.dtype) - bytes;
        ForEachIndex(slice.shape, [&](const Extents& index) {
          const uint64_t source = tensor->offset + FlatIndex(tensor->shape, slice.from, index) * bytes;
          const uint64_t target = ByteOf(parameter, slice.at, index);
          for (uint64_t i = 0; i < lower; ++i) zero(first_window + parameter.memory, target + i);
          for (uint64_t i = 0; i < bytes; ++i) visit(first_window + parameter.memory, target + lower + i, source + i);
        });
      }
      for (const Padding& padding : parameter.padding) {
        ForEachIndex(padding.shape, [&](const Extents& index) {
          const uint64_t target = ByteOf(parameter, padding.at, index);
          for (uint64_t i = 0; i < ElementBytes(parameter.dtype); ++i)
            zero(first_window + parameter.memory, target + i);
        });
      }
    }
    first_window += static_cast<uint32_t>(rank.halves[0].size());
  }
}

using Targets = std::set<std::pair<uint32_t, uint64_t>>;  // window and byte

std::vector<Targets> TargetsByBands(const PlacementPlan& plan, uint64_t data_bytes) {
  std::vector<Targets> targets(data_bytes);
  for (uint64_t position = 0; position < data_bytes; ++position) {
    const auto band = plan.BandAt(position);
    if (band == plan.bands().end() || position < band->offset) continue;
    const uint64_t row = (position - band->offset) / band->pitch;
    const uint64_t column = (position - band->offset) % band->pitch;
    for (const Way& way : plan.ways(*band)) {
      if (column < way.column || column >= way.column + way.bytes) continue;
      targets[position].emplace(way.window, way.target_offset + row * way.target_pitch + (column - way.column));
    }
  }
  return targets;
}

TEST_CASE("random engines: copies and zeros fill every memory as the description says, and write nothing else") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Engine engine = EngineMaker(random).Make();
    const auto plan = Compile(engine);
    Memory data(engine.layout->data_bytes());
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Between(0, 255));
    std::vector<Memory> expected, filled;
    for (const Window& window : plan->windows()) expected.emplace_back(window.bytes, 0xa5);
    filled = expected;
    ForEachByte(
        engine,
        [&](uint32_t window, uint64_t target, uint64_t source) { expected[window].at(target) = data.at(source); },
        [&](uint32_t window, uint64_t target) { expected[window].at(target) = 0; });
    for (uint32_t window = 0; window < plan->windows().size(); ++window) {
      uint64_t bytes = 0;
      std::vector<bool> written(filled[window].size());
      for (const StridedCopy& copy : plan->copies(window)) {
        for (uint64_t row = 0; row < copy.rows; ++row) {
          for (uint64_t i = 0; i < copy.row_bytes; ++i, ++bytes) {
            const uint64_t target = copy.target_offset + row * copy.target_pitch + i;
            REQUIRE_FALSE(written.at(target));
            written[target] = true;
            filled[window][target] = data.at(copy.source_offset + row * copy.source_pitch + i);
          }
        }
      }
      REQUIRE(bytes == plan->copied_bytes(window));
      for (const StridedRange& range : plan->zeros(window)) {
        for (uint64_t row = 0; row < range.rows; ++row) {
          for (uint64_t i = 0; i < range.row_bytes; ++i) {
            const uint64_t target = range.offset + row * range.pitch + i;
            REQUIRE_FALSE(written.at(target));
            written[target] = true;
            filled[window][target] = 0;
          }
        }
      }
    }
    REQUIRE(filled == expected);
  }
}

TEST_CASE("random engines: every byte goes by bands and ways to the very places that the description says") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Engine engine = EngineMaker(random).Make();
    const auto plan = Compile(engine);
    std::vector<Targets> expected(engine.layout->data_bytes());
    ForEachByte(
        engine, [&](uint32_t window, uint64_t target, uint64_t source) { expected[source].emplace(window, target); },
        [](uint32_t, uint64_t) {});
    REQUIRE(TargetsByBands(*plan, expected.size()) == expected);
  }
}

TEST_CASE("random engines: bands rise without overlap, and their ways by column, within row and window") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Engine engine = EngineMaker(random).Make();
    const auto plan = Compile(engine);
    uint64_t end = 0;
    for (const Band& band : plan->bands()) {
      REQUIRE(band.offset >= end);
      end = band.end();
      REQUIRE(band.ways > 0);
      uint64_t column = 0;
      for (const Way& way : plan->ways(band)) {
        REQUIRE(way.column >= column);
        column = way.column;
        REQUIRE(way.bytes > 0);
        REQUIRE(way.column + way.bytes <= band.pitch);
        REQUIRE((band.rows > 1 || way.target_pitch == 0));
        REQUIRE(way.target_offset + (band.rows - 1) * way.target_pitch + way.bytes <=
                plan->windows()[way.window].bytes);
      }
    }
    REQUIRE(end <= engine.layout->data_bytes());
  }
}

// The same engine, told in other words: slices cut and in another order.
Engine Retold(Random& random, const Engine& engine) {
  Engine other = engine;
  for (RankDescription& rank : other.ranks) {
    for (EngineParameter& parameter : rank.parameters) {
      std::vector<Slice> slices;
      for (const Slice& slice : parameter.slices) {
        for (const Piece& box : RandomTiling(random, slice.shape)) {
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

TEST_CASE("random engines: the digest is of what a plan does, not of how it was told") {
  std::set<PlacementDigest> digests;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Engine engine = EngineMaker(random).Make();
    const auto plan = Compile(engine);
    const auto retold = Compile(Retold(random, engine));
    REQUIRE(retold->digest() == plan->digest());
    REQUIRE(retold->bands().size() == plan->bands().size());
    digests.insert(plan->digest());
  }
  CHECK(digests.size() > kCases * 9 / 10);
}

}  // namespace
}  // namespace lockstep
