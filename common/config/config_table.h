// ConfigTable: one entry of a setting that is repeated: a table of the file, as [[engine]], or a text of a flag, of an
// environment variable, or in an array.
#pragma once

#include <map>
#include <string>
#include <utility>

namespace lockstep::config {

class ConfigTable {
 public:
  // `written_as` says where it stands, for errors.
  ConfigTable(std::string written_as, std::string text) : written_as_(std::move(written_as)), text_(std::move(text)) {}
  explicit ConfigTable(std::string written_as) : written_as_(std::move(written_as)), is_table_(true) {}

  const std::string& written_as() const { return written_as_; }
  bool is_table() const { return is_table_; }
  const std::string& text() const { return text_; }  // empty where it is a table

  // The table's values, by key, as they were written. ConfigParser::ParseTable reads them.
  const std::map<std::string, std::string>& values() const { return values_; }
  void Put(std::string key, std::string value) { values_[std::move(key)] = std::move(value); }

  // As TOML, on one line.
  std::string Print() const;

 private:
  std::string written_as_;
  std::string text_;
  bool is_table_ = false;
  std::map<std::string, std::string> values_;
};

}  // namespace lockstep::config
