// For tests: the examples of FORMAT.md.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

namespace lockstep::placement {

// The block "```json NAME" of FORMAT.md.
inline std::string FormatExample(const std::string& name) {
  std::ifstream document("raas_receiver/placement/description/FORMAT.md");
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line == "```") inside = false;
    if (inside) text += line + "\n";
    if (line == "```json " + name) inside = true;
  }
  REQUIRE_FALSE(text.empty());
  return text;
}

}  // namespace lockstep::placement
