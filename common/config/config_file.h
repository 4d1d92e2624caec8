// Internal to common/config: a TOML file as a flat list of keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace lockstep::config {

struct FileEntry {
  std::string key;
  std::vector<std::string> words;  // the value, or the array's values, as text
  bool is_array = false;
  uint32_t line = 0;
  std::vector<FileEntry> table = {};  // what a table has, in place of words
  bool is_table = false;
};

// The file's entries in the order of their lines. kConfig, naming file and line, when it is missing, is not TOML, or
// has anything but texts, whole numbers, booleans, and arrays of texts, or of tables of such, at its top level. An
// array of tables is an entry for each.
Result<std::vector<FileEntry>> ReadConfigFile(const std::string& path);

}  // namespace lockstep::config
