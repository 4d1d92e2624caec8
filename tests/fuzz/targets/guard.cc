// What a trainer wants its versions to keep (trainer_agent/run/guard.h), as it comes with BEGIN.
#include "trainer_agent/run/guard.h"

#include "common/base/text.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<Bytes> Seeds() {
  return {Copy(AsBytes(std::string_view(R"({"nonfinite": "refuse", "density": [1e-6, 0.5], "largest_step": 0.25})"))),
          Copy(AsBytes(std::string_view(R"({"nonfinite": "count"})")))};
}

void TestInput(ByteView input) {
  const Result<run::Guard> guard = run::ReadGuard(AsText(input));
  if (!guard.ok()) return CheckRefusal(guard.status(), {ErrorCode::kBadData});
  LS_FUZZ_RULE(0 <= guard->least_density && guard->least_density <= guard->most_density && guard->most_density <= 1);
  LS_FUZZ_RULE(guard->largest_step >= 0);
  Accepted(input, {guard->refuse_nonfinite, guard->least_density > 0, guard->largest_step < 1});
}

}  // namespace lockstep::fuzz
