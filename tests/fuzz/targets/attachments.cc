// The JSON with which a trainer gives a model its attachments (common/model/attachments.h).
#include "common/model/attachments.h"

#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<Bytes> Seeds() {
  return {Copy(AsBytes(std::string_view(R"({"adapter_config.json": "{\"r\": 8}"})"))),
          Copy(AsBytes(std::string_view(R"({"b-1.txt": "", "a": "\u00e9\n"})")))};
}

void TestInput(ByteView input) {
  const auto parsed = model::ParseAttachments(AsText(input));
  if (!parsed.ok()) return CheckRefusal(parsed.status(), {ErrorCode::kBadData});
  LS_FUZZ_RULE(model::CheckAttachments(*parsed).ok());
  Bytes encoded;
  model::AppendAttachments(encoded, *parsed);
  ByteReader reader(encoded);
  const auto again = model::TakeAttachments(reader, static_cast<uint32_t>(parsed->size()));
  LS_FUZZ_RULE(again.ok() && reader.empty() && *again == *parsed);
  if (parsed->size() != 2) return Accepted(input, {});
  Accepted(input, {parsed->begin()->second.size() > 5, parsed->rbegin()->second.size() > 2});
}

}  // namespace lockstep::fuzz
