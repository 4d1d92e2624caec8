// A target as a test: its seeds, its corpus, and what lies a step away from a seed.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

void OnAccepted(ByteView, uint32_t) {}

namespace {

constexpr size_t kPlaces = 256;  // of a seed that are changed

// On the heap and no byte longer, for sanitizers.
void RunCopy(ByteView input) {
  const Bytes copy = Copy(input);
  Run(copy);
}

}  // namespace

TEST_CASE("The decoder takes seeds") {
  const Outcomes before = OutcomesSoFar();
  for (const Bytes& seed : Seeds()) RunCopy(seed);
  CHECK(OutcomesSoFar().accepted > before.accepted);
}

TEST_CASE("What fuzzers found keeps the rules") {
  // A broken rule ends the process.
  const std::vector<Bytes> inputs = CorpusInputs(LOCKSTEP_FUZZ_CORPUS);
  const Outcomes before = OutcomesSoFar();
  for (const Bytes& input : inputs) RunCopy(input);
  const uint64_t judged = OutcomesSoFar().accepted + OutcomesSoFar().refused - before.accepted - before.refused;
  CHECK((judged > 0 || inputs.empty()));
}

TEST_CASE("A seed that is cut short or has another byte keeps the rules, and some are refused") {
  const Outcomes before = OutcomesSoFar();
  for (const Bytes& seed : Seeds()) {
    const size_t stride = std::max<size_t>(1, seed.size() / kPlaces);
    for (size_t at = 0; at < seed.size(); at += stride) {
      RunCopy(ByteView(seed).first(at));
      for (const uint8_t flip : {0x01, 0x10, 0x80, 0xff}) {
        Bytes changed = seed;
        changed[at] ^= std::byte{flip};
        RunCopy(changed);
      }
    }
  }
  CHECK(OutcomesSoFar().refused > before.refused);
}

}  // namespace lockstep::fuzz
