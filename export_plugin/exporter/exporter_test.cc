// Publishing from ranks on the agent's host, and through proxies from ranks that are not.
#include "export_plugin/exporter/exporter.h"

#include <sys/mman.h>

#include <bit>

#include "common/base/status_testing.h"
#include "export_plugin/exporter/exporter_fixture.h"

namespace lockstep::exporter {
namespace {

uint64_t ModelBytes(const std::vector<Whole2D>& model) {
  uint64_t bytes = 0;
  for (const Whole2D& tensor : model) bytes += tensor.rows * tensor.columns * BytesOf(tensor.dtype);
  return bytes;
}

TEST_CASE("Ranks on the agent's host publish their shards, and every byte is written once") {
  for (const uint32_t threads : {1, 3}) {
    Fleet fleet(SmallModel(), {.threads = threads});
    fleet.Open();
    for (Version version = 1; version <= 4; ++version) {
      fleet.Publish(version);
      fleet.CheckServed(version);
      CHECK(fleet.Sum(&PublishStats::bytes_copied) + fleet.Sum(&PublishStats::bytes_frozen) ==
            ModelBytes(SmallModel()));
    }
    CHECK(fleet.exporter(0).plan().digest == fleet.exporter(1).plan().digest);
    CHECK(fleet.exporter(0).run() == fleet.exporter(1).run());
    const Version known[] = {fleet.exporter(0).committed_version(), fleet.exporter(1).committed_version()};
    CHECK(std::max(known[0], known[1]) == 4);  // on the rank that was done last
    CHECK(std::min(known[0], known[1]) >= 3);
  }
}

TEST_CASE("Frozen tensors are copied into each slot once and then only reported") {
  Fleet fleet(SmallModel(), {});
  fleet.Open();
  const uint64_t frozen = 16 * 128 * 2;
  for (Version version = 1; version <= 5; ++version) {
    fleet.Publish(version);
    CHECK(fleet.Sum(&PublishStats::bytes_frozen) == (version <= 2 ? 0 : frozen));
    fleet.CheckServed(version);
  }
}

TEST_CASE("A frozen tensor that changed between its two copies is an error that names it, before it is trusted") {
  std::vector<Whole2D> model = SmallModel();
  model.push_back({"late", model::DType::kBF16, 16, 128, Cut::kRows});  // its description says frozen; its values move
  for (const bool beside : {true, false}) {
    Fleet fleet(model, {.beside = {true, beside}});
    fleet.Freeze(6);
    fleet.Open();
    fleet.Publish(1);
    fleet.Publish(2);
    fleet.CheckServed(2);
    const auto outcomes = fleet.TryPublish(3);
    // On the agent's host either may find its own change before it hears that the other aborted the version.
    const auto found = [&](size_t rank) { return outcomes[rank].code() == ErrorCode::kBadData; };
    CHECK((found(0) || (beside && found(1))));
    for (const size_t rank : {0, 1}) {
      const FailsWith own(ErrorCode::kBadData, "version 3", "tensor \"late\" was said to be frozen, but changed");
      CHECK_THAT(outcomes[rank], found(rank) ? own : FailsWith(ErrorCode::kAborted, "version 3"));
    }
    CHECK(fleet.host().run().Newest()->manifest->held.version == 2);
    // Both slots get it again. A writer that came to 3 when it was aborted already gets its own error at 4.
    fleet.TryPublish(4);
    fleet.Publish(5);
    fleet.CheckServed(5);
  }
}

TEST_CASE("Frozen tensors of a rank on another host travel until both slots have them, and again after a failure") {
  // With and without something that changes next to them.
  const Whole2D frozen{"base", model::DType::kBF16, 64, 32 * 1024, Cut::kRows, true};
  const uint64_t bytes = 32 * 32 * 1024 * 2;
  for (const bool alone : {true, false}) {
    std::vector<Whole2D> model{frozen};
    if (!alone) model.push_back({"w", model::DType::kBF16, 64, 32, Cut::kRows});
    const uint64_t changing = alone ? 0 : 32 * 32 * 2;
    Fleet fleet(model, {.beside = {true, false}});
    fleet.Open();
    const auto publish = [&](Version version, bool travels) {
      INFO("version " << version);
      fleet.Publish(version);
      CHECK(fleet.exporter(1).stats().bytes_sent == changing + (travels ? bytes : 0));
      CHECK(fleet.exporter(1).stats().bytes_frozen == (travels ? 0 : bytes));
      CHECK(fleet.exporter(0).stats().bytes_received == fleet.exporter(1).stats().bytes_sent);
      fleet.CheckServed(version);
    };
    publish(1, true);
    publish(2, true);
    publish(3, false);
    publish(4, false);
    Status aborted;
    std::thread failing([&] { aborted = fleet.exporter(1).Abort(5, {ErrorCode::kBadData, "not this one"}); });
    CHECK_THAT(fleet.TryPublish(5, {{1, kLeftOut}})[0],
               FailsWith(ErrorCode::kAborted, "rank 1 aborted version 5 (bad_data)"));
    failing.join();
    CHECK(aborted.ok());
    publish(6, true);
    publish(7, false);
  }
}

TEST_CASE("A frozen tensor of a rank on another host that changed is found where it is taken in") {
  const std::vector<Whole2D> model{{"base", model::DType::kBF16, 64, 32, Cut::kRows, true}};
  Fleet fleet(model, {.beside = {true, false}});
  fleet.Open();
  fleet.Publish(1);
  std::vector<std::byte> changed = fleet.rank(1).memory[0];
  changed[5] ^= std::byte{1};
  fleet.SetAddresses(1, {changed.data()});
  fleet.Publish(2);
  const auto outcomes = fleet.TryPublish(3);
  CHECK_THAT(outcomes[0], FailsWith(ErrorCode::kBadData, "tensor \"base\" was said to be frozen, but changed"));
  CHECK(outcomes[1].code() == ErrorCode::kAborted);
  fleet.Publish(4);
  CHECK(fleet.Served(4).at("base")[32 * 32 * 2 + 5] == changed[5]);
}

TEST_CASE("Replicas that write nothing neither connect nor send") {
  Fleet fleet({{"w", model::DType::kBF16, 64, 64, Cut::kRows}}, {.shards = 2, .beside = {true, true, true, false}});
  fleet.Open();
  fleet.Publish(1);
  fleet.CheckServed(1);
  CHECK_FALSE(fleet.exporter(2).writes());
  CHECK_FALSE(fleet.exporter(3).writes());
  CHECK(fleet.exporter(3).run() == RunId{});
  CHECK(fleet.Sum(&PublishStats::bytes_sent) == 0);
}

TEST_CASE("Ranks on another host send each shard once, within the memory for buckets") {
  // Shards 0 and 1 are on the agent's host, 2 and 3 elsewhere; two replicas of everything.
  Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, true, false, false, true, true, false, false}});
  fleet.Open();
  for (Version version = 1; version <= 3; ++version) {
    fleet.Publish(version);
    fleet.CheckServed(version);
  }
  uint64_t remote = 0;
  for (const uint32_t rank : {2, 3, 6, 7}) remote += fleet.exporter(rank).plan().ranks[rank].bytes;
  CHECK(remote > 2 * kMinBucketBytes / 2);
  CHECK(fleet.Sum(&PublishStats::bytes_sent) == remote);
  CHECK(fleet.Sum(&PublishStats::bytes_received) == remote);
  CHECK(fleet.Sum(&PublishStats::buckets_sent) >= 4);
  CHECK(fleet.Sum(&PublishStats::bytes_copied) + fleet.Sum(&PublishStats::bytes_frozen) + remote ==
        ModelBytes(SmallModel()));
  for (uint32_t rank = 0; rank < 8; ++rank) {
    CHECK(fleet.exporter(rank).stats().exchange_memory_bytes <= kMinBucketBytes);
  }
}

