#include "ctl/doctor/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "common/base/text.h"
#include "ctl/doctor/checks.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

const char* Word(Health health) {
  switch (health) {
    case Health::kGood:
      return "good";
    case Health::kWarning:
      return "warning";
    case Health::kBad:
      return "bad";
  }
  return "";
}

}  // namespace

void AddDoctorOptions(CLI::App& command, DoctorOptions& options) {
  command
      .add_option("--directory", options.directories,
                  "Where buffers or replicas are to be; repeat for several [/dev/shm]")
      ->allow_extra_args(false)
      ->type_name("DIR");
  command.add_option("--model-bytes", options.model_bytes, "Size of the model: each directory is to have room for two")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->type_name("SIZE");
  command.add_option("--port", options.ports, "Where a daemon is to listen; repeat for several")
      ->allow_extra_args(false)
      ->type_name("HOST:PORT");
  command.add_flag("--gpu", options.gpu, "A GPU is to be there");
}

Status RunDoctorCommand(const DoctorOptions& options, const Output& output) {
  const std::vector<Finding> findings = Examine(options);
  Json document = Json::array();
  Table table({"WHAT", "STATE", "FOUND"});
  std::string remedies;
  for (const Finding& finding : findings) {
    document.push_back({{"about", finding.about},
                        {"state", Word(finding.health)},
                        {"found", finding.found},
                        {"remedy", finding.remedy}});
    table.AddRow({finding.about, Word(finding.health), finding.found});
    if (!finding.remedy.empty()) remedies += Cat("  ", finding.remedy, "\n");
  }
  output.Print(document, table.ToString() + (remedies.empty() ? "" : Cat("\nTo correct it:\n", remedies)));
  const auto bad = std::ranges::count(findings, Health::kBad, &Finding::health);
  return bad == 0 ? OkStatus()
                  : Status(ErrorCode::kConfig, Cat("this host: ", bad, bad == 1 ? " finding has" : " findings have",
                                                   " to be corrected first"));
}

}  // namespace lockstep::ctl
