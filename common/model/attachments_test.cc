#include "common/model/attachments.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/model/layout.h"

namespace lockstep::model {
namespace {

constexpr size_t kAttachmentCountAt = 28;  // in an encoded layout

Result<std::shared_ptr<const ModelLayout>> WithAttachments(Attachments attachments) {
  return ModelLayout::Create({{"w", DType::kBF16, {3, 2}, 0}}, kMinBlockBytes, std::move(attachments));
}

Bytes Encoded(Attachments attachments) {
  return (*WithAttachments(std::move(attachments)))->encoded();
}

// An encoding with these attachments, in this order, whatever the rules say.
Bytes Forge(const std::vector<std::pair<std::string, std::string>>& attachments) {
  Bytes encoded = Encoded({});
  const auto count = static_cast<uint32_t>(attachments.size());
  std::memcpy(encoded.data() + kAttachmentCountAt, &count, sizeof count);
  for (const auto& [name, text] : attachments) AppendAttachments(encoded, {{name, text}});
  return encoded;
}

TEST_CASE("Attachments round-trip in a layout's encoding, whatever text they hold") {
  const Attachments attachments{{"adapter_config.json", R"({"r": 8})"},
                                {"empty.txt", ""},
                                {"note.md", std::string("zwölf\n\t\0\x01", 10)},
                                {"A-1_b.C", std::string(kMaxAttachmentBytes, 'x')}};
  const auto layout = *WithAttachments(attachments);
  CHECK(layout->attachments() == attachments);
  const auto decoded = ModelLayout::Decode(layout->encoded());
  REQUIRE(decoded.ok());
  CHECK((*decoded)->attachments() == attachments);
  CHECK((*decoded)->digest() == layout->digest());
  CHECK((*decoded)->encoded() == layout->encoded());
}

TEST_CASE("A layout's digest depends on the name and on the text of every attachment") {
  const LayoutDigest none = (*WithAttachments({}))->digest();
  const LayoutDigest one = (*WithAttachments({{"a.json", "{}"}}))->digest();
  CHECK(one != none);
  CHECK((*WithAttachments({{"b.json", "{}"}}))->digest() != one);
  CHECK((*WithAttachments({{"a.json", "{ }"}}))->digest() != one);
  CHECK((*WithAttachments({{"a.json", "{}"}, {"b.txt", ""}}))->digest() != one);
}

TEST_CASE("Every truncation of an encoding with attachments is refused, and bytes behind it are") {
  Bytes encoded = Encoded({{"adapter_config.json", "{}"}, {"b.txt", "text"}});
  for (size_t cut = 0; cut < encoded.size(); ++cut) {
    REQUIRE_THAT(ModelLayout::Decode(ByteView(encoded).first(cut)),
                 FailsWith(ErrorCode::kProtocol, "encoded layout: truncated"));
  }
  encoded.push_back(std::byte{0});
  CHECK_THAT(ModelLayout::Decode(encoded), FailsWith(ErrorCode::kProtocol, "bytes after its last entry"));
}

TEST_CASE("One set of attachments has one encoding: names that do not rise are refused") {
  CHECK(ModelLayout::Decode(Forge({{"a", "1"}, {"b", "2"}})).ok());
  for (const auto& forged : {Forge({{"b", "2"}, {"a", "1"}}), Forge({{"a", "1"}, {"a", "1"}})}) {
    const auto layout = ModelLayout::Decode(forged);
    CHECK_THAT(layout, FailsWith(ErrorCode::kProtocol, "do not rise"));
  }
}

TEST_CASE("Names that could leave the directory, hide in it, be weights or be run are refused by name") {
  const std::string bad[] = {"",
                             ".",
                             "..",
                             ".hidden",
                             "a/b",
                             "../a",
                             "a b",
                             "a\n",
                             std::string("a\0b", 3),
                             "\xc3\xbc",
                             std::string(129, 'a'),
                             "model.safetensors",
                             "adapter_model.safetensors",
                             "model.safetensors.index.json",
                             "adapter_model.bin",
                             "pytorch_model.bin.index.json",
                             "a.pt",
                             "a.pth",
                             "a.gguf",
                             "modeling_a.py",
                             "lockstep.json"};
  for (const std::string& name : bad) {
    CHECK_THAT(WithAttachments({{name, "{}"}}), FailsWith(ErrorCode::kBadData, "attachment \""));
    CHECK_THAT(ModelLayout::Decode(Forge({{name, "{}"}})), FailsWith(ErrorCode::kBadData, "attachment \""));
  }
  CHECK_THAT(WithAttachments({{"model.safetensors", ""}}),
             FailsWith(ErrorCode::kBadData, "attachment \"model.safetensors\": the name is one of weights"));
  CHECK(WithAttachments({{std::string(128, 'a'), ""}}).ok());
}

TEST_CASE("Too many, too long and no-text attachments are refused with the limit") {
  Attachments many;
  for (size_t i = 0; i < kMaxAttachments; ++i) many["f" + std::to_string(i)] = "";
  CHECK(WithAttachments(many).ok());
  many["g"] = "";
  CHECK_THAT(WithAttachments(many), FailsWith(ErrorCode::kBadData, "17 attachments are given; the limit is 16"));
  CHECK_THAT(ModelLayout::Decode(Forge({many.begin(), many.end()})), FailsWith(ErrorCode::kProtocol, "17 attachments"));

  const std::string long_text(kMaxAttachmentBytes + 1, 'x');
  CHECK_THAT(WithAttachments({{"a.json", long_text}}),
             FailsWith(ErrorCode::kBadData, "\"a.json\": it has 1048577 bytes; the limit is 1.0 MiB"));
  CHECK_THAT(ModelLayout::Decode(Forge({{"a.json", long_text}})),
             FailsWith(ErrorCode::kBadData, "\"a.json\": it has 1048577 bytes; the limit is 1.0 MiB"));
  CHECK_THAT(WithAttachments({{"a.json", "\xff"}}), FailsWith(ErrorCode::kBadData, "no UTF-8"));
  CHECK_THAT(ModelLayout::Decode(Forge({{"a.json", "\xff"}})), FailsWith(ErrorCode::kBadData, "no UTF-8"));
}

TEST_CASE("Attachments are parsed from a JSON object of name to text") {
  CHECK(ParseAttachments("")->empty());
  CHECK(ParseAttachments("{}")->empty());
  const auto parsed = ParseAttachments(R"({"b.json": "{\"r\": 8}", "a.txt": "\u00fc\n"})");
  REQUIRE(parsed.ok());
  CHECK(*parsed == Attachments{{"a.txt", "ü\n"}, {"b.json", R"({"r": 8})"}});
}

TEST_CASE("Attachments in JSON that is no object of texts, or that names one twice, are refused") {
  for (const char* json : {"[]", "null", "{", R"({"a": "\ud800"})", "{} {}", "\"a\"", "{\"a\": \"\xff\"}"}) {
    CHECK_THAT(ParseAttachments(json), FailsWith(ErrorCode::kBadData, "no JSON object"));
  }
  CHECK_THAT(ParseAttachments(R"({"adapter_config.json": {"r": 8}})"),
             FailsWith(ErrorCode::kBadData, "\"adapter_config.json\": its content is not given as"));
  CHECK_THAT(ParseAttachments(R"({"a": "1", "b": "", "a": "2"})"),
             FailsWith(ErrorCode::kBadData, "\"a\": the name is given twice"));
  CHECK_THAT(ParseAttachments(R"({"../a": ""})"), FailsWith(ErrorCode::kBadData, "a name is 1 to 128"));
}

TEST_CASE("An attachment that names code is refused, wherever it names it") {
  const std::pair<const char*, const char*> named[] = {
      {R"({"auto_map": {"AutoModel": "evil--modeling.Model"}})", "auto_map"},
      {R"([{"a": {"auto_map": 1}}])", "auto_map"},
      {R"({"\u0061uto_map": 1})", "auto_map"},
      {R"({"auto_map": {"a": 1}, "auto_map": null})", "auto_map"},
      {R"({"custom_pipelines": {"text-generation": {"impl": "evil.Pipeline"}}})", "custom_pipelines"},
      {R"({"text_config": {"custom_pipelines": [[]]}})", "custom_pipelines"},
      {R"({"auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"}})", "auto_mapping"},
      {R"({"auto_mapping": [null]})", "auto_mapping"},
      {R"({"megatron_config": {"a": 1}, "megatron_core": "evil"})", "megatron_core"}};
  for (const auto& [text, key] : named) {
    INFO(text);
    CHECK_THAT(
        CheckAttachments({{"config.json", text}}),
        FailsWith(ErrorCode::kBadData, Cat("attachment \"config.json\": it has \"", key, "\", which names code")));
  }
  // What Python's parser would read and ours does not.
  CHECK_THAT(CheckAttachments({{"config.json", R"({"a": NaN, "auto_map": 1})"}}),
             FailsWith(ErrorCode::kBadData, "attachment \"config.json\": it is no JSON"));
  CHECK(CheckAttachments({{"config.json", R"({"a": "auto_map"})"}, {"notes.txt", R"({"auto_map": 1})"}}).ok());
}

TEST_CASE("A key for code that names none, as PEFT writes it, is no reason to refuse an attachment") {
  for (const char* text : {R"({"auto_mapping": null, "megatron_config": null, "megatron_core": "megatron.core"})",
                           R"({"auto_map": {}, "a": {"custom_pipelines": [], "b": 1}})",
                           R"({"auto_mapping": "", "megatron_core": null, "c": {"d": [1]}})"}) {
    CHECK_THAT(CheckAttachments({{"adapter_config.json", text}}).message(), Catch::Equals(""));
  }
}

}  // namespace
}  // namespace lockstep::model
