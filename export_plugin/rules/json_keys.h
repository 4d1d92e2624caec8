// JsonKeys: reads typed keys of a JSON object that is not trusted, and remembers the first error.
//
// A key is given as alternatives, separated by '|'. The first one that is present counts; a null counts as absent.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace lockstep::rules {

class JsonKeys {
 public:
  // REQUIRES `object` to be a JSON object that outlives this.
  explicit JsonKeys(const nlohmann::json& object) : object_(object) {}

  // OK, or kBadData naming the first key that was missing, of another type or out of range.
  const Status& status() const { return status_; }

  bool Has(std::string_view keys) const { return Find(keys).second != nullptr; }
  // A whole number in [low, high]; `low` when something is wrong.
  uint64_t Number(std::string_view keys, uint64_t low, uint64_t high);
  uint64_t NumberOr(std::string_view keys, uint64_t otherwise, uint64_t low, uint64_t high);
  bool BoolOr(std::string_view key, bool otherwise);
  std::string Text(std::string_view keys);
  // An array of whole numbers of at most `high`; empty when absent.
  std::vector<uint64_t> Numbers(std::string_view key, uint64_t high);

  // Remembers `message` about `key`, unless something was wrong before.
  void Refuse(std::string_view key, std::string_view message);

 private:
  // The key that is there, and its value; null when none is.
  std::pair<std::string_view, const nlohmann::json*> Find(std::string_view keys) const;

  const nlohmann::json& object_;
  Status status_;
};

}  // namespace lockstep::rules
