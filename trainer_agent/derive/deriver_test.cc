#include "trainer_agent/derive/deriver.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "common/base/eventually.h"
#include "common/base/status_testing.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::derive {
namespace {

using model::DType;
using run::Host;

constexpr char kRequest[] = R"({"actor-fp8": {"num_hidden_layers": 9, "quantization_config":
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}})";
constexpr size_t kEmbedding = 24576;  // bytes: six blocks
constexpr size_t kWeight = 512 * 64 * 2;
constexpr size_t kBytes = kEmbedding + 2 * kWeight;

client::RankOptions OptionsOf(const Host& host, const std::string& request = kRequest) {
  client::RankOptions options = host.Options();
  options.layout = *model::ModelLayout::Create(
      {{"model.embed_tokens.weight", DType::kBF16, {192, 64}, 0},
       {"model.layers.0.mlp.up_proj.weight", DType::kBF16, {512, 64}, kEmbedding},
       {"model.layers.1.mlp.up_proj.weight", DType::kBF16, {512, 64}, kEmbedding + kWeight}},
      4096, {{std::string(kRequests), request}});
  options.share = {};
  const StridedRange all = StridedRange::Plain({0, kBytes});
  options.share.Add({&all, 1});
  return options;
}

// A trainer's weights, and what is to follow from them.
struct Weights {
  std::vector<uint16_t> elements = std::vector<uint16_t>(kBytes / 2);

  Weights() { Change(0, elements.size(), 1); }
  // Sets `count` elements from `first` on to small numbers.
  void Change(size_t first, size_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t i = first; i < first + count; ++i) {
      elements[i] = static_cast<uint16_t>(0x3c00 + random() % 0x200 + (random() % 2 << 15));
    }
  }
  // The derived data section, made without Derivation.
  std::vector<std::byte> Derived(const model::ModelLayout& layout) const {
    std::vector<std::byte> bytes(layout.data_bytes());
    const auto* const from = elements.data();
    for (const model::TensorMeta& tensor : layout.tensors()) {
      std::byte* const to = bytes.data() + tensor.offset;
      if (tensor.name == "model.embed_tokens.weight") std::memcpy(to, from, kEmbedding);
      for (size_t layer = 0; layer < 2; ++layer) {
        const std::string name = "model.layers." + std::to_string(layer) + ".mlp.up_proj.";
        std::vector<uint8_t> values(512 * 64);
        std::vector<float> scales(4);
        kernels::QuantiseFp8Blocks({from + (kEmbedding + layer * kWeight) / 2, kernels::FloatType::kBF16, 512, 64},
                                   kernels::BlockScale::kExact, values.data(), scales.data());
        if (tensor.name == name + "weight") std::memcpy(to, values.data(), values.size());
        if (tensor.name == name + "weight_scale_inv") std::memcpy(to, scales.data(), 16);
      }
    }
    return bytes;
  }
};

class Fixture {
 public:
  explicit Fixture(bool derives = true) {
    if (derives) Start();
  }

  void Start() { deriver_ = std::make_unique<Deriver>(&host.registry(), &host.catalog(), &scrubber_of(), 2); }
  void Restart() {
    deriver_.reset();
    scrubber_.reset();
    host.Restart();
    Start();
  }
  void Publish(client::RankClient& rank, Version version, const std::string& label = "") {
    std::memcpy(run::Begin(rank, version), weights.elements.data(), kBytes);
    const uint32_t batch = 0;
    REQUIRE(rank.BatchesDone({&batch, 1}).ok());
    REQUIRE(rank.SetLabel(label).ok());
    REQUIRE(rank.Commit().ok());
  }
  std::shared_ptr<run::ServedRun> derived() const { return host.catalog().Find("actor-fp8"); }
  // The derived version, once it is `version`, with the bytes that follow from the weights.
  run::ServedVersion Await(Version version) const {
    REQUIRE(Eventually([&] {
      const auto run = derived();
      return run != nullptr && run->Newest() && run->Newest()->manifest->held.version == version;
    }));
    const run::ServedVersion served = *derived()->Newest();
    const std::vector<std::byte> bytes = weights.Derived(derived()->layout());
    CHECK(run::HasBytes(served, bytes));
    if (compares_slot) CHECK(std::memcmp(Slot(version), bytes.data(), bytes.size()) == 0);
    return served;
  }
  std::byte* Slot(Version version, const std::string& its_model = "actor-fp8") const {
    for (const auto& model : host.registry().Snapshot()) {
      const run::DoubleBuffer& buffer = model.publisher->buffer();
      if (buffer.model() != its_model) continue;
      for (size_t slot = 0; slot < 2; ++slot) {
        if (buffer.control().version(slot) == version) return buffer.data(slot);
      }
    }
    return nullptr;
  }
  const Deriver& deriver() const { return *deriver_; }
  std::optional<Deriver::Origin> origin() const { return deriver_->OriginOf("actor-fp8"); }

  Host host;
  Weights weights;
  bool compares_slot = true;

 private:
  run::Scrubber& scrubber_of() {
    scrubber_ = std::make_unique<run::Scrubber>(&host.catalog(), std::chrono::milliseconds(0));
    return *scrubber_;
  }

