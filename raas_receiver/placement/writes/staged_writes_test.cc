#include "raas_receiver/placement/writes/staged_writes.h"

#include <map>

#include "common/base/status_testing.h"
#include "raas_receiver/placement/writes/staged_writes_fixture.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

RankDescription Rank(uint32_t rank, uint32_t world, std::vector<EngineParameter> parameters, uint64_t bytes) {
  RankDescription description{.rank = rank, .world = world};
  description.place.engine = "described";
  description.memories = {bytes};
  description.parameters = std::move(parameters);
  return description;
}

EngineParameter Parameter(const std::string& name, model::DType dtype, layout::Extents shape, layout::Extents strides,
                          uint64_t offset, std::vector<Slice> slices) {
  return {.name = name,
          .dtype = dtype,
          .shape = std::move(shape),
          .strides = std::move(strides),
          .offset = offset,
          .slices = std::move(slices)};
}

// Two ranks of TestModel: one has embed's left columns turned around, the other its right ones twice; norm, in every
// second place, scale and codes are with both.
std::vector<RankDescription> TwoRanks(const model::ModelLayout& layout) {
  std::map<std::string, layout::Extents> shapes;
  for (const model::TensorMeta& tensor : layout.tensors()) shapes[tensor.name] = tensor.shape;
  const uint64_t rows = shapes["embed"][0];
  const uint64_t codes = shapes["codes"][0];
  std::vector<RankDescription> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Slice columns{"embed", {0, rank * 50}, {rows, 50}, {0, 0}};
    uint64_t at = 6;
    std::vector<EngineParameter> parameters;
    const auto add = [&](const std::string& name, model::DType dtype, layout::Extents shape, layout::Extents strides,
                         Slice slice, uint64_t bytes) {
      parameters.push_back(Parameter(name, dtype, std::move(shape), std::move(strides), at, {std::move(slice)}));
      at += bytes;
    };
    if (rank == 0) add("embed", model::DType::kBF16, {rows, 50}, {1, rows}, columns, rows * 100);
    if (rank == 1) add("embed", model::DType::kBF16, {rows, 50}, {50, 1}, columns, rows * 100);
    if (rank == 1) add("head", model::DType::kBF16, {rows, 50}, {64, 1}, columns, rows * 128);
    add("norm", model::DType::kF32, {999}, {2}, {"norm", {0}, {999}, {0}}, 8 * 999);
    add("scale", model::DType::kF32, {}, {}, {"scale", {}, {}, {}}, 4);
    add("codes", model::DType::kI8, {codes}, {1}, {"codes", {0}, {codes}, {0}}, codes);
    ranks.push_back(Rank(rank, 2, std::move(parameters), at + 10));
  }
  return ranks;
}

struct Fixture {
  replica::TestModel model{11};
  std::shared_ptr<const PlacementPlan> plan = CompilePlan(*model.layout(), TwoRanks(*model.layout()));
  TestMemory memory{*plan};
  WorkerPool pool{2};

  // `versions` of the model, and the first one in the engine.
  explicit Fixture(int versions, uint32_t sparsity = 200) {
    for (int i = 0; i < versions; ++i) model.Advance(sparsity);
    REQUIRE(StagedWrites::Whole(*plan, model.data(1), memory.all()).Run(memory.writers(), pool).ok());
    REQUIRE(Holds(1));
  }
  bool Holds(Version version) const { return memory.contents() == memory.Expected(model.data(version), memory.all()); }
  Result<StagedWrites> Stage(const payload::DeltaChain& chain, Version version, uint64_t limit = kNoLimit) {
    return StagedWrites::FromChain(*plan, *model.layout(), chain, model.data(version), memory.all(), limit, pool);
  }
};

// A payload of `blocks` that nobody has checked.
std::shared_ptr<const payload::Payload> Unchecked(const replica::TestModel& model,
                                                  const std::vector<payload::DeltaBlock>& blocks) {
  return *payload::Payload::Assemble(*model.layout(), {.run = model.run(), .base = 1, .target = 2}, blocks);
}