TEST_CASE("One rank on the agent's host takes in all others, and what it serves is what they would have written") {
  Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, false, false, false}, .threads = 2});
  fleet.Open();
  for (Version version = 1; version <= 3; ++version) {
    fleet.Publish(version);
    fleet.CheckServed(version);
  }
  for (const uint32_t rank : {1, 2, 3}) {
    const PublishStats& stats = fleet.exporter(rank).stats();
    CHECK(fleet.hub().bytes(rank, 0) == 3 * (stats.bytes_sent + 64 * stats.buckets_sent));
    CHECK(fleet.hub().bytes(0, rank) == 3 * 64);
  }
}

TEST_CASE("A tensor of many buckets arrives in ranges of equal rows") {
  Fleet fleet({{"big", model::DType::kBF16, 700, 16 * 1024, Cut::kColumns},
               {"tall", model::DType::kF32, 9001, 130, Cut::kColumns}},
              {.shards = 2, .beside = {true, false}});
  fleet.Open();
  fleet.Publish(1);
  fleet.CheckServed(1);
  CHECK(fleet.exporter(1).stats().buckets_sent > 20);
}

TEST_CASE("Tensors that do not lie contiguously are gathered by their strides") {
  Fleet fleet({{"w", model::DType::kBF16, 40, 24, Cut::kRows}}, {});
  // Rank 1's shard lies transposed, in a memory of its own.
  TestRank& rank = fleet.rank(1);
  std::vector<std::byte> transposed(rank.memory[0].size());
  rank.locals[0].strides = {1, 20};
  fleet.Open();
  rank.Fill({{"w", model::DType::kBF16, 40, 24, Cut::kRows}}, 1);
  for (size_t row = 0; row < 20; ++row) {
    for (size_t column = 0; column < 24; ++column) {
      std::memcpy(transposed.data() + 2 * (column * 20 + row), rank.memory[0].data() + 2 * (row * 24 + column), 2);
    }
  }
  fleet.SetAddresses(1, {transposed.data()});
  fleet.Publish(1);
  fleet.CheckServed(1);
}

