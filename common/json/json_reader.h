// Checked values out of JSON from anywhere, for formats that refuse what they do not know. An error
// says what is wrong and where: "description: parts[0].parameters[3].shape: must be an array".
//
// An unknown key is refused, so that a typo does not pass for a default; of a key that is there twice the
// last one counts, as in every JSON parser of note.
//
// Pure functions, thread-safe; an ObjectReader is for one thread.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/layout/piece.h"
#include "common/model/dtype.h"

namespace lockstep::json {

using Json = nlohmann::json;

// How deep arrays and objects may be nested: writing JSON recurses, so a hostile depth must not get that far.
inline constexpr size_t kMaxJsonDepth = 64;

// A place in a document. Lives on the stack of the reader, and is spelled out only for an error.
struct JsonPath {
  const JsonPath* parent = nullptr;  // null: the document
  std::string_view key;              // in an object; empty: in an array. Of a document its name
  size_t index = 0;                  // in an array

  std::string ToString() const;  // "description: parts[0].parameters[3].shape"
  Status Bad(std::string_view problem) const;
};

// kBadData unless `text` is JSON of at most `max_bytes` and kMaxJsonDepth levels.
Result<Json> ParseJson(std::string_view text, const JsonPath& document, uint64_t max_bytes);

// kBadData unless `json` is of the type of `value` and within its limits: names are 1 to 1024 bytes without control
// characters, dtypes have whole bytes, shapes and offsets have at most 16 dimensions, of at most kMaxDataBytes each.
Status ReadValue(const Json& json, const JsonPath& path, bool& value);
Status ReadValue(const Json& json, const JsonPath& path, uint32_t& value);
Status ReadValue(const Json& json, const JsonPath& path, uint64_t& value);
Status ReadValue(const Json& json, const JsonPath& path, std::string& name);
Status ReadValue(const Json& json, const JsonPath& path, model::DType& value);
Status ReadValue(const Json& json, const JsonPath& path, layout::Extents& value);

// An array of at most `limit` elements, each read by read(json, path, value).
template <typename T, typename ReadElement>
Status ReadArray(const Json& json, const JsonPath& path, size_t limit, std::vector<T>& values, ReadElement read) {
  if (!json.is_array()) return path.Bad("must be an array");
  if (json.size() > limit) return path.Bad(Cat("has ", json.size(), " elements; the limit is ", limit));
  values.resize(json.size());
  for (size_t i = 0; i < values.size(); ++i) {
    LS_RETURN_IF_ERROR(read(json[i], JsonPath{.parent = &path, .index = i}, values[i]));
  }
  return OkStatus();
}

// The members of one JSON object, which must all be asked for.
class ObjectReader {
 public:
  static constexpr size_t kMaxMembers = 16;  // that may be asked for

  // REQUIRES json and path to outlive it.
  static Result<ObjectReader> Open(const Json& json, const JsonPath& path);

  // Null when it is not there.
  const Json* Find(std::string_view key);
  Result<const Json*> Need(std::string_view key);
  JsonPath PathOf(std::string_view key) const { return {.parent = path_, .key = key}; }

  // By read(json, path, value), or by ReadValue. An optional member that is not there leaves `value` as it is.
  template <typename T, typename ReadMember = Status (*)(const Json&, const JsonPath&, T&)>
  Status Read(std::string_view key, T& value, ReadMember read = &ReadValue) {
    LS_ASSIGN_OR_RETURN(const Json* member, Need(key));
    return read(*member, PathOf(key), value);
  }
  template <typename T, typename ReadMember = Status (*)(const Json&, const JsonPath&, T&)>
  Status ReadOptional(std::string_view key, T& value, ReadMember read = &ReadValue) {
    const Json* member = Find(key);
    return member == nullptr ? OkStatus() : read(*member, PathOf(key), value);
  }
  // As ReadArray.
  template <typename T, typename ReadElement>
  Status ReadList(std::string_view key, size_t limit, std::vector<T>& values, ReadElement read) {
    return Read(key, values, ListOf<T>(limit, read));
  }
  template <typename T, typename ReadElement>
  Status ReadOptionalList(std::string_view key, size_t limit, std::vector<T>& values, ReadElement read) {
    return ReadOptional(key, values, ListOf<T>(limit, read));
  }

  // kBadData names an unknown member.
  Status Finish() const;

  const JsonPath& path() const { return *path_; }

 private:
  ObjectReader(const Json* json, const JsonPath* path) : json_(json), path_(path) {}

  template <typename T, typename ReadElement>
  static auto ListOf(size_t limit, ReadElement read) {
    return [limit, read](const Json& json, const JsonPath& path, std::vector<T>& values) {
      return ReadArray(json, path, limit, values, read);
    };
  }

  const Json* json_;
  const JsonPath* path_;
  std::array<std::string_view, kMaxMembers> asked_{};
  size_t asked_count_ = 0;
  size_t found_ = 0;
};

}  // namespace lockstep::json