TEST_CASE(
    "A chain leads every rank to the version, with units of 1, 2 and 4 bytes, turned around, twice, and strided") {
  Fixture fixture(6);
  const auto writes = fixture.Stage(fixture.model.Chain(1, 6), 6);
  REQUIRE(writes.ok());
  REQUIRE(writes->Run(fixture.memory.writers(), fixture.pool).ok());
  CHECK(fixture.Holds(6));
}

TEST_CASE("The same chain with the version before makes that version again, after a whole run or half of one") {
  Fixture fixture(5);
  const payload::DeltaChain chain = fixture.model.Chain(1, 5);
  const auto there = fixture.Stage(chain, 5);
  const auto back = fixture.Stage(chain, 1);
  REQUIRE((there.ok() && back.ok()));
  REQUIRE(there->Run(fixture.memory.writers(), fixture.pool).ok());
  REQUIRE(back->Run(fixture.memory.writers(), fixture.pool).ok());
  CHECK(fixture.Holds(1));
  StagedWrites::Writers one = fixture.memory.writers();
  one[0] = nullptr;
  REQUIRE(there->Run(one, fixture.pool).ok());
  CHECK_FALSE(fixture.Holds(1));
  REQUIRE(back->Run(fixture.memory.writers(), fixture.pool).ok());
  CHECK(fixture.Holds(1));
}

TEST_CASE("Without memory for lists the blocks are translated while writing, with the same outcome") {
  Fixture fixture(5);
  for (const uint64_t limit : {0, 3000, 100'000}) {
    const auto there = fixture.Stage(fixture.model.Chain(1, 5), 5, limit);
    const auto back = fixture.Stage(fixture.model.Chain(1, 5), 1, limit);
    REQUIRE((there.ok() && back.ok()));
    CHECK(there->stats().staged_bytes <= limit);
    CHECK(there->stats().written_bytes == fixture.Stage(fixture.model.Chain(1, 5), 5)->stats().written_bytes);
    REQUIRE(there->Run(fixture.memory.writers(), fixture.pool).ok());
    CHECK(fixture.Holds(5));
    REQUIRE(back->Run(fixture.memory.writers(), fixture.pool).ok());
    CHECK(fixture.Holds(1));
  }
}

TEST_CASE("Blocks that are raw, or change all over, are copied whole") {
  Fixture fixture(4, 3);
  const payload::DeltaChain chain = fixture.model.Chain(1, 4);
  CHECK(chain[0]->entries().size() == fixture.model.layout()->block_count());
  const auto writes = fixture.Stage(chain, 4);
  REQUIRE(writes.ok());
  uint64_t everything = 0;
  for (uint32_t buffer = 0; buffer < 2; ++buffer) {
    for (const layout::StridedCopy& copy : fixture.plan->copies(buffer)) everything += copy.bytes();
  }
  CHECK(writes->stats().written_bytes == everything);
  REQUIRE(writes->Run(fixture.memory.writers(), fixture.pool).ok());
  CHECK(fixture.Holds(4));
}

TEST_CASE("Only what changed is written, and counted once however many ranks take it") {
  Fixture fixture(1);
  replica::TestModel& model = fixture.model;
  const auto& tensors = model.layout()->tensors();
  const auto embed = std::find_if(tensors.begin(), tensors.end(), [](auto& one) { return one.name == "embed"; });
  const BlockIndex block = static_cast<BlockIndex>(embed->offset / model::kMinBlockBytes) + 2;
  REQUIRE(model.layout()->block_unit(block) == 2);
  payload::Changes changes;
  for (uint32_t i = 0; i < 7; ++i) {  // 100 columns a row: by turns of the left rank and of the right one
    changes.positions.push_back(50 * i);
    changes.steps.push_back(1);
  }
  payload::DeltaBlock delta{.block = block, .codec = payload::Codec::kSparse, .changes = 7};
  payload::EncodeSparse(changes, 2, payload::CodecLevel::kCompact, delta.data);
  const auto writes = fixture.Stage({Unchecked(model, {delta})}, 1);
  REQUIRE(writes.ok());
  CHECK(writes->stats().positions == 7);
  // The right rank has each of its columns twice.
  const uint64_t row_offset = (block * uint64_t{model::kMinBlockBytes} - embed->offset) / 2 % 100;
  uint64_t right = 0;
  for (uint32_t position : changes.positions) right += (row_offset + position) % 100 >= 50;
  CHECK((right == 3 || right == 4));
  CHECK(writes->stats().written_bytes == 2 * (7 + right));
  CHECK(writes->stats().staged_bytes < 1000);
  REQUIRE(writes->Run(fixture.memory.writers(), fixture.pool).ok());
  CHECK(fixture.Holds(1));
}

TEST_CASE("A chain that was refused leaves nothing behind for the next one") {
  Fixture fixture(4);
  const uint64_t written = fixture.Stage(fixture.model.Chain(1, 3), 3)->stats().written_bytes;
  std::vector<payload::DeltaBlock> damaged = fixture.model.DeltaBlocks(3, 4);
  damaged.back().codec = payload::Codec::kSparse;
  damaged.back().data.resize(1);
  payload::DeltaChain chain = fixture.model.Chain(1, 3);
  chain.push_back(Unchecked(fixture.model, damaged));
  for (int i = 0; i < 20; ++i) CHECK(fixture.Stage(chain, 3).status().code() == ErrorCode::kCorrupt);
  CHECK(fixture.Stage(fixture.model.Chain(1, 3), 3)->stats().written_bytes == written);
}

TEST_CASE("An empty chain writes nothing") {
  Fixture fixture(1);
  const auto writes = fixture.Stage({}, 1);
  REQUIRE(writes.ok());
  CHECK(writes->stats().written_bytes == 0);
  CHECK(writes->Run(fixture.memory.writers(), fixture.pool).ok());
  CHECK(fixture.Holds(1));
}

TEST_CASE("Entries that cannot be decoded are corrupt, whether there is memory for them or not, and write nothing") {
  Fixture fixture(2);
  const std::vector<payload::DeltaBlock> good = fixture.model.DeltaBlocks(1, 2);
  std::mt19937 random(3);
  size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<payload::DeltaBlock> blocks = good;
    payload::DeltaBlock& victim = blocks[random() % blocks.size()];
    const size_t at = random() % victim.data.size();
    if (i % 4 == 0) victim.data.resize(at);
    if (i % 4 != 0) victim.data[at] ^= static_cast<std::byte>(1 + random() % 255);
    const auto writes = fixture.Stage({Unchecked(fixture.model, blocks)}, 2, i % 2 == 0 ? 0 : kNoLimit);
    if (writes.ok()) continue;  // other positions, or other steps, which are not read
    CHECK_THAT(writes, FailsWith(ErrorCode::kCorrupt, "block " + std::to_string(victim.block)));
    ++refused;
  }
  CHECK(refused > 500);
  CHECK(fixture.Holds(1));
}

