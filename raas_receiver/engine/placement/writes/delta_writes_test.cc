#include "raas_receiver/engine/placement/writes/delta_writes.h"

#include <map>

#include "common/base/status_testing.h"
#include "raas_receiver/engine/placement/writes/delta_writes_fixture.h"

namespace lockstep::engine {
namespace {

RankDescription Rank(uint32_t rank, uint32_t world, std::vector<EngineParameter> parameters, uint64_t bytes) {
  RankDescription description{.rank = rank, .world = world};
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

// Writes of all ranks.
struct Fixture {
  replica::TestModel model{11};
  std::vector<RankDescription> ranks = TwoRanks(*model.layout());
  std::shared_ptr<const PlacementPlan> plan = CompilePlan(*model.layout(), ranks);
  TestMemory memory{plan, ranks};
  WorkerPool pool{2};

  // `versions` of the model, and the first one in the engine.
  explicit Fixture(int versions, uint32_t sparsity = 200) {
    for (int i = 0; i < versions; ++i) model.Advance(sparsity);
    memory.WriteWhole(model.data(1), memory.all());
    REQUIRE(Holds(1));
  }
  bool Holds(Version version) const { return memory.contents() == memory.Expected(model.data(version), memory.all()); }
  DeltaWrites Make(const payload::DeltaChain& chain, Version version, const Ranks& of = {0, 1}) {
    auto writes = DeltaWrites::Create(*plan, of, *model.layout(), chain, model.data(version), kMaxWriteBatchBytes, 0);
    REQUIRE(writes.ok());
    return *std::move(writes);
  }
  // All of `chain`, written: answers how many bytes.
  uint64_t Write(const payload::DeltaChain& chain, Version version, const Ranks& of = {0, 1}) {
    DeltaWrites writes = Make(chain, version, of);
    REQUIRE(writes.Run(memory.pass(), pool).ok());
    return writes.written_bytes();
  }
};

// A payload of `blocks` that is not checked.
std::shared_ptr<const payload::Payload> Unchecked(const replica::TestModel& model,
                                                  const std::vector<payload::DeltaBlock>& blocks) {
  return *payload::Payload::Assemble(*model.layout(), {.run = model.run(), .base = 1, .target = 2}, blocks);
}

TEST_CASE(
    "A chain leads every rank to the version, with units of 1, 2 and 4 bytes, turned around, twice, and strided") {
  Fixture fixture(6);
  fixture.Write(fixture.model.Chain(1, 6), 6);
  CHECK(fixture.Holds(6));
}

TEST_CASE("The same chain with the version before makes that version again, after a whole run or half of one") {
  Fixture fixture(5);
  const payload::DeltaChain chain = fixture.model.Chain(1, 5);
  fixture.Write(chain, 5);
  fixture.Write(chain, 1);
  CHECK(fixture.Holds(1));
  fixture.Write(chain, 5, {1});
  CHECK_FALSE(fixture.Holds(1));
  fixture.Write(chain, 1);
  CHECK(fixture.Holds(1));
}

TEST_CASE("Before the pause ranks stage what there is memory for, and in it the rest, each byte once") {
  Fixture fixture(5);
  const uint64_t all = fixture.Write(fixture.model.Chain(1, 5), 5);
  const uint64_t budget = GENERATE(0, 1, 100'000'000);
  Version version = 1;
  DeltaWrites writes = fixture.Make(fixture.model.Chain(1, 5), version);
  uint64_t left = budget;
  const int before = fixture.memory.batches();
  REQUIRE(writes.Stage(left, fixture.memory.pass(), fixture.pool).ok());
  const int staged = fixture.memory.batches() - before;
  CHECK((staged > 0) == (budget > 0));
  if (budget == 1) CHECK(left == 0);
  if (budget > 1) CHECK((left < budget && left > 0));
  CHECK(fixture.Holds(1) == (budget > 1));
  REQUIRE(writes.Run(fixture.memory.pass(), fixture.pool).ok());
  CHECK(fixture.Holds(1));
  CHECK(writes.written_bytes() == all);
  const int in_all = fixture.memory.batches();
  REQUIRE(writes.Run(fixture.memory.pass(), fixture.pool).ok());
  CHECK(fixture.memory.batches() == in_all);
}

TEST_CASE("Blocks that are raw, or change all over, are copied whole") {
  Fixture fixture(4, 3);
  const payload::DeltaChain chain = fixture.model.Chain(1, 4);
  CHECK(chain[0]->entries().size() == fixture.model.layout()->block_count());
  CHECK(fixture.Write(chain, 4) == (*fixture.plan)[0].bytes() + (*fixture.plan)[1].bytes());
  CHECK(fixture.Holds(4));
}

TEST_CASE("Only what changed is written") {
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
  const uint64_t written = fixture.Write({Unchecked(model, {delta})}, 1);
  // The right rank has each of its columns twice.
  const uint64_t row_offset = (block * uint64_t{model::kMinBlockBytes} - embed->offset) / 2 % 100;
  uint64_t right = 0;
  for (uint32_t position : changes.positions) right += (row_offset + position) % 100 >= 50;
  CHECK((right == 3 || right == 4));
  CHECK(written == 2 * (7 + right));
  CHECK(fixture.Holds(1));
}

TEST_CASE("An empty chain writes nothing") {
  Fixture fixture(1);
  CHECK(fixture.Write({}, 1) == 0);
  CHECK(fixture.Holds(1));
}

TEST_CASE("A block that the layout does not have is corrupt") {
  Fixture fixture(1);
  const auto other = *model::ModelLayout::Create({{"w", model::DType::kBF16, {1'000'000}, 0}}, model::kMinBlockBytes);
  payload::DeltaBlock block{.block = fixture.model.layout()->block_count(), .codec = payload::Codec::kRaw};
  block.data.resize(other->block_range(block.block).bytes);
  const std::vector<payload::DeltaBlock> blocks{block};
  const payload::DeltaChain chain{*payload::Payload::Assemble(*other, {.base = 1, .target = 2}, blocks)};
  CHECK_THAT(DeltaWrites::Create(*fixture.plan, {0, 1}, *fixture.model.layout(), chain, fixture.model.data(1)),
             FailsWith(ErrorCode::kCorrupt, "version 2 changes block"));
}

TEST_CASE("Entries that cannot be decoded are corrupt before the pause, whether there is memory for them or not") {
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
    DeltaWrites writes = fixture.Make({Unchecked(fixture.model, blocks)}, 2);
    uint64_t bytes = i % 2 == 0 ? 0 : 1'000'000;
    const Status status = writes.Stage(
        bytes, [](uint32_t, const os::UniqueFd&) { return OkStatus(); }, fixture.pool);
    if (status.ok()) continue;  // other positions, or other steps, which are not read
    CHECK_THAT(status, FailsWith(ErrorCode::kCorrupt, "block " + std::to_string(victim.block)));
    ++refused;
  }
  CHECK(refused > 500);
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
  auto writes = DeltaWrites::Create(*plan, {0}, *layout, model.Chain(1, 2), model.data(2));
  REQUIRE(writes.ok());
  std::map<uint64_t, std::byte> written;
  const auto pass = [&](uint32_t, const os::UniqueFd& batch) {
    const auto write = [&](uint32_t, uint64_t at, std::byte value) { written[at] = value; };
    return ReadWriteBatch(ContentOf(batch), write) ? OkStatus() : Status(ErrorCode::kInternal, "a write batch is none");
  };
  REQUIRE(writes->Run(pass, pool).ok());
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

TEST_CASE("The error of a rank is the answer, before the pause and in it, with a full write batch or the last one") {
  Fixture fixture(2);
  const uint64_t batch_bytes = GENERATE(uint64_t{1000}, kMaxWriteBatchBytes);
  const uint64_t budget = GENERATE(0, 1'000'000);
  for (const uint32_t bad : {0u, 1u}) {
    auto writes = DeltaWrites::Create(*fixture.plan, {0, 1}, *fixture.model.layout(), fixture.model.Chain(1, 2),
                                      fixture.model.data(2), batch_bytes);
    REQUIRE(writes.ok());
    const auto pass = [&](uint32_t rank, const os::UniqueFd&) {
      return rank == bad ? Status(ErrorCode::kIo, "passed on") : OkStatus();
    };
    uint64_t bytes = budget;
    const Status staged = writes->Stage(bytes, pass, fixture.pool);
    CHECK(staged.ok() == (budget == 0));
    CHECK((budget == 0 ? writes->Run(pass, fixture.pool) : staged).message() == "passed on");
  }
}

TEST_CASE("Whole versions write zeros over whatever is in padding and lower halves; changes leave them alone") {
  std::vector<model::TensorMeta> tensors{{"gate", model::DType::kBF16, {40, 64}, 0}};
  const auto layout = *model::ModelLayout::Create(tensors, model::kMinBlockBytes);
  EngineParameter gate =
      Parameter("gate", model::DType::kF32, {41, 64}, {64, 1}, 12, {{"gate", {0, 0}, {40, 64}, {0, 0}}});
  gate.padding = {{{40, 0}, {1, 64}}};
  const std::vector<RankDescription> ranks{Rank(0, 1, {gate}, 12 + 41 * 64 * 4 + 3)};
  const auto plan = CompilePlan(*layout, ranks);
  replica::TestModel model(layout, 5);
  model.Advance();
  model.Advance();
  TestMemory memory(plan, ranks);
  WorkerPool pool(1);
  const auto widened = [&](Version version) {
    Bytes bytes(12, std::byte{0xa5});
    for (size_t i = 0; i < model.data(version).size(); i += 2) {
      bytes.insert(bytes.end(), 2, std::byte{0});
      bytes.insert(bytes.end(), &model.data(version)[i], &model.data(version)[i] + 2);
    }
    bytes.insert(bytes.end(), 64 * 4, std::byte{0});
    bytes.insert(bytes.end(), 3, std::byte{0xa5});
    return Contents{{bytes}};
  };
  memory.WriteWhole(model.data(1), {0});
  CHECK(memory.contents() == widened(1));
  auto delta = DeltaWrites::Create(*plan, {0}, *layout, model.Chain(1, 2), model.data(2));
  REQUIRE(delta.ok());
  REQUIRE(delta->Run(memory.pass(), pool).ok());
  CHECK(delta->written_bytes() < 64 * 40 * 2 / 10);
  CHECK(memory.contents() == widened(2));
}

}  // namespace
}  // namespace lockstep::engine