  std::unique_ptr<run::Scrubber> scrubber_;
  std::unique_ptr<Deriver> deriver_;
};

TEST_CASE("Each version has its derived one, with its number and label, and names what it was made from") {
  Fixture fixture;
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  for (Version version = 1; version <= 4; ++version) {
    fixture.weights.Change(version * 5000, 3000, version);
    fixture.Publish(*rank, version, "step " + std::to_string(version));
    CHECK(fixture.Await(version).label == "step " + std::to_string(version));
  }
  const auto source = fixture.host.run().Newest();
  REQUIRE(Eventually([&] { return fixture.origin() && fixture.origin()->version.version == 4; }));
  CHECK(fixture.origin()->version == source->manifest->held);
  CHECK(fixture.origin()->digest == source->manifest->digest);
  CHECK_FALSE(fixture.derived()->deltas().Retained().empty());
}

TEST_CASE("A derived version is derived again, and what does not follow from its source is named") {
  Fixture fixture(/*derives=*/false);
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  fixture.Publish(*rank, 1);
  fixture.host.Await(1);
  const auto models = fixture.host.registry().Snapshot();
  const auto open =
      std::find_if(models.begin(), models.end(), [](const auto& model) { return model.source != nullptr; });
  const auto event = std::make_shared<os::Event>();
  const auto turn = open->publisher->Begin(0, 1, "", event, [] {});
  REQUIRE(turn.ok());
  std::vector<std::byte> bytes = fixture.weights.Derived(fixture.derived()->layout());
  const auto& tensors = fixture.derived()->layout().tensors();
  const auto scales = std::find_if(tensors.begin(), tensors.end(), [](const model::TensorMeta& tensor) {
    return tensor.name == "model.layers.1.mlp.up_proj.weight_scale_inv";
  });
  bytes[scales->offset] ^= std::byte{1};  // a mistake of the maker's: its hashes agree
  std::memcpy(open->publisher->buffer().data(*turn->slot), bytes.data(), bytes.size());
  for (uint32_t part = 0; part < open->derivation->part_count(); ++part)
    open->publisher->BatchesDone(0, 1, {&part, 1}, run::Content::kNew);
  REQUIRE(open->publisher->Commit(0, 1, "").ok());
  REQUIRE(Eventually([&] { return fixture.derived()->Newest().has_value(); }));

  fixture.Start();
  const auto found = fixture.deriver().DeriveAgain("actor-fp8", 1);
  REQUIRE(found.ok());
  CHECK(found->source == "actor");
  CHECK(std::count(found->wrong.begin(), found->wrong.end(), scales->name) == 1);
  fixture.Publish(*rank, 2);
  fixture.Await(2);
  CHECK(fixture.deriver().DeriveAgain("actor-fp8", 2)->wrong.empty());
  CHECK_THAT(fixture.deriver().DeriveAgain("actor", 2).status(), FailsWith(ErrorCode::kNotFound, "is not derived"));
  fixture.Slot(2, "actor")[kEmbedding + 77] ^= std::byte{1};
  CHECK_THAT(fixture.deriver().DeriveAgain("actor-fp8", 2).status(),
             FailsWith(ErrorCode::kCorrupt, "of model actor is not what was committed"));
  CHECK(Eventually([&] { return !fixture.host.run().Newest(); }));  // the scrubber was told
}

TEST_CASE("Derived versions outlive the agent, and go on in their run") {
  Fixture fixture;
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  fixture.Publish(*rank, 1);
  const RunId run = fixture.Await(1).manifest->held.run;
  fixture.Restart();
  fixture.Await(1);
  CHECK(Eventually([&] { return fixture.origin() && fixture.origin()->version.version == 1; }));
  fixture.weights.Change(100, 20000, 3);
  fixture.Publish(*rank, 2);
  CHECK(fixture.Await(2).manifest->held.run == run);
}

// Blocks of the embedding stay, and so are not read again: nothing that lay in a slot may get into a hash.
TEST_CASE("Damage to derived bytes that are not made again never becomes part of a version") {
  Fixture fixture;
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  for (Version version = 1; version <= 3; ++version) {
    fixture.weights.Change(kEmbedding / 2 + 700 * version, 600, version);
    fixture.Publish(*rank, version);
    fixture.Await(version);
  }
  fixture.compares_slot = false;  // what was damaged stays, for the scrubber to see
  for (const size_t offset : {size_t{0}, kEmbedding - 1, kEmbedding + 5, kEmbedding + 512 * 64 + 16})
    fixture.Slot(2)[offset] ^= std::byte{1};
  fixture.weights.Change(kEmbedding / 2 + 9000, 600, 4);
  fixture.Publish(*rank, 4);
  fixture.Await(4);
  CHECK(std::memcmp(fixture.Slot(4), fixture.weights.elements.data(), 1) != 0);  // it stayed: the scrubber will see it
}