TEST_CASE("Parameters of one block may lie any number of gigabytes apart, in any order") {
  const uint64_t kGigabyte = uint64_t{1} << 30;
  const std::vector<uint64_t> places{5 * kGigabyte - 20, 4 * kGigabyte - 100, 90 * kGigabyte + 2, 2 * kGigabyte - 200,
                                     0};
  std::vector<model::TensorMeta> tensors;
  std::vector<EngineParameter> parameters;
  for (size_t i = 0; i < places.size(); ++i) {
    const std::string name = "t" + std::to_string(i);
    tensors.push_back({name, model::DType::kBF16, {300}, 600 * i});
    parameters.push_back(Parameter(name, model::DType::kBF16, {300}, {1}, places[i], {{name, {0}, {300}, {0}}}));
  }
  const auto layout = *model::ModelLayout::Create(tensors, model::kMinBlockBytes);
  const auto plan = CompilePlan(*layout, {Rank(0, 1, parameters, 100 * kGigabyte)});
  replica::TestModel model(layout, 1);
  model.Advance();
  model.Advance();
  WorkerPool pool(1);
  const auto writes = StagedWrites::FromChain(*plan, *layout, model.Chain(1, 2), model.data(2), {true}, kNoLimit, pool);
  REQUIRE(writes.ok());
  std::map<uint64_t, std::byte> written;
  PortionWriter writer([&](const os::UniqueFd& portion) {
    const auto write = [&](uint32_t, uint64_t at, std::byte value) { written[at] = value; };
    return ReadPortion(ContentOf(portion), write) ? OkStatus() : Status(ErrorCode::kInternal, "a portion is none");
  });
  REQUIRE(writes->Run({&writer}, pool).ok());
  std::map<uint64_t, std::byte> expected;
  for (uint64_t unit = 0; unit < layout->data_bytes(); unit += 2) {
    if (std::equal(&model.data(1)[unit], &model.data(1)[unit] + 2, &model.data(2)[unit])) continue;
    for (uint64_t byte = unit; byte < unit + 2; ++byte) {
      expected[places[byte / 600] + byte % 600] = model.data(2)[byte];
    }
  }
  REQUIRE(expected.size() > 10);
  CHECK(written == expected);
}

