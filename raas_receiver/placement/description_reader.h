// Internal to the description: takes checked values out of JSON and says where a wrong one is.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/layout/piece.h"
#include "common/model/dtype.h"

namespace lockstep {

using Json = nlohmann::json;

// A place in a description. Lives on the stack of whoever walks down, and is spelled out only for an error.
struct JsonPath {
  const JsonPath* parent = nullptr;
  std::string_view key;  // in an object; empty: in an array
  size_t index = 0;      // in an array

  std::string ToString() const;  // "parameters[3].slices[0].from"
  Status Bad(std::string_view problem) const;
};

// kBadData unless `json` is of the type of `value` and within its limits: names are 1 to 1024 bytes without control
// characters, dtypes have whole bytes, lists of numbers at most 16.
Status ReadValue(const Json& json, const JsonPath& path, bool& value);
Status ReadValue(const Json& json, const JsonPath& path, uint32_t& value);
Status ReadValue(const Json& json, const JsonPath& path, uint64_t& value);
Status ReadValue(const Json& json, const JsonPath& path, std::string& name);
Status ReadValue(const Json& json, const JsonPath& path, DType& value);
Status ReadValue(const Json& json, const JsonPath& path, Extents& value);
Status ReadValue(const Json& json, const JsonPath& path, std::array<uint8_t, 64>& value);  // hexadecimal digits

// The members of one JSON object, which must all be asked for.
class ObjectReader {
 public:
  // REQUIRES json and path to outlive it.
  static Result<ObjectReader> Open(const Json& json, const JsonPath& path);

  // Null when it is not there.
  const Json* Find(std::string_view key);
  Result<const Json*> Need(std::string_view key);

  template <typename T>
  Status Read(std::string_view key, T& value) {
    LS_ASSIGN_OR_RETURN(const Json* member, Need(key));
    return ReadValue(*member, {.parent = path_, .key = key}, value);
  }
  template <typename T>
  Status ReadOptional(std::string_view key, T& value) {
    const Json* member = Find(key);
    return member == nullptr ? OkStatus() : ReadValue(*member, {.parent = path_, .key = key}, value);
  }
  // The array `key` of at most `limit` elements, each read by read_element(json, path, value).
  template <typename T, typename ReadElement>
  Status ReadList(std::string_view key, size_t limit, std::vector<T>& values, ReadElement read_element) {
    LS_ASSIGN_OR_RETURN(const Json* member, Need(key));
    return ReadElements(*member, key, limit, values, read_element);
  }
  template <typename T, typename ReadElement>
  Status ReadOptionalList(std::string_view key, size_t limit, std::vector<T>& values, ReadElement read_element) {
    const Json* member = Find(key);
    return member == nullptr ? OkStatus() : ReadElements(*member, key, limit, values, read_element);
  }

  // kBadData names a member that nobody asked for: a typo must not pass for a default.
  Status Finish() const;

  const JsonPath& path() const { return *path_; }

 private:
  static constexpr size_t kMaxMembers = 16;

  ObjectReader(const Json* json, const JsonPath* path) : json_(json), path_(path) {}

  template <typename T, typename ReadElement>
  Status ReadElements(const Json& list, std::string_view key, size_t limit, std::vector<T>& values,
                      ReadElement read_element) {
    const JsonPath path{.parent = path_, .key = key};
    if (!list.is_array()) return path.Bad("must be an array");
    if (list.size() > limit) return path.Bad(Cat("has ", list.size(), " elements; the limit is ", limit));
    values.resize(list.size());
    for (size_t i = 0; i < values.size(); ++i) {
      LS_RETURN_IF_ERROR(read_element(list[i], JsonPath{.parent = &path, .index = i}, values[i]));
    }
    return OkStatus();
  }

  const Json* json_;
  const JsonPath* path_;
  std::array<std::string_view, kMaxMembers> asked_{};
  size_t asked_count_ = 0;
  size_t found_ = 0;
};

}  // namespace lockstep
