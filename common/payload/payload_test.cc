#include "common/payload/payload.h"

#include <catch2/catch.hpp>
#include <random>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/payload/block_apply.h"
#include "kernels/diff.h"
#include "kernels/hash.h"

namespace lockstep::payload {
namespace {

constexpr uint32_t kBlock = 4096;

std::shared_ptr<const model::ModelLayout> Layout() {
  return *model::ModelLayout::Create({{"a", model::DType::kBF16, {7000}, 0}, {"b", model::DType::kU8, {1001}, 14000}},
                                     kBlock);
}

// A model's history: its bytes at each version, and the payloads between them.
struct History {
  std::shared_ptr<const model::ModelLayout> layout = Layout();
  RunId run = RandomId<RunId>();
  std::vector<Bytes> versions;
  std::vector<std::shared_ptr<const Payload>> deltas;
  std::mt19937_64 random{5};

  History() {
    Bytes first(layout->data_bytes());
    for (std::byte& byte : first) byte = static_cast<std::byte>(random());
    versions.push_back(std::move(first));
  }

  std::vector<uint64_t> Hashes(const Bytes& bytes) const {
    std::vector<uint64_t> hashes;
    for (BlockIndex i = 0; i < layout->block_count(); ++i) {
      const ByteRange range = layout->block_range(i);
      hashes.push_back(model::BlockHash(ByteView(bytes).subspan(range.offset, range.bytes)));
    }
    return hashes;
  }
  ManifestDigest Digest(size_t version) const {
    return model::ComputeManifestDigest(layout->digest(), Hashes(versions[version]));
  }

