// Random engines follow random models: after every commit their memory is what the plan's copies make of the version.
#include "raas_receiver/engine/placement/writes/delta_writes_fixture.h"

namespace lockstep::engine {
namespace {

struct Followed {
  layout::Random random;
  TestEngine engine;
  std::shared_ptr<const model::ModelLayout> layout;
  std::shared_ptr<const PlacementPlan> plan;
  replica::TestModel model;
  WorkerPool pool{2};
  uint64_t memory_limit;
  uint64_t batch_bytes;
  uint64_t chunk_bytes;

  explicit Followed(uint64_t seed)
      : random(seed),
        engine(RandomEngineMaker(random).Make()),
        layout(*model::ModelLayout::Create(engine.layout->tensors(), model::kMinBlockBytes)),
        plan(CompilePlan(*layout, engine.ranks, engine.unused)),
        model(layout, static_cast<uint32_t>(seed)) {
    const uint64_t limits[] = {0, 1, 2000, UINT64_MAX};
    memory_limit = limits[random.Between(0, 3)];
    batch_bytes = random.OneIn(2) ? 1000 : kMaxWriteBatchBytes;
    chunk_bytes = random.OneIn(2) ? 0 : 4 << 20;  // one block, or all
    model.Advance();
    for (uint64_t i = random.Between(1, 4); i > 0; --i) model.Advance(random.OneIn(3) ? 10 : 200);
  }

  Version last() const {
    Version version = 1;
    while (model.has(version + 1)) ++version;
    return version;
  }
  // From memory that holds `before` to `after` by the deltas between them, whichever is older.
  void Follow(TestMemory& memory, const Ranks& ranks, Version before, Version after) {
    const payload::DeltaChain chain = model.Chain(std::min(before, after), std::max(before, after));
    for (int twice = 0; twice < 2; ++twice) {
      auto writes = DeltaWrites::Create(*plan, ranks, *layout, chain, model.data(after), batch_bytes, chunk_bytes);
      REQUIRE(writes.ok());
      uint64_t bytes = memory_limit;
      REQUIRE(writes->Stage(bytes, memory.pass(), pool).ok());
      REQUIRE(writes->Run(memory.pass(), pool).ok());
      REQUIRE(memory.contents() == memory.Expected(model.data(after), ranks));
    }
  }
  void WriteWhole(TestMemory& memory, const Ranks& ranks, Version version) {
    memory.WriteWhole(model.data(version), ranks);
    REQUIRE(memory.contents() == memory.Expected(model.data(version), ranks));
  }
};

TEST_CASE("Random engines: chains of deltas lead to any version's bytes, and back again") {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Followed followed(seed);
    TestMemory memory(followed.plan, followed.engine.ranks);
    followed.WriteWhole(memory, memory.all(), 1);
    followed.Follow(memory, memory.all(), 1, followed.last());
    followed.Follow(memory, memory.all(), followed.last(), 1);
    followed.Follow(memory, memory.all(), 1, 2);
  }
}

TEST_CASE("Random engines: ranks that are not to be written are left alone") {
  for (uint64_t seed = 1000; seed < 1200; ++seed) {
    CAPTURE(seed);
    Followed followed(seed);
    TestMemory memory(followed.plan, followed.engine.ranks);
    Ranks wanted = memory.all();
    std::erase_if(wanted, [&](uint32_t) { return followed.random.OneIn(2); });
    followed.WriteWhole(memory, wanted, 1);
    followed.Follow(memory, wanted, 1, followed.last());
  }
}

}  // namespace
}  // namespace lockstep::engine
