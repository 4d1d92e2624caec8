// The examples of the FORMAT.md documents. For tests and fuzzers, which hold the code against them and run in the
// repository's root.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/text.h"

namespace lockstep {

// The text of the block "```KIND NAME" of the document at `path`. Ends the process when there is none.
inline std::string DocumentBlock(const std::string& path, std::string_view kind, std::string_view name) {
  std::ifstream document(path);
  const std::string head = Cat("```", kind, " ", name);
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line == "```") inside = false;
    if (inside) text += line + "\n";
    if (line == head) inside = true;
  }
  if (!text.empty()) return text;
  std::fprintf(stderr, "%s has no block \"%s\"\n", path.c_str(), head.c_str());
  std::abort();
}

// The bytes that a block of kind "hex" shows. Lines of zeros may be left out there.
inline Bytes HexBlock(const std::string& path, std::string_view name) {
  std::istringstream lines(DocumentBlock(path, "hex", name));
  Bytes bytes;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    size_t at = 0;
    if (!(words >> std::hex >> at)) continue;
    bytes.resize(at);
    for (unsigned byte = 0; words >> byte;) bytes.push_back(static_cast<std::byte>(byte));
  }
  return bytes;
}

}  // namespace lockstep
