// ConfigTable: one entry of a setting that is repeated: a table of the file, as [[engine]], or a text of a flag, of an
// environment variable, or in an array.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::config {

class ConfigTable {
 public:
  // `written_as` says where it stands, for errors.
  ConfigTable(std::string written_as, std::string text) : written_as_(std::move(written_as)), text_(std::move(text)) {}
  explicit ConfigTable(std::string written_as) : written_as_(std::move(written_as)), is_table_(true) {}

  const std::string& written_as() const { return written_as_; }
  bool is_table() const { return is_table_; }
  const std::string& text() const { return text_; }  // empty where it is a table

  void Put(std::string key, std::string value) { values_[std::move(key)] = std::move(value); }
  // The value of `key` goes to `target`, if the table has one. kConfig: it is no number, or no time.
  Status Take(std::string_view key, std::string* target);
  Status Take(std::string_view key, uint64_t* target);
  Status Take(std::string_view key, std::chrono::milliseconds* target);
  // kConfig names a key that was not taken.
  Status CheckAllTaken() const;

  // As TOML, on one line.
  std::string Print() const;

 private:
  template <typename T, typename ParseFn>
  Status TakeParsed(std::string_view key, T* target, ParseFn parse);

  std::string written_as_;
  std::string text_;
  bool is_table_ = false;
  std::map<std::string, std::string, std::less<>> values_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace lockstep::config
