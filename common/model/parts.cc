#include "common/model/parts.h"

#include <nlohmann/json.hpp>

#include "common/base/text.h"

namespace lockstep::model {

std::string PartText(const PartNumber& number) {
  return Cat(R"({"part": )", number.part, R"(, "parts": )", number.parts, "}");
}

Result<std::optional<PartNumber>> PartOf(const ModelLayout& layout) {
  const auto at = layout.attachments().find(std::string(kPartAttachment));
  if (at == layout.attachments().end()) return std::optional<PartNumber>();
  const auto json = nlohmann::json::parse(at->second, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* key) -> uint64_t {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : UINT64_MAX;
  };
  const uint64_t part = number("part");
  const uint64_t parts = number("parts");
  if (parts == 0 || parts > kMaxParts || part >= parts) {
    return Status(ErrorCode::kBadData,
                  Cat("attachment \"", kPartAttachment, "\": give {\"part\": N, \"parts\": M} with M ", "of 1 to ",
                      kMaxParts, " and N below M"));
  }
  return std::optional(PartNumber{static_cast<uint32_t>(part), static_cast<uint32_t>(parts)});
}

}  // namespace lockstep::model