TEST_CASE("The first error of any rank is the answer, and no writer keeps what points to lists that are gone") {
  Fixture fixture(2);
  const auto writes = fixture.Stage(fixture.model.Chain(1, 2), 2);
  const auto late = fixture.Stage(fixture.model.Chain(1, 2), 2, 0);
  REQUIRE((writes.ok() && late.ok()));
  for (const StagedWrites* each : {&*writes, &*late}) {
    for (const uint64_t portion_bytes : {uint64_t{1000}, kMaxPortionBytes}) {  // full while it is filled, or flushed
      int good_portions = 0;
      int bad_portions = 0;
      PortionWriter good([&](const os::UniqueFd&) { return ++good_portions, OkStatus(); });
      const auto fail = [&](const os::UniqueFd&) { return ++bad_portions, Status(ErrorCode::kIo, "passed on"); };
      PortionWriter bad(fail, portion_bytes);
      CHECK(each->Run({&good, &bad}, fixture.pool).message() == "passed on");
      CHECK((good_portions > 0 && bad_portions > 0));
      CHECK(each->Run({&bad, &good}, fixture.pool).message() == "passed on");
      const int passed = good_portions + bad_portions;
      CHECK((good.Flush().ok() && bad.Flush().ok()));
      CHECK(good_portions + bad_portions == passed);
      CHECK(each->Run({nullptr, &good}, fixture.pool).ok());
    }
  }
}

TEST_CASE("Whole versions write zeros over whatever is in padding and lower halves; changes leave them alone") {
  std::vector<model::TensorMeta> tensors{{"gate", model::DType::kBF16, {40, 64}, 0}};
  const auto layout = *model::ModelLayout::Create(tensors, model::kMinBlockBytes);
  EngineParameter gate =
      Parameter("gate", model::DType::kF32, {41, 64}, {64, 1}, 12, {{"gate", {0, 0}, {40, 64}, {0, 0}}});
  gate.padding = {{{40, 0}, {1, 64}}};
  const auto plan = CompilePlan(*layout, {Rank(0, 1, {gate}, 12 + 41 * 64 * 4 + 3)});
  replica::TestModel model(layout, 5);
  model.Advance();
  model.Advance();
  TestMemory memory(*plan);
  WorkerPool pool(1);
  const auto widened = [&](Version version) {
    Bytes bytes(12, std::byte{0xa5});
    for (size_t i = 0; i < model.data(version).size(); i += 2) {
      bytes.insert(bytes.end(), 2, std::byte{0});
      bytes.insert(bytes.end(), &model.data(version)[i], &model.data(version)[i] + 2);
    }
    bytes.insert(bytes.end(), 64 * 4, std::byte{0});
    bytes.insert(bytes.end(), 3, std::byte{0xa5});
    return Contents{bytes};
  };
  const StagedWrites whole = StagedWrites::Whole(*plan, model.data(1), {true});
  CHECK(whole.stats().written_bytes == 41 * 64 * 4);
  REQUIRE(whole.Run(memory.writers(), pool).ok());
  CHECK(memory.contents() == widened(1));
  const auto delta = StagedWrites::FromChain(*plan, *layout, model.Chain(1, 2), model.data(2), {true}, kNoLimit, pool);
  REQUIRE(delta.ok());
  CHECK(delta->stats().written_bytes == 2 * delta->stats().positions);
  REQUIRE(delta->Run(memory.writers(), pool).ok());
  CHECK(memory.contents() == widened(2));
}

}  // namespace
}  // namespace lockstep::placement
