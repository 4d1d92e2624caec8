// ParameterName: a Megatron-core parameter's name taken apart, and why names that no row has are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "export_plugin/rules/family.h"

namespace lockstep::rules {

struct ParameterName {
  enum class Scope : uint8_t { kWhole, kDecoder, kMtpLayer, kMtpInner };

  Scope scope = Scope::kWhole;
  uint64_t layer = 0;              // within the decoder or the MTP block
  std::optional<uint64_t> expert;  // local
  std::string pattern;             // within the scope, the expert's number as {}
};

// `module.` prefixes are stripped. kBadData for what is known to be no plain parameter: fp8 scales, adapters, fused
// experts; it says what to do.
Result<ParameterName> ParseParameterName(std::string_view name);

// Whether the row has the pattern among its names.
bool Matches(const FamilyRow& row, std::string_view pattern);

// The name of the family's table that is most like `pattern`.
std::string_view NearestPattern(const Family& family, std::string_view pattern);

}  // namespace lockstep::rules
