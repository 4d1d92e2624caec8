#include "ctl/changes/changes.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <sstream>

#include "common/base/text.h"
#include "ctl/changes/groups.h"
#include "ctl/changes/heat_map.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

std::string Rounded(double number) {
  std::ostringstream text;
  text.precision(3);
  text << number;
  return text.str();
}

// "5" of 5 elements; "-" where there is no base to compare with.
std::string Against(const v1::VersionChanges& version, const std::string& cell) {
  return version.base() == 0 ? "-" : cell;
}

std::string TableText(const std::vector<v1::VersionChanges>& versions, GroupBy by) {
  Table table({">VERSION", ">BASE", by == GroupBy::kVersion ? "LABEL" : "TENSORS", ">UNCHANGED", ">ELEMENTS",
               ">CHANGED", ">NORM", ">LARGEST", ">NAN OR INF"});
  for (const v1::VersionChanges& version : versions) {
    for (const auto& [key, group] : Group(version, by)) {
      table.AddRow({Cat(version.version().version()), version.base() == 0 ? "-" : Cat(version.base()),
                    by == GroupBy::kVersion ? version.label() : NameOf(key),
                    Against(version, Cat(group.unchanged, " of ", group.tensors)), Cat(group.elements),
                    Against(version, Cat(Rounded(100 * group.share()), " %")),
                    Against(version, Rounded(std::sqrt(group.squares))), Against(version, Rounded(group.largest)),
                    Cat(group.nonfinite)});
    }
  }
  return table.ToString();
}

}  // namespace

void AddDiffOptions(CLI::App& command, DiffOptions& options) {
  const std::map<std::string, GroupBy> groups = {{"version", GroupBy::kVersion},
                                                 {"kind", GroupBy::kKind},
                                                 {"layer", GroupBy::kLayer},
                                                 {"expert", GroupBy::kExpert},
                                                 {"tensor", GroupBy::kTensor}};
  command
      .add_option("versions", options.versions,
                  "A version; or two, for each after the first up to the second [the newest]")
      ->type_name("[V1] V2")
      ->expected(0, 2)
      ->check(CLI::PositiveNumber.description(""));
  command.add_option("--by", options.by, "A row for each version, kind of tensor, layer, expert or tensor [kind]")
      ->transform(CLI::CheckedTransformer(groups).description(""))
      ->type_name("version|kind|layer|expert|tensor");
  command.add_option("--svg", options.svg, "Draw it, too: layers by kinds of tensors")->type_name("FILE");
}

Status CheckDiff(const DiffOptions& options) {
  if (options.versions.size() < 2 || options.versions[0] < options.versions[1]) return OkStatus();
  return {ErrorCode::kUsage, Cat("diff ", options.versions[0], " ", options.versions[1],
                                 ": the second version must be greater than the first")};
}

Version After(const DiffOptions& options) {
  return options.versions.size() == 2 ? options.versions[0] : 0;
}

Version Last(const DiffOptions& options) {
  return options.versions.empty() ? 0 : options.versions.back();
}

Status PrintChanges(const std::string& model, const std::vector<v1::VersionChanges>& versions,
                    const DiffOptions& options, const Output& output) {
  if (!options.svg.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string svg, HeatMap(model, versions));
    LS_RETURN_IF_ERROR(WriteTextFile(options.svg, svg));
  }
  Json document = Json::array();
  for (const v1::VersionChanges& version : versions) document.push_back(ToJson(version));
  output.Print(document, TableText(versions, options.by));
  return OkStatus();
}

}  // namespace lockstep::ctl
