// Internal to plan: takes checked values out of JSON and says where a wrong one is.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/layout/piece.h"
#include "common/model/dtype.h"

namespace lockstep {

using SheetJson = nlohmann::json;

// A place in a sheet. Lives on the stack of whoever walks down, and is spelled out only for an error.
struct SheetPath {
  const SheetPath* parent = nullptr;
  std::string_view key;  // in an object; empty: in an array
  size_t index = 0;      // in an array

  std::string ToString() const;  // "parts[0].parameters[3].shape"
  Status Bad(std::string_view problem) const;
};

// `text` as JSON of a depth that nobody can be hurt by.
Result<SheetJson> ParseJson(std::string_view text, const SheetPath& path);

// kBadData unless `json` is of the type of `value` and within its limits: names are 1 to 1024 bytes without control
// characters, shapes have at most 16 dimensions whose product is a possible tensor, dtypes have whole bytes.
Status ReadValue(const SheetJson& json, const SheetPath& path, bool& value);
Status ReadValue(const SheetJson& json, const SheetPath& path, uint32_t& value);
Status ReadValue(const SheetJson& json, const SheetPath& path, std::string& name);
Status ReadValue(const SheetJson& json, const SheetPath& path, DType& value);
Status ReadValue(const SheetJson& json, const SheetPath& path, Extents& value);

// The array at `path`, of at most `limit` elements.
Status CheckArray(const SheetJson& json, const SheetPath& path, size_t limit);

// The members of one JSON object, which must all be asked for.
class ObjectReader {
 public:
  // REQUIRES json and path to outlive it.
  static Result<ObjectReader> Open(const SheetJson& json, const SheetPath& path);

  // Null when it is not there.
  const SheetJson* Find(std::string_view key);
  Result<const SheetJson*> Need(std::string_view key);

  template <typename T>
  Status Read(std::string_view key, T& value) {
    LS_ASSIGN_OR_RETURN(const SheetJson* member, Need(key));
    return ReadValue(*member, {.parent = path_, .key = key}, value);
  }
  template <typename T>
  Status ReadOptional(std::string_view key, T& value) {
    const SheetJson* member = Find(key);
    return member == nullptr ? OkStatus() : ReadValue(*member, {.parent = path_, .key = key}, value);
  }

  // kBadData names a member that nobody asked for: a typo must not pass for a default.
  Status Finish() const;

  const SheetPath& path() const { return *path_; }

 private:
  static constexpr size_t kMaxMembers = 16;

  ObjectReader(const SheetJson* json, const SheetPath* path) : json_(json), path_(path) {}

  const SheetJson* json_;
  const SheetPath* path_;
  std::array<std::string_view, kMaxMembers> asked_{};
  size_t asked_count_ = 0;
  size_t found_ = 0;
};

}  // namespace lockstep
