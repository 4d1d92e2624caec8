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

}  // namespace

Result<std::vector<FileEntry>> ReadConfigFile(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const toml::table table, ReadToml("configuration file", path));
  std::vector<FileEntry> entries;
  for (const auto& [key, node] : table) {
    std::optional<FileEntry> entry = ToEntry(std::string_view(key), node);
    if (!entry.has_value()) {
      return Status(ErrorCode::kConfig, Cat(path, ":", node.source().begin.line, ": key '", CleanText(key.str(), 200),
                                            "' must be a text, a whole number, a boolean or an array of texts"));
    }
    entries.push_back(*std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return entries;
}

}  // namespace lockstep::config
