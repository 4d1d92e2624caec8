#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/unique_fd.h"

namespace lockstep::fuzz {
namespace {

constexpr size_t kMaxMessage = 16 << 10;
constexpr size_t kMostShown = 8 << 10;  // bytes of an input that broke a rule

ByteView g_input;  // that is being tested
Outcomes g_outcomes;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

Bytes FromHex(std::string_view line) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < line.size(); i += 2) {
    const int high = HexDigit(line[i]);
    const int low = HexDigit(line[i + 1]);
    LS_FUZZ_RULE(high >= 0 && low >= 0);
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  LS_FUZZ_RULE(line.size() % 2 == 0);
  return bytes;
}

}  // namespace

void Require(bool holds, const char* rule, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: broken rule: %s\ninput of %zu bytes:\n", file, line, rule, g_input.size());
  for (const std::byte byte : g_input.first(std::min(g_input.size(), kMostShown))) {
    std::fprintf(stderr, "%02x", static_cast<unsigned>(byte));
  }
  std::fputc('\n', stderr);
  std::abort();
}

void CheckRefusal(const Status& status, std::initializer_list<ErrorCode> codes) {
  ++g_outcomes.refused;
  const std::string& message = status.message();
  const bool named = std::find(codes.begin(), codes.end(), status.code()) != codes.end();
  const bool readable = !message.empty() && CleanText(message, kMaxMessage) == message;
  if (!named || !readable) std::fprintf(stderr, "refused with %s\n", status.ToString().substr(0, kMaxMessage).c_str());
  LS_FUZZ_RULE(named);
  LS_FUZZ_RULE(readable);
}

void Accepted(ByteView input, const Steps& steps) {
  ++g_outcomes.accepted;
  uint32_t held = 0;
  for (size_t i = 0; i < steps.size(); ++i) held |= uint32_t{steps[i]} << i;
  OnAccepted(input, held);
}

Bytes Copy(ByteView bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string FileOf(ByteView text) {
  static const os::UniqueFd file(::memfd_create("fuzz", MFD_CLOEXEC));
  static const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  LS_FUZZ_RULE(::ftruncate(file.get(), 0) == 0);
  LS_FUZZ_RULE(os::WriteAll(file.get(), 0, text, path).ok());
  return path;
}

void Run(ByteView input) {
  g_input = input;
  TestInput(input);
}

std::vector<Bytes> CorpusInputs(const std::string& path) {
  std::ifstream corpus(path);
  if (!corpus) std::fprintf(stderr, "%s cannot be read; run this in the repository's root\n", path.c_str());
  LS_FUZZ_RULE(static_cast<bool>(corpus));
  std::vector<Bytes> inputs;
  for (std::string line; std::getline(corpus, line);) {
    if (!line.starts_with('#')) inputs.push_back(FromHex(line));
  }
  return inputs;
}

const Outcomes& OutcomesSoFar() {
  return g_outcomes;
}

}  // namespace lockstep::fuzz