TEST_CASE("F32 tensors are rounded to BF16 when that is allowed, on either side of an exchange") {
  const std::vector<Whole2D> model{{"w", model::DType::kBF16, 64, 32, Cut::kColumns}};
  for (const uint32_t rank : {0, 1}) {
    Fleet fleet(model, {.beside = {true, false}});
    std::vector<float> values(64 * 16);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i) / 1000;
    fleet.rank(rank).locals[0].dtype = model::DType::kF32;
    fleet.rank(rank).locals[0].convert = true;
    fleet.SetAddresses(rank, {values.data()});
    fleet.Open();
    fleet.Publish(1);
    const std::vector<std::byte> served = fleet.Served(1).at("w");
    const std::vector<std::byte> whole = ExpectedImage(model, 1).at("w");
    for (size_t i = 0; i < 64 * 32; ++i) {
      const size_t column = i % 32;
      uint16_t element, expected;
      std::memcpy(&element, served.data() + 2 * i, 2);
      std::memcpy(&expected, whole.data() + 2 * i, 2);
      if (column / 16 == rank) {
        const auto bits = std::bit_cast<uint32_t>(values[i / 32 * 16 + column % 16]);
        expected = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
      }
      REQUIRE(element == expected);
    }
  }
}

TEST_CASE("F32 tensors are refused where the model is BF16 and rounding was not allowed") {
  Fleet fleet({{"w", model::DType::kBF16, 64, 32, Cut::kColumns}, {"x", model::DType::kBF16, 64, 32, Cut::kColumns}},
              {.beside = {true, false}});
  for (const uint32_t rank : {0, 1}) {
    auto options = fleet.OptionsOf(rank);
    options.locals[0].dtype = model::DType::kF32;
    options.locals[1].convert = true;  // another one's leave
    const Status status = Exporter::Open(options).status();
    CHECK_THAT(status,
               FailsWith(ErrorCode::kBadData, "\"w\" is F32; tensor \"w\" made of it is BF16: allow conversion"));
  }
}

TEST_CASE("Memory that the CPU cannot read is an error that says why, on either side") {
  void* const unreadable = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(unreadable != MAP_FAILED);
  auto* const memory = static_cast<std::byte*>(unreadable);
  auto engine = NewCheckedHostEngine(nullptr, {ErrorCode::kNotFound, "CUDA finds no GPU"});
  REQUIRE(engine.ok());
  std::vector<std::byte> source(100, std::byte{7});
  std::vector<std::byte> target(100);
  const auto copy = [&](const std::byte* from, std::byte* to) {
    const PlacedCopy placed{from, to, {.row_bytes = 100}};
    return (*engine)->Run({&placed, 1});
  };
  CHECK(copy(source.data(), target.data()).ok());
  CHECK(target == source);
  const FailsWith refused(ErrorCode::kNotFound, "cannot be read by the CPU, as a GPU's cannot, and CUDA finds no GPU");
  CHECK_THAT(copy(memory, target.data()), refused);
  CHECK_THAT(copy(source.data(), memory), refused);
  REQUIRE(munmap(unreadable, 4096) == 0);
}

