// The linkstamp of this package: compiled when a binary is linked, with what bazel/workspace_status.sh said.
#include "common/telemetry/build_info.h"

namespace lockstep::telemetry {

std::string_view BuildRevision() {
  constexpr std::string_view kUnstamped = "0";  // Bazel's own word for it: tests, and builds without --stamp
  constexpr std::string_view kRevision = BUILD_SCM_REVISION;
  return kRevision == kUnstamped ? "unknown" : kRevision;
}

}  // namespace lockstep::telemetry
