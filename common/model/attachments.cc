#include "common/model/attachments.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/text.h"

namespace lockstep::model {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kWeightsEndings[] = {".safetensors",
                                                ".safetensors.index.json",
                                                ".bin",
                                                ".bin.index.json",
                                                ".pt",
                                                ".pth",
                                                ".gguf",
                                                ".h5",
                                                ".msgpack",
                                                ".msgpack.index.json",
                                                ".h5.index.json",
                                                ".ckpt",
                                                ".ckpt.index",
                                                ".ckpt.meta",
                                                ".onnx",
                                                ".onnx_data",
                                                ".ot"};

Status Bad(std::string_view name, const std::string& problem) {
  return {ErrorCode::kBadData, Cat("attachment \"", CleanText(name, kMaxAttachmentName), "\": ", problem)};
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Keys of configurations whose values name code that a program loads: transformers runs what the first two name where
// the model's code is trusted, PEFT imports the modules that the others name.
struct CodeKey {
  std::string_view key;
  std::string_view harmless;  // a value that PEFT always writes
};
constexpr CodeKey kCodeKeys[] = {
    {"auto_map", ""}, {"custom_pipelines", ""}, {"auto_mapping", ""}, {"megatron_core", "megatron.core"}};

// Finds such a key, at any depth, among a JSON parser's events. A value of null or nothing names no code.
class CodeFinder {
 public:
  void See(Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (asked_ != nullptr && opens && !inside_) {
      inside_ = true;  // the next event tells whether it is empty
      return;
    }
    if (asked_ != nullptr && found_.empty() && !IsHarmless(event, parsed)) found_ = asked_->key;
    inside_ = false;
    asked_ = nullptr;
    if (event != Event::key) return;
    const auto key = std::ranges::find(kCodeKeys, parsed.get_ref<const std::string&>(), &CodeKey::key);
    if (key != std::end(kCodeKeys)) asked_ = key;
  }

  const std::string_view& found() const { return found_; }  // empty: none

 private:
  bool IsHarmless(Json::parse_event_t event, const Json& parsed) const {
    using Event = Json::parse_event_t;
    if (inside_) return event == Event::object_end || event == Event::array_end;
    return parsed.is_null() || parsed == "" || parsed == asked_->harmless;
  }

  std::string_view found_;
  const CodeKey* asked_ = nullptr;  // whose value comes
  bool inside_ = false;             // it is an object or array, and has begun
};

// The key by which a configuration names code; empty: none does. Nothing when it is no JSON.
std::optional<std::string_view> CodeNamedIn(std::string_view text) {
  CodeFinder finder;
  const auto look = [&](int, Json::parse_event_t event, Json& parsed) {
    finder.See(event, parsed);
    return true;
  };
  if (Json::parse(text, look, /*allow_exceptions=*/false).is_discarded()) return std::nullopt;
  return finder.found();
}

Status CheckAttachment(const std::string& name, const std::string& text) {
  if (name.empty() || name.size() > kMaxAttachmentName || name[0] == '.' ||
      !std::all_of(name.begin(), name.end(), IsNameCharacter)) {
    return Bad(name, "a name is 1 to 128 letters, digits, '.', '_' and '-', and does not start with '.'");
  }
  if (IsWeightsName(name)) return Bad(name, "the name is one of weights, which travel as tensors");
  if (name == "lockstep.json") return Bad(name, "receivers write a file of that name, which says what version it is");
  if (name.ends_with(".py")) return Bad(name, "code does not travel; give it to the engine yourself");
  if (text.size() > kMaxAttachmentBytes) {
    return Bad(name, Cat("it has ", text.size(), " bytes; the limit is ", HumanBytes(kMaxAttachmentBytes)));
  }
  if (!IsUtf8(text)) return Bad(name, "it is no UTF-8 text");
  if (!name.ends_with(".json")) return OkStatus();
  const std::optional<std::string_view> key = CodeNamedIn(text);
  if (!key) return Bad(name, "it is no JSON, though it is called so");
  if (key->empty()) return OkStatus();
  return Bad(name,
             Cat("it has \"", *key, "\", which names code, and code does not travel; leave that key out, and give ",
                 "the engine such a file among the receiver's --assets"));
}

}  // namespace

bool IsWeightsName(std::string_view name) {
  return std::any_of(std::begin(kWeightsEndings), std::end(kWeightsEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

Status CheckAttachments(const Attachments& attachments) {
  if (attachments.size() > kMaxAttachments) {
    return {ErrorCode::kBadData, Cat(attachments.size(), " attachments are given; the limit is ", kMaxAttachments)};
  }
  for (const auto& [name, text] : attachments) LS_RETURN_IF_ERROR(CheckAttachment(name, text));
  return OkStatus();
}

Result<Attachments> ParseAttachments(std::string_view json) {
  Attachments attachments;
  if (json.empty()) return attachments;
  std::set<std::string> names;
  std::string twice;
  // An object that was parsed no longer shows that a name was given twice.
  const auto note_names = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  const Json object = Json::parse(json, note_names, /*allow_exceptions=*/false);
  if (!object.is_object()) return Status(ErrorCode::kBadData, "attachments: no JSON object of file name to text");
  if (!twice.empty()) return Bad(twice, "the name is given twice");
  for (const auto& [name, text] : object.items()) {
    if (!text.is_string()) return Bad(name, "its content is not given as a JSON string");
    attachments.emplace(name, text.get<std::string>());
  }
  LS_RETURN_IF_ERROR(CheckAttachments(attachments));
  return attachments;
}

void AppendAttachments(Bytes& out, const Attachments& attachments) {
  for (const auto& [name, text] : attachments) {
    Append(out, static_cast<uint16_t>(name.size()));
    Append(out, static_cast<uint32_t>(text.size()));
    AppendBytes(out, AsBytes(std::string_view(name)));
    AppendBytes(out, AsBytes(std::string_view(text)));
  }
}

Result<Attachments> TakeAttachments(ByteReader& reader, uint32_t count) {
  if (count > kMaxAttachments) {
    return Status(ErrorCode::kProtocol, Cat("encoded layout: ", count, " attachments; the limit is ", kMaxAttachments));
  }
  Attachments attachments;
  for (uint32_t i = 0; i < count; ++i) {
    uint16_t name_bytes = 0;
    uint32_t text_bytes = 0;
    ByteView name, text;
    if (!reader.Take(name_bytes) || !reader.Take(text_bytes) || !reader.TakeBytes(name_bytes, name) ||
        !reader.TakeBytes(text_bytes, text)) {
      return Status(ErrorCode::kProtocol, "encoded layout: truncated");
    }
    if (!attachments.empty() && AsText(name) <= attachments.rbegin()->first) {
      return Status(ErrorCode::kProtocol, "encoded layout: the names of its attachments do not rise");
    }
    attachments.emplace_hint(attachments.end(), AsText(name), AsText(text));
  }
  return attachments;
}

}  // namespace lockstep::model
