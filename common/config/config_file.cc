#include "common/config/config_file.h"

#include <algorithm>
#include <optional>

#include "common/base/text.h"
#include "common/config/toml.h"

namespace lockstep::config {
namespace {

std::optional<std::string> ScalarText(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return Cat(number->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  return std::nullopt;
}

// Nothing for a value of a kind that no option takes.
std::optional<FileEntry> ToEntry(std::string_view key, const toml::node& node) {
  FileEntry entry{.key = std::string(key), .words = {}, .is_array = node.is_array(), .line = node.source().begin.line};
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& item : *array) {
      if (!item.is_string()) return std::nullopt;
      entry.words.push_back(item.as_string()->get());
    }
    return entry;
  }
  std::optional<std::string> word = ScalarText(node);
  if (!word.has_value()) return std::nullopt;
  entry.words.push_back(*std::move(word));
  return entry;
}

// Those of a table, in the order of their lines.
Result<std::vector<FileEntry>> EntriesOf(const std::string& path, const toml::table& table, bool nested) {
  std::vector<FileEntry> entries;
  const auto refuse = [&](const toml::key& key, const toml::node& node) {
    return Status(ErrorCode::kConfig, Cat(path, ":", node.source().begin.line, ": key '", CleanText(key.str(), 200),
                                          "' must be a text, a whole number, a boolean",
                                          nested ? "" : ", an array of texts or an array of tables"));
  };
  for (const auto& [key, node] : table) {
    const toml::array* const array = node.as_array();
    if (array != nullptr && nested) return refuse(key, node);
    if (array != nullptr && !array->empty() && array->is_homogeneous(toml::node_type::table)) {
      for (const toml::node& item : *array) {
        LS_ASSIGN_OR_RETURN(std::vector<FileEntry> inner, EntriesOf(path, *item.as_table(), /*nested=*/true));
        entries.push_back({.key = std::string(key.str()),
                           .words = {},
                           .is_array = true,
                           .line = item.source().begin.line,
                           .table = std::move(inner),
                           .is_table = true});
      }
      continue;
    }
    std::optional<FileEntry> entry = ToEntry(key.str(), node);
    if (!entry.has_value()) return refuse(key, node);
    entries.push_back(*std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return entries;
}

}  // namespace

Result<std::vector<FileEntry>> ReadConfigFile(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const toml::table table, ReadToml("configuration file", path));
  return EntriesOf(path, table, /*nested=*/false);
}

}  // namespace lockstep::config
