// The coding of one block's changes (common/payload/block_codec.h). The first byte of an input chooses unit, block size
// and level, the rest is the coded block.
#include "common/payload/block_codec.h"

#include <algorithm>
#include <array>

#include "common/payload/block_apply.h"
#include "kernels/hash.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

using payload::Changes;
using payload::CodecLevel;

constexpr std::array<uint32_t, 4> kUnits = {1, 2, 4, 8};
constexpr std::array<size_t, 4> kBlockBytes = {24, 4096, 8 * 333, 16384};

struct Case {
  uint32_t unit = 0;
  size_t block_bytes = 0;
  CodecLevel level = CodecLevel::kFast;
  ByteView coded;
};

Case CaseOf(ByteView input) {
  const auto choice = static_cast<uint8_t>(input[0]);
  return {.unit = kUnits[choice & 3],
          .block_bytes = kBlockBytes[choice >> 2 & 3],
          .level = CodecLevel::All()[(choice >> 4) % CodecLevel::All().size()],
          .coded = input.subspan(1)};
}

uint64_t UnitMask(uint32_t unit) {
  return ~uint64_t{0} >> (64 - 8 * unit);
}

void CheckInvariants(const Changes& changes, const Case& of) {
  LS_FUZZ_RULE(changes.size() >= 1 && changes.positions.size() == changes.steps.size());
  LS_FUZZ_RULE(changes.positions.back() < of.block_bytes / of.unit);
  for (size_t i = 1; i < changes.size(); ++i) LS_FUZZ_RULE(changes.positions[i - 1] < changes.positions[i]);
  for (const uint64_t step : changes.steps) LS_FUZZ_RULE(step != 0 && (step & ~UnitMask(of.unit)) == 0);
}

bool Same(const Changes& a, const Changes& b) {
  return a.positions == b.positions && a.steps == b.steps;
}

// Encoded at the level they are the same changes again.
void CheckEncoding(const Changes& changes, const Case& of) {
  Bytes encoded;
  payload::EncodeSparse(changes, of.unit, of.level, encoded);
  Changes again;
  LS_FUZZ_RULE(payload::DecodeSparse(encoded, of.unit, of.block_bytes, again).ok());
  LS_FUZZ_RULE(Same(again, changes));
}

void AddOneByOne(const Changes& changes, uint32_t unit, Bytes& block) {
  for (size_t i = 0; i < changes.size(); ++i) {
    uint64_t value = 0;
    std::memcpy(&value, block.data() + size_t{changes.positions[i]} * unit, unit);
    value += changes.steps[i];
    std::memcpy(block.data() + size_t{changes.positions[i]} * unit, &value, unit);
  }
}

// Applied twice it changes the block as adding one by one does, and nothing beyond it.
void CheckApplying(const Changes& changes, const Case& of) {
  Bytes block(of.block_bytes, std::byte{0xa5});
  Bytes expected = block;
  AddOneByOne(changes, of.unit, expected);
  AddOneByOne(changes, of.unit, expected);
  const payload::PayloadEntry entry{.codec = static_cast<uint8_t>(payload::Codec::kSparse),
                                    .unit = static_cast<uint8_t>(of.unit)};
  const std::array<payload::EntryData, 2> twice = {{{&entry, of.coded}, {&entry, of.coded}}};
  const Result<uint64_t> hash = payload::ApplyEntries(twice, block);
  LS_FUZZ_RULE(hash.ok());
  LS_FUZZ_RULE(block == expected);
  LS_FUZZ_RULE(*hash == Hash64(expected));
}

Bytes Seed(uint8_t choice, const Changes& changes) {
  Bytes seed(1, std::byte{choice});
  const Case of = CaseOf(seed);
  payload::EncodeSparse(changes, of.unit, of.level, seed);
  return seed;
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const char* name : {"sparse", "compact"}) {
    Bytes seed(1, std::byte{5});  // unit 2, 4096 bytes
    AppendBytes(seed, HexBlock("common/payload/FORMAT.md", name));
    seeds.push_back(std::move(seed));
  }
  seeds.push_back(Seed(2 + 0, {.positions = {0, 2, 5}, .steps = {1, 0xffffffff, 0x3f800000}}));
  seeds.push_back(Seed(3 + 4, {.positions = {7, 8, 500}, .steps = {1, 0x8000000000000000, 0x12345678}}));
  Changes many;
  for (uint32_t i = 0; i < 120; ++i) {
    many.positions.push_back(i * 3 + i % 2);
    many.steps.push_back(i % 5 == 0 ? 255 : 1);
  }
  seeds.push_back(Seed(0 + 8 + 16, many));
  return seeds;
}

void TestInput(ByteView input) {
  if (input.empty()) return;
  const Case of = CaseOf(input);
  Changes changes;
  const Status decoded = payload::DecodeSparse(of.coded, of.unit, of.block_bytes, changes);
  std::vector<uint32_t> positions;
  const Status half = payload::DecodePositions(of.coded, of.unit, of.block_bytes, positions);
  if (!decoded.ok()) {
    if (!half.ok()) CheckRefusal(half, {ErrorCode::kCorrupt});
    return CheckRefusal(decoded, {ErrorCode::kCorrupt});
  }
  LS_FUZZ_RULE(half.ok() && positions == changes.positions);
  CheckInvariants(changes, of);
  CheckEncoding(changes, of);
  CheckApplying(changes, of);
  Accepted(input, {of.unit == 4 && of.block_bytes == 4096, changes.size() == 3, changes.positions[0] == 9});
}

}  // namespace lockstep::fuzz
