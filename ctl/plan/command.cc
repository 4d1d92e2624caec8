#include "ctl/plan/command.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"
#include "ctl/plan/derived.h"
#include "ctl/plan/report.h"

namespace lockstep::ctl {
namespace {

namespace fs = std::filesystem;

fs::path DescriptionFile(const std::string& directory, size_t rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank-%05zu.json", rank);
  return fs::path(directory) / name.data();
}

// How many descriptions there are, to tell a missing one from the end.
Result<size_t> CountDescriptions(const std::string& directory) {
  std::error_code error;
  size_t count = 0;
  fs::directory_iterator entries(directory, error);
  if (error) return ErrnoStatus(error.value(), Cat("reading ", directory));
  for (const fs::directory_iterator end; entries != end; entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".json")) ++count;
  }
  if (error) return ErrnoStatus(error.value(), Cat("reading ", directory));
  if (count == 0) return Status(ErrorCode::kNotFound, Cat(directory, ": no rank-00000.json"));
  return count;
}

Result<std::vector<plan::ShardDescription>> ReadDescriptions(const std::string& directory) {
  LS_ASSIGN_OR_RETURN(const size_t count, CountDescriptions(directory));
  std::vector<plan::ShardDescription> descriptions;
  for (size_t rank = 0; rank < count; ++rank) {
    const fs::path path = DescriptionFile(directory, rank);
    LS_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(path));
    Result<plan::ShardDescription> description = plan::ParseDescription(text);
    if (!description.ok()) return description.status().WithContext(path.string());
    descriptions.push_back(*std::move(description));
  }
  return descriptions;
}

fs::path ConfigIn(const std::string& place) {
  std::error_code error;
  return fs::is_directory(place, error) ? fs::path(place) / "config.json" : fs::path(place);
}

Result<std::vector<plan::ShardDescription>> MakeDescriptions(const PlanOptions& options) {
  const fs::path path = ConfigIn(options.config);
  LS_ASSIGN_OR_RETURN(const std::string config, os::ReadFile(path));
  auto descriptions = plan::ExpectedDescriptions(config, options.topology, options.ranks_per_host, options.fused_norms);
  return descriptions.ok() ? std::move(descriptions) : descriptions.status().WithContext(path.string());
}

Status WriteDescriptions(const std::string& directory, const std::vector<plan::ShardDescription>& descriptions) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), Cat("making ", directory));
  for (size_t rank = 0; rank < descriptions.size(); ++rank) {
    LS_RETURN_IF_ERROR(WriteTextFile(DescriptionFile(directory, rank), plan::ToJson(descriptions[rank])));
  }
  return OkStatus();
}

}  // namespace

Status Run(const PlanOptions& options, const Output& output) {
  LS_ASSIGN_OR_RETURN(std::vector<plan::ShardDescription> descriptions,
                      options.config.empty() ? ReadDescriptions(options.descriptions) : MakeDescriptions(options));
  if (options.rank && *options.rank >= descriptions.size()) {
    return {ErrorCode::kUsage,
            Cat("there is no rank ", *options.rank, ": the ranks are 0 to ", descriptions.size() - 1)};
  }
  if (!options.write_descriptions.empty())
    LS_RETURN_IF_ERROR(WriteDescriptions(options.write_descriptions, descriptions));
  LS_ASSIGN_OR_RETURN(const PlanReport report, PlanReport::Create(std::move(descriptions), options.bucket_bytes));
  if (options.rank) {
    output.Print(report.OfRank(*options.rank), report.TextOfRank(*options.rank));
    return OkStatus();
  }
  Json summary = report.Summary();
  std::string text = report.SummaryText();
  if (options.by_host) {
    LS_ASSIGN_OR_RETURN(const auto hosts, report.ByHost(options.ranks_per_host));
    summary["hosts"] = PlanReport::HostsJson(hosts);
    text += "\n" + PlanReport::HostsText(hosts);
  }
  if (!options.derive.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string config, os::ReadFile(ConfigIn(options.derive)));
    const auto derived = ReportDerived(report.tensors(), config);
    if (!derived.ok()) return derived.status().WithContext(options.derive);
    summary["derived"] = derived->ToJson();
    text += "\n" + derived->Text();
  }
  output.Print(summary, text);
  return OkStatus();
}

}  // namespace lockstep::ctl
