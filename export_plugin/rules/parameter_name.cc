#include "export_plugin/rules/parameter_name.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/text.h"

namespace lockstep::rules {
namespace {

constexpr size_t kMaxNumberDigits = 9;
constexpr size_t kMaxComparedName = 256;

struct Foreign {
  std::string_view part;
  bool at_end;
  std::string_view why;
};

// What Megatron-core is known to put among parameters and no rule can export.
constexpr Foreign kForeign[] = {
    {"_extra_state", true, "is Transformer Engine's extra state, no parameter: leave it out"},
    {".mlp.experts.weight1", true, "is GroupedMLP's one tensor for all experts: build the model with TEGroupedMLP"},
    {".mlp.experts.weight2", true, "is GroupedMLP's one tensor for all experts: build the model with TEGroupedMLP"},
    {".mlp.experts.linear_fc1.weight", true, "holds all experts in one tensor: unset moe_single_grouped_weight"},
    {".mlp.experts.linear_fc2.weight", true, "holds all experts in one tensor: unset moe_single_grouped_weight"},
    {"_scale_inv", true, "belongs to fp8 weights: export the high-precision ones"},
    {"_scale", true, "belongs to fp8 weights: export the high-precision ones"},
    {".lora_", false, "belongs to an adapter: export it as an adapter, or merge it first"},
    {".adapter.", false, "belongs to an adapter: export it as an adapter, or merge it first"},
    {".linear_in.", false, "belongs to an adapter: export it as an adapter, or merge it first"},
    {".linear_out.", false, "belongs to an adapter: export it as an adapter, or merge it first"},
};

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The decimal number at the start of `text`, which loses it.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > kMaxNumberDigits || (digits > 1 && text[0] == '0')) return std::nullopt;
  uint64_t number = 0;
  for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1))
    number = number * 10 + (text[0] - '0');
  return number;
}

// "17.self_attention..." behind "decoder.layers.".
bool TakeLayer(std::string_view& text, ParameterName& name) {
  std::string_view rest = text;
  const auto layer = TakeNumber(rest);
  if (!layer || !TakePrefix(rest, ".")) return false;
  name.layer = *layer;
  text = rest;
  return true;
}

// Puts {} for the expert's number of grouped ("...weight3") and sequential ("local_experts.3...") experts.
std::string TakeExpert(std::string_view text, ParameterName& name) {
  constexpr std::string_view kSequential = "mlp.experts.local_experts.";
  std::string_view number = text;
  if (TakePrefix(number, kSequential)) {
    name.expert = TakeNumber(number);
    return name.expert ? Cat(kSequential, "{}", number) : std::string(text);
  }
  if (!text.starts_with("mlp.experts.")) return std::string(text);
  const size_t stem = text.find_last_not_of("0123456789") + 1;
  number = text.substr(stem);
  name.expert = TakeNumber(number);
  return name.expert ? Cat(text.substr(0, stem), "{}") : std::string(text);
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

Result<ParameterName> ParseParameterName(std::string_view name) {
  for (const Foreign& foreign : kForeign) {
    if (foreign.at_end ? name.ends_with(foreign.part) : name.find(foreign.part) != std::string_view::npos) {
      return Status(ErrorCode::kBadData, std::string(foreign.why));
    }
  }
  while (TakePrefix(name, "module.")) {
  }
  using Scope = ParameterName::Scope;
  ParameterName parsed;
  std::string_view rest = name;
  if (TakePrefix(rest, "decoder.layers.") && TakeLayer(rest, parsed)) {
    parsed.scope = Scope::kDecoder;
  } else if (rest = name; TakePrefix(rest, "mtp.layers.") && TakeLayer(rest, parsed)) {
    const bool inner = TakePrefix(rest, "transformer_layer.") || TakePrefix(rest, "mtp_model_layer.");
    parsed.scope = inner ? Scope::kMtpInner : Scope::kMtpLayer;
  } else {
    rest = name;
  }
  const bool layered = parsed.scope == Scope::kDecoder || parsed.scope == Scope::kMtpInner;
  parsed.pattern = layered ? TakeExpert(rest, parsed) : std::string(rest);
  return parsed;
}

bool Matches(const FamilyRow& row, std::string_view pattern) {
  for (std::string_view names = row.mcore; !names.empty();) {
    if (NextPart(names) == pattern) return true;
  }
  return false;
}

std::string_view NearestPattern(const Family& family, std::string_view pattern) {
  std::string_view nearest;
  size_t least = kMaxComparedName * 2;
  for (const std::span<const FamilyRow> rows : family.rows) {
    for (const FamilyRow& row : rows) {
      for (std::string_view names = row.mcore; !names.empty();) {
        const std::string_view candidate = NextPart(names);
        const size_t distance = EditDistance(pattern.substr(0, kMaxComparedName), candidate);
        if (distance < least) nearest = candidate, least = distance;
      }
    }
  }
  return nearest;
}

}  // namespace lockstep::rules
