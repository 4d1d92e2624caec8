#include "raas_receiver/replica/apply.h"

#include <catch2/catch.hpp>

#include "raas_receiver/replica/test_model.h"

namespace lockstep::replica {
namespace {

struct Fixture {
  TestModel model{7};
  WorkerPool pool{2};

  explicit Fixture(int versions) {
    for (int i = 0; i < versions; ++i) model.Advance();
  }
  std::vector<Version> All(Version version) const {
    return std::vector<Version>(model.layout()->block_count(), version);
  }
  std::vector<BlockIndex> Apply(const payload::DeltaChain& chain, const std::vector<Version>& versions, Bytes& data) {
    return ApplyChain(*model.layout(), chain, versions, data, pool);
  }
};

}  // namespace

TEST_CASE("A chain of deltas brings any version to the last one, bit for bit") {
  Fixture fixture(8);
  for (Version from = 1; from < 8; ++from) {
    Bytes data = fixture.model.data(from);
    CHECK(fixture.Apply(fixture.model.Chain(from, 8), fixture.All(from), data).empty());
    CHECK(data == fixture.model.data(8));
  }
}

TEST_CASE("The hashes promised by a chain are those of its target") {
  Fixture fixture(6);
  const auto hashes = HashesAfter(fixture.model.Chain(2, 6), fixture.All(2), fixture.model.manifest(2).block_hashes);
  CHECK(hashes == fixture.model.manifest(6).block_hashes);
}

TEST_CASE("Blocks of several versions are all brought to one, each by the steps from its own") {
  Fixture fixture(5);
  const model::ModelLayout& layout = *fixture.model.layout();
  Bytes data(layout.data_bytes());
  std::vector<Version> versions;
  std::vector<uint64_t> hashes;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    versions.push_back(2 + block % 4);
    const ByteView bytes = fixture.model.block_of(versions.back(), block);
    std::copy(bytes.begin(), bytes.end(), data.begin() + static_cast<ptrdiff_t>(layout.block_range(block).offset));
    hashes.push_back(model::BlockHash(bytes));
  }
  const payload::DeltaChain chain = fixture.model.Chain(2, 5);
  CHECK(HashesAfter(chain, versions, hashes) == fixture.model.manifest(5).block_hashes);
  CHECK(fixture.Apply(chain, versions, data).empty());
  CHECK(data == fixture.model.data(5));
}

TEST_CASE("A block that was damaged before, and that a delta touches, is named; the others come out right") {
  Fixture fixture(2);
  const payload::DeltaChain chain = fixture.model.Chain(1, 2);
  const BlockIndex victim = chain[0]->entries()[1].block;
  const ByteRange range = fixture.model.layout()->block_range(victim);
  Bytes data = fixture.model.data(1);
  data[range.offset + 5] ^= std::byte{1};
  CHECK(fixture.Apply(chain, fixture.All(1), data) == std::vector<BlockIndex>{victim});
  const ByteView whole = fixture.model.block_of(2, victim);
  std::copy(whole.begin(), whole.end(), data.begin() + static_cast<ptrdiff_t>(range.offset));
  CHECK(data == fixture.model.data(2));
}

TEST_CASE("Applying a damaged delta names the damaged block, unless a later step replaces the whole block") {
  Fixture fixture(3);
  const std::vector<payload::DeltaBlock> good = fixture.model.DeltaBlocks(1, 2);
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<payload::DeltaBlock> blocks = good;
    blocks[at].data.resize(blocks[at].data.size() / 2);
    const payload::PayloadIdentity identity{fixture.model.run(), 1, 2, {}, {}, 0};
    const payload::DeltaChain chain{*payload::Payload::Assemble(*fixture.model.layout(), identity, blocks),
                                    fixture.model.Delta(2, 3)};
    Bytes data = fixture.model.data(1);
    std::vector<BlockIndex> expected{good[at].block};
    // A whole block in the second step replaces the damage.
    const payload::PayloadEntry* later = chain[1]->Find(good[at].block);
    if (later != nullptr && later->codec == static_cast<uint8_t>(payload::Codec::kRaw)) expected.clear();
    CHECK(fixture.Apply(chain, fixture.All(1), data) == expected);
  }
}

TEST_CASE("An empty chain changes nothing") {
  Fixture fixture(1);
  Bytes data = fixture.model.data(1);
  CHECK(fixture.Apply({}, fixture.All(1), data).empty());
  CHECK(data == fixture.model.data(1));
}

}  // namespace lockstep::replica