TEST_CASE("What is not as the description says is refused, naming both") {
  Fleet fleet(SmallModel(), {});
  const auto open = [&](auto change) {
    auto options = fleet.OptionsOf(0);
    change(options);
    return Exporter::Open(options).status();
  };
  using Options = ExporterOptions;
  CHECK_THAT(open([](Options& o) { o.locals[1].name = "other"; }),
             FailsWith(ErrorCode::kBadData, "\"other\" was given where the description has \"qkv\""));
  CHECK_THAT(open([](Options& o) { o.locals.pop_back(); }),
             FailsWith(ErrorCode::kBadData, "5 local tensors were given"));
  CHECK_THAT(open([](Options& o) {
               o.locals[0].shape = {64, 16};
             }),
             FailsWith(ErrorCode::kBadData, "has shape [64, 16]"));
  CHECK_THAT(open([](Options& o) {
               o.locals[0].strides = {16, 1};
             }),
             FailsWith(ErrorCode::kBadData, "overlaps itself"));
  CHECK_THAT(open([](Options& o) { o.locals[0].strides = {1}; }), FailsWith(ErrorCode::kBadData, "1 strides"));
  CHECK_THAT(open([](Options& o) {
               o.locals[0].strides = {uint64_t{1} << 60, 1};
             }),
             FailsWith(ErrorCode::kBadData, "larger than memory"));
  CHECK_THAT(open([](Options& o) { o.locals[0].dtype = model::DType::kF4; }),
             FailsWith(ErrorCode::kBadData, "smaller than a byte"));
  CHECK_THAT(open([](Options& o) { o.locals[0].dtype = model::DType::kF16; }),
             FailsWith(ErrorCode::kBadData, "\"embed\" is F16"));
  CHECK_THAT(open([](Options& o) { o.descriptions[1] = "{"; }),
             FailsWith(ErrorCode::kBadData, "the description of rank 1"));
  CHECK_THAT(open([](Options& o) { o.rank = 2; }), FailsWith(ErrorCode::kBadData, "rank 2 of 2"));
  CHECK_THAT(open([](Options& o) { o.bucket_bytes = 1000; }), FailsWith(ErrorCode::kBadData, "at least 1048576"));
  CHECK_THAT(open([](Options& o) { o.threads = 257; }), FailsWith(ErrorCode::kBadData, "threads is 257"));
}

TEST_CASE("By default ranks share the cores of their host, and none takes more than four") {
  cpu_set_t before, few;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  const auto cores = static_cast<uint32_t>(CPU_COUNT(&before));
  CHECK(UsualCopyThreads(1) == std::min(4u, cores));
  CHECK(UsualCopyThreads(cores) == 1);
  CHECK(UsualCopyThreads(10'000) == 1);
  CPU_ZERO(&few);
  for (int cpu = 0; CPU_COUNT(&few) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &few);
  }
  REQUIRE(::sched_setaffinity(0, sizeof few, &few) == 0);
  CHECK(UsualCopyThreads(1) == 1);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
}

TEST_CASE("A remote rank without a rank on the agent's host, or without an exchange, is refused") {
  Fleet remote(SmallModel(), {.shards = 2, .beside = {false, false}});
  CHECK_THAT(Exporter::Open(remote.OptionsOf(0)),
             FailsWith(ErrorCode::kBadData, "none of 2 ranks is on the agent's host"));
  Fleet fleet(SmallModel(), {.shards = 2, .beside = {true, false}});
  for (const uint32_t rank : {0, 1}) {
    auto options = fleet.OptionsOf(rank);
    options.exchange = nullptr;
    CHECK_THAT(Exporter::Open(options), FailsWith(ErrorCode::kBadData, "give an exchange"));
  }
}

}  // namespace
}  // namespace lockstep::exporter
