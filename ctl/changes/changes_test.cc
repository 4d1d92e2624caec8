// What people see of a version's changes: groups, tables and pictures.
#include "ctl/changes/changes.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "common/base/status_testing.h"
#include "common/os/temp_dir.h"

namespace lockstep::ctl {
namespace {

// Of two layers with two experts each, and a tensor that is in none; expert 1 of layer 10 does not change.
v1::VersionChanges Changes(uint64_t version, uint64_t nonfinite = 0) {
  v1::VersionChanges changes;
  changes.mutable_version()->set_version(version);
  changes.set_base(version - 1);
  const auto add = [&](const std::string& name, const std::string& kind, std::vector<uint64_t> indices,
                       uint64_t changed) {
    v1::TensorChange& tensor = *changes.add_tensors();
    tensor.set_name(name);
    tensor.set_kind(kind);
    tensor.mutable_indices()->Assign(indices.begin(), indices.end());
    tensor.mutable_change()->set_elements(1000);
    tensor.mutable_change()->set_changed(changed);
    tensor.mutable_change()->set_norm(changed == 0 ? 0 : 3);
  };
  add("embed.weight", "embed.weight", {}, 10);
  for (const uint64_t layer : {2, 10}) {
    for (const uint64_t expert : {0, 1}) {
      add("l." + std::to_string(layer) + ".e." + std::to_string(expert) + ".up", "l.*.e.*.up", {layer, expert},
          layer == 10 && expert == 1 ? 0 : 100);
    }
  }
  changes.mutable_tensors(0)->mutable_change()->set_nonfinite(nonfinite);
  return changes;
}

std::string Printed(const std::vector<v1::VersionChanges>& versions, const DiffOptions& options) {
  std::ostringstream out;
  REQUIRE(PrintChanges("actor", versions, options, {out}).ok());
  return out.str();
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("Tensors are told by kind, by layer in the order of numbers, and by expert") {
  const auto of = [](GroupBy by) { return Lines(Printed({Changes(5)}, {.by = by})); };
  const auto kinds = of(GroupBy::kKind);
  REQUIRE(kinds.size() == 3);
  CHECK(kinds[0] == "VERSION  BASE  TENSORS       UNCHANGED  ELEMENTS  CHANGED  NORM  LARGEST  NAN OR INF");
  CHECK(kinds[1] == "      5     4  embed.weight     0 of 1      1000      1 %     3        0           0");
  CHECK(kinds[2] == "      5     4  l.*.e.*.up       1 of 4      4000    7.5 %   5.2        0           0");
  const auto layers = of(GroupBy::kLayer);
  REQUIRE(layers.size() == 4);
  CHECK(layers[2].find("  l.2 ") != std::string::npos);
  CHECK(layers[3].find("  l.10 ") != std::string::npos);
  CHECK(layers[3].find("1 of 2") != std::string::npos);
  CHECK(of(GroupBy::kExpert).size() == 6);
  CHECK(of(GroupBy::kExpert)[5].find("  l.10.e.1 ") != std::string::npos);
  CHECK(of(GroupBy::kTensor)[5].find("  l.10.e.1.up ") != std::string::npos);
  CHECK(of(GroupBy::kVersion).size() == 2);
}

TEST_CASE("Of a first version nothing but NaN and Inf is told") {
  v1::VersionChanges first = Changes(1, 7);
  first.set_base(0);
  const auto lines = Lines(Printed({first}, {.by = GroupBy::kVersion}));
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].ends_with("-      5000        -     -        -           7"));
}

TEST_CASE("A picture has a cell for each layer, kind and version, and shows NaN") {
  const os::TempDir directory;
  const std::string path = directory.path() + "/picture.svg";
  Printed({Changes(5), Changes(6, 1)}, {.svg = path});
  std::stringstream svg;
  svg << std::ifstream(path).rdbuf();
  const std::string text = svg.str();
  const auto count = [&](const std::string& what) {
    size_t found = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
    return found;
  };
  CHECK(count("version 5: ") == 3);
  CHECK(count("version 6: ") == 3);
  CHECK(count("NaN or Inf 1</title>") == 1);
  CHECK(text.find("l.10 e.*.up, version 6: 100 of 2000") != std::string::npos);
  CHECK(text.find("versions 5 to 6") != std::string::npos);
}

TEST_CASE("A picture that nobody could look at is refused, and versions the wrong way round") {
  std::vector<v1::VersionChanges> many;
  for (uint64_t version = 1; version < 40'000; ++version) many.push_back(Changes(version));
  std::ostringstream out;
  CHECK_THAT(PrintChanges("actor", many, {.svg = "/nowhere/x.svg"}, {out}),
             FailsWith(ErrorCode::kUsage, "cells is too large"));
  CHECK_THAT(PrintChanges("actor", {Changes(2)}, {.svg = "/nowhere/x.svg"}, {out}),
             FailsWith(ErrorCode::kNotFound, "/nowhere/x.svg"));
  CHECK_THAT(CheckDiff({.versions = {6, 5}}), FailsWith(ErrorCode::kUsage, "greater than the first"));
  CHECK(CheckDiff({.versions = {5, 6}}).ok());
}

}  // namespace
}  // namespace lockstep::ctl