  void Publish(Bytes next, bool raw) {
    const Bytes& last = versions.back();
    std::vector<DeltaBlock> blocks;
    for (BlockIndex i = 0; i < layout->block_count(); ++i) {
      const ByteRange range = layout->block_range(i);
      const ByteView target = ByteView(next).subspan(range.offset, range.bytes);
      Changes changes;
      changes.positions.resize(range.bytes);
      changes.steps.resize(range.bytes);
      const size_t count =
          kernels::FindChangesAndHash(last.data() + range.offset, target.data(), range.bytes, layout->block_unit(i),
                                      changes.positions.data(), changes.steps.data())
              .changes;
      changes.positions.resize(count);
      changes.steps.resize(count);
      if (count == 0) continue;
      DeltaBlock block{.block = i, .changes = static_cast<uint32_t>(count), .target_hash = model::BlockHash(target)};
      if (raw) {
        block.data.assign(target.begin(), target.end());
      } else {
        block.codec = Codec::kSparse;
        EncodeSparse(changes, layout->block_unit(i), CodecLevel::kFast, block.data);
      }
      block.data_hash = Hash64(block.data);
      blocks.push_back(std::move(block));
    }
    versions.push_back(std::move(next));
    const size_t target = versions.size() - 1;
    deltas.push_back(*Payload::Assemble(*layout,
                                        {.run = run,
                                         .base = target,
                                         .target = target + 1,
                                         .base_digest = Digest(target - 1),
                                         .target_digest = Digest(target)},
                                        blocks));
  }
  void Step(bool raw = false) {
    Bytes next = versions.back();
    for (int i = 0; i < 40; ++i) next[random() % next.size()] = static_cast<std::byte>(random());
    Publish(std::move(next), raw);
  }
};

Bytes Applied(const model::ModelLayout& layout, Bytes bytes, const Payload& payload) {
  for (const PayloadEntry& entry : payload.entries()) {
    const ByteRange range = layout.block_range(entry.block);
    const EntryData data{&entry, payload.data(entry)};
    const auto hash = ApplyEntries({&data, 1}, std::span(bytes).subspan(range.offset, range.bytes));
    REQUIRE(hash.ok());
    CHECK(*hash == entry.target_hash);
  }
  return bytes;
}

TEST_CASE("A payload brings its base to its target, and survives being stored") {
  History history;
  history.Step();
  const Payload& payload = *history.deltas[0];
  CHECK(Applied(*history.layout, history.versions[0], payload) == history.versions[1]);
  const auto stored = Payload::Open(*history.layout, {payload.bytes(), nullptr});
  REQUIRE(stored.ok());
  CHECK((*stored)->header().target == 2);
  CHECK((*stored)->Find(99) == nullptr);
}

TEST_CASE("A block takes the entries from its version on, and none from before a raw one") {
  History history;
  for (const bool raw : {false, true, false, false}) history.Step(raw);
  std::vector<EntryData> entries;
  const auto versions = [&](BlockIndex block, Version from) {
    FindEntries(history.deltas, block, from, entries);
    std::vector<Version> found;
    for (const EntryData& entry : entries) {
      const auto step =
          std::ranges::find_if(history.deltas, [&](const auto& delta) { return delta->Find(block) == entry.entry; });
      found.push_back((*step)->base().version);
    }
    return found;
  };
  for (const auto& delta : history.deltas) REQUIRE(delta->Find(0) != nullptr);
  CHECK(versions(0, 1) == std::vector<Version>{2, 3, 4});
  CHECK(versions(0, 3) == std::vector<Version>{3, 4});
  CHECK(versions(0, 5).empty());
}

TEST_CASE("An entry that is damaged or of another size is refused, naming its block") {
  History history;
  history.Step(true);
  history.Step(false);
  for (const auto& delta : history.deltas) {
    const PayloadEntry& entry = delta->entries()[1];
    const EntryData data{&entry, delta->data(entry).first(1)};
    Bytes block(history.layout->block_range(entry.block).bytes);
    const Status refused = ApplyEntries({&data, 1}, block).status();
    CHECK_THAT(refused, FailsWith(ErrorCode::kCorrupt, Cat("block ", entry.block)));
  }
}

TEST_CASE("A payload of format 1 is refused by name, and noise as noise") {
  History history;
  history.Step();
  const ByteView good = history.deltas[0]->bytes();
  Bytes bad(good.begin(), good.end());
  bad[7] = std::byte{'1'};
  bad[8] = std::byte{1};
  const Status old = Payload::Open(*history.layout, {bad, nullptr}).status();
  CHECK_THAT(old, FailsWith(ErrorCode::kProtocol, "format 1 is not known here (known: 2)"));
  bad[0] = std::byte{'X'};
  CHECK_THAT(Payload::Open(*history.layout, {bad, nullptr}), FailsWith(ErrorCode::kProtocol, "magic"));
}

TEST_CASE("Every flipped byte and every truncation of a stored payload is refused") {
  History history;
  history.Step();
  const ByteView good = history.deltas[0]->bytes();
  for (size_t at = 0; at < good.size(); ++at) {
    Bytes bad(good.begin(), good.end());
    bad[at] ^= std::byte{0x10};
    const bool foreign = at < 7 || at == 8 || at == 9;  // another magic, another format
    CHECK_THAT(Payload::Open(*history.layout, {bad, nullptr}),
               FailsWith(foreign ? ErrorCode::kProtocol : ErrorCode::kCorrupt, "payload: "));
  }
  for (size_t cut = 0; cut < good.size(); ++cut) {
    const Bytes bad(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(cut));
    CHECK_THAT(Payload::Open(*history.layout, {bad, nullptr}), FailsWith(ErrorCode::kCorrupt, "payload: "));
  }
}

// Opens a stored payload after `change` changed its header or first entry and the hashes of both were put right.
template <typename Change>
Status OpenChanged(const History& history, const Change& change) {
  const ByteView good = history.deltas[0]->bytes();
  Bytes bad(good.begin(), good.end());
  PayloadHeader header;
  PayloadEntry entry;
  std::memcpy(&header, bad.data(), sizeof header);
  std::memcpy(&entry, bad.data() + sizeof header, sizeof entry);
  change(header, entry);
  std::memcpy(bad.data() + sizeof header, &entry, sizeof entry);
  header.entries_hash = Hash64(bad.data() + sizeof header, header.entries * sizeof entry);
  header.header_hash = Hash64(&header, offsetof(PayloadHeader, header_hash));
  std::memcpy(bad.data(), &header, sizeof header);
  return Payload::Open(*history.layout, {bad, nullptr}).status();
}

TEST_CASE("A stored payload says only what its own entries say, whatever its hashes") {
  History history;
  history.Step();
  CHECK(OpenChanged(history, [](PayloadHeader&, PayloadEntry&) {}).ok());
  CHECK_THAT(OpenChanged(history, [](PayloadHeader& header, PayloadEntry&) { ++header.changed_elements; }),
             FailsWith(ErrorCode::kCorrupt, "changed elements, not"));
  CHECK_THAT(OpenChanged(history, [](PayloadHeader&, PayloadEntry& entry) { ++entry.changes; }),
             FailsWith(ErrorCode::kCorrupt, "changed elements, not"));
  CHECK_THAT(OpenChanged(history, [](PayloadHeader& header, PayloadEntry&) { header.reserved = 1; }),
             FailsWith(ErrorCode::kProtocol, "its header is none of format 2"));
  CHECK_THAT(OpenChanged(history, [](PayloadHeader&, PayloadEntry& entry) { entry.reserved = 1; }),
             FailsWith(ErrorCode::kCorrupt, "block 0: its reserved bytes are not 0"));
  CHECK_THAT(OpenChanged(history, [](PayloadHeader& header, PayloadEntry&) { header.base = header.target; }),
             FailsWith(ErrorCode::kProtocol, "payload: goes from version 2 to 2"));
}

TEST_CASE("A payload of another layout is refused") {
  History history;
  history.Step();
  const auto other = *model::ModelLayout::Create({{"a", model::DType::kU8, {15001}, 0}}, kBlock);
  CHECK_THAT(Payload::Open(*other, {history.deltas[0]->bytes(), nullptr}),
             FailsWith(ErrorCode::kBadData, "payload: made for layout"));
}

TEST_CASE("Blocks outside the layout or given twice do not assemble") {
  const auto layout = Layout();
  std::vector<DeltaBlock> blocks(1);
  blocks[0].block = layout->block_count();
  CHECK_THAT(Payload::Assemble(*layout, {.base = 1, .target = 2}, blocks),
             FailsWith(ErrorCode::kBadData, "delta block 4 is outside the layout's 4"));
  blocks[0].block = 0;
  blocks.push_back(blocks[0]);
  CHECK_THAT(Payload::Assemble(*layout, {.base = 1, .target = 2}, blocks),
             FailsWith(ErrorCode::kBadData, "delta block 0 is given twice"));
}

}  // namespace
}  // namespace lockstep::payload
