// A target as a libFuzzer program. `--seeds-to=DIR` writes its seeds and its corpus to files of DIR, and nothing else
// happens; libFuzzer starts from them.
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/base/text.h"
#include "common/os/file.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr std::string_view kSeedsTo = "--seeds-to=";

// To libFuzzer an input that holds steps which no other held together is worth as much as one that covers something
// new.
constexpr size_t kStepCounters = 16;
__attribute__((section("__libfuzzer_extra_counters"))) uint8_t g_steps_held[kStepCounters];

// What libFuzzer keeps was mostly refused, each input in a way of its own, so behind a decoder little would be changed.
// Hence every other change begins from one of these: of the inputs that were taken and held such steps the 1st, 2nd,
// 4th, 8th and so on.
struct Taken {
  uint64_t count = 0;
  std::vector<Bytes> some;
};
std::array<Taken, kStepCounters> g_taken;  // by steps

void Remember(ByteView input, Taken& taken) {
  if (std::has_single_bit(++taken.count)) taken.some.push_back(Copy(input));
}

// One of them, from each set of steps as likely as from the others; null when nothing was taken.
const Bytes* SomeTaken(unsigned random) {
  std::vector<const std::vector<Bytes>*> sets;
  for (const Taken& taken : g_taken) {
    if (!taken.some.empty()) sets.push_back(&taken.some);
  }
  if (sets.empty()) return nullptr;
  const std::vector<Bytes>& some = *sets[random % sets.size()];
  return &some[random / sets.size() % some.size()];
}

int WriteSeeds(const std::string& directory) {
  std::vector<Bytes> inputs = Seeds();
  for (Bytes& input : CorpusInputs(LOCKSTEP_FUZZ_CORPUS)) inputs.push_back(std::move(input));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Status written = os::WriteFileAtomic(Cat(directory, "/seed-", i), std::span<const std::byte>(inputs[i]));
    if (written.ok()) continue;
    std::fprintf(stderr, "%s\n", written.ToString().c_str());
    return 1;
  }
  return 0;
}

}  // namespace

void OnAccepted(ByteView input, uint32_t steps) {
  LS_FUZZ_RULE(steps < kStepCounters);
  g_steps_held[steps] = 1;
  Remember(input, g_taken[steps]);
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string_view word = (*argv)[i];
    if (!word.starts_with(lockstep::fuzz::kSeedsTo)) continue;
    std::exit(lockstep::fuzz::WriteSeeds(std::string(word.substr(lockstep::fuzz::kSeedsTo.size()))));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  lockstep::fuzz::Run({reinterpret_cast<const std::byte*>(data), bytes});
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t most);  // libFuzzer's

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t most, unsigned random) {
  const lockstep::Bytes* const taken = random % 2 == 0 ? nullptr : lockstep::fuzz::SomeTaken(random / 2);
  if (taken != nullptr && !taken->empty() && taken->size() <= most) {
    std::memcpy(data, taken->data(), taken->size());
    bytes = taken->size();
  }
  return LLVMFuzzerMutate(data, bytes, most);
}