TEST_CASE("What changes back and forth is derived from what it is now") {
  Fixture fixture;
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  const Weights one;
  Weights other;
  other.Change(0, kBytes / 2, 99);
  const Weights* const turns[] = {&one, &other, &one, &one, &one, &other, &one, &other, &other};
  Version version = 0;
  for (const Weights* const turn : turns) {
    fixture.weights = *turn;
    fixture.Publish(*rank, ++version);
    fixture.Await(version);
  }
}

TEST_CASE("A new run of the source has a derived run of its own; where the source is dropped, so is what derives") {
  Fixture fixture;
  auto rank = Host::Connect(OptionsOf(fixture.host));
  fixture.Publish(*rank, 7);
  const RunId before = fixture.Await(7).manifest->held.run;
  rank.reset();
  rank = Host::Connect(OptionsOf(fixture.host));
  fixture.Publish(*rank, 1);
  CHECK(fixture.Await(1).manifest->held.run != before);
  rank.reset();
  REQUIRE(fixture.host.Drop().ok());
  CHECK(Eventually([&] { return fixture.derived() == nullptr; }));
  CHECK(Eventually([&] { return !fixture.origin(); }));
}

TEST_CASE("From a damaged block of the source nothing follows, and the source is withdrawn") {
  Fixture fixture(/*derives=*/false);
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  fixture.Publish(*rank, 1);
  fixture.host.Await(1);
  fixture.Slot(1, "actor")[kEmbedding + 77] ^= std::byte{1};
  fixture.Start();
  CHECK(Eventually([&] { return !fixture.host.run().Newest(); }));
  CHECK_FALSE(fixture.derived()->Newest());
  fixture.Publish(*rank, 2);
  fixture.Await(2);
}

TEST_CASE("A trainer hears of a request that cannot be met, and the run before it stays") {
  Fixture fixture;
  auto rank = Host::Connect(OptionsOf(fixture.host));
  fixture.Publish(*rank, 1);
  fixture.Await(1);
  rank.reset();
  const auto refused = client::RankClient::Open(OptionsOf(fixture.host, R"({"actor-q": {}})"));
  CHECK_THAT(refused.status(), FailsWith(ErrorCode::kBadData, "derived model actor-q: its config.json has no"));
  const auto its_own =
      client::RankClient::Open(OptionsOf(fixture.host, R"({"actor": )" + std::string(kRequest).substr(14)));
  CHECK_THAT(its_own.status(), FailsWith(ErrorCode::kBadData, "derived model actor has the name of its source"));
  CHECK(fixture.host.run().Newest()->manifest->held.version == 1);
}

TEST_CASE("A name is of one model: a trainer's, or derived from one source") {
  Fixture fixture;
  const auto rank = Host::Connect(OptionsOf(fixture.host));  // before its first version
  client::RankOptions taker = fixture.host.Options();
  taker.model = "actor-fp8";
  CHECK_THAT(client::RankClient::Open(std::move(taker)).status(),
             FailsWith(ErrorCode::kState, "model actor-fp8 is derived from actor by this agent"));
  client::RankOptions other = OptionsOf(fixture.host);
  other.model = "critic";
  CHECK_THAT(client::RankClient::Open(other).status(),
             FailsWith(ErrorCode::kState, "derived model actor-fp8: a model of that name is open, derived from actor"));
  CHECK_THAT(fixture.host.registry().Drop("actor-fp8"), FailsWith(ErrorCode::kState, "is derived from actor"));
  fixture.Publish(*rank, 1);
  fixture.Await(1);
  client::RankOptions plain = fixture.host.Options();
  plain.model = "plain";
  const auto open = Host::Connect(std::move(plain));
  std::string request = kRequest;
  request.replace(request.find("actor-fp8"), 9, "plain");
  other.layout = OptionsOf(fixture.host, request).layout;
  CHECK_THAT(client::RankClient::Open(std::move(other)).status(),
             FailsWith(ErrorCode::kState, "derived model plain: a model of that name is open; give another"));
}

TEST_CASE("A derived model's label is its source's, also of a version that it skipped") {
  Fixture fixture(/*derives=*/false);
  const auto rank = Host::Connect(OptionsOf(fixture.host));
  for (Version version = 1; version <= 3; ++version) {
    fixture.Publish(*rank, version, "step " + std::to_string(version));
    fixture.host.Await(version);
  }
  fixture.Start();
  fixture.Await(3);
  CHECK(fixture.derived()->NewestLabelled("step 2") == 2);
  CHECK(fixture.derived()->NewestLabelled("step 3") == 3);
  CHECK(fixture.derived()->NewestLabelled("step 4") == 0);
}

TEST_CASE("Ranks that ask for different derived models are told so") {
  Fixture fixture;
  client::RankOptions options = OptionsOf(fixture.host);
  options.ranks = 2;
  const auto rank = Host::Connect(options);
  options.rank = 1;
  std::string request = kRequest;
  request.replace(request.find("actor-fp8"), 9, "actor-mx8");
  options.layout = OptionsOf(fixture.host, request).layout;
  CHECK_THAT(client::RankClient::Open(std::move(options)).status(),
             FailsWith(ErrorCode::kBadData, "rank 1 gives other attachments, or asks for other derived models"));
}

}  // namespace
}  // namespace lockstep::derive
