// The JSON with which a trainer's process asks whether a version is served (trainer_agent/serve/served_wait.h), and
// what it changed (version_changes.h).
#include "common/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "trainer_agent/serve/served_wait.h"
#include "trainer_agent/serve/version_changes.h"

namespace lockstep::fuzz {

std::vector<Bytes> Seeds() {
  return {
      Copy(AsBytes(std::string_view(
          R"({"model": "actor", "run": "000102030405060708090a0b0c0d0e0f", "version": 7, "names": ["a", "b/1"]})"))),
      Copy(AsBytes(std::string_view(
          R"({"model": "actor", "run": "000102030405060708090a0b0c0d0e0f", "label": "x", "engines": 8, "timeout_ms": 1})")))};
}

// No trainer has opened a model, and the caller does not wait.
void TestInput(ByteView input) {
  static run::VersionCatalog catalog;
  static serve::ReceiverReports reports;
  const auto changes = serve::AwaitChangesJson(catalog, AsText(input), [] { return true; });
  LS_FUZZ_RULE(!changes.ok());
  if (changes.status().code() != ErrorCode::kCancelled) {
    CheckRefusal(changes.status(), {ErrorCode::kProtocol, ErrorCode::kNotFound, ErrorCode::kDeadline});
  }
  const auto answer = serve::AwaitServedJson(catalog, reports, AsText(input), [] { return true; });
  LS_FUZZ_RULE(!answer.ok());
  if (answer.status().code() != ErrorCode::kCancelled) {
    return CheckRefusal(answer.status(), {ErrorCode::kProtocol, ErrorCode::kBadData, ErrorCode::kNotFound});
  }
  const std::string_view text = AsText(input);
  Accepted(input, {text.find("names") != text.npos, text.find("engines") != text.npos, text.size() > 120});
}

}  // namespace lockstep::fuzz
