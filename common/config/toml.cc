#include "common/config/toml.h"

#include "common/base/text.h"
#include "common/os/file.h"

namespace lockstep::config {

Result<toml::table> ReadToml(std::string_view what, const std::string& path) {
  const Result<std::string> text = os::ReadFile(path, 1 << 20);
  if (!text.ok()) return Status(ErrorCode::kConfig, Cat(what, ": ", text.status().message()));
  try {
    return toml::parse(*text, path);
  } catch (const toml::parse_error& error) {
    return Status(ErrorCode::kConfig, Cat(path, ":", error.source().begin.line, ": ", CleanText(error.description())));
  }
}

std::string PlaceOf(const std::string& path, const toml::node& node) {
  return Cat(path, ":", node.source().begin.line);
}

}  // namespace lockstep::config
