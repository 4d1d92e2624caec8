// ExpectedParameters against what real Megatron-core models hold (testdata/).
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "export_plugin/rules/family.h"
#include "export_plugin/rules/rules_testing.h"

namespace lockstep::rules {
namespace {

constexpr const char* kRecorded = "export_plugin/rules/testdata/megatron_core_0.16.1.txt";

// What is after "word " in the line; empty when it starts otherwise.
std::string After(const std::string& line, const std::string& word) {
  return line.starts_with(word + " ") ? line.substr(word.size() + 1) : std::string();
}

Topology TopologyOf(const nlohmann::json& json) {
  Topology topology{.world = json["world"],
                    .tensor = json["tensor"],
                    .context = json["context"],
                    .pipeline = json["pipeline"],
                    .virtual_pipeline = json["virtual_pipeline"],
                    .expert = json["expert"],
                    .expert_tensor = json["expert_tensor"],
                    .first_stage_layers = json["first"],
                    .last_stage_layers = json["last"]};
  topology.embedding_in_split = json["embedding"] == 1;
  topology.loss_in_split = json["loss"] == 1;
  topology.vocabulary_divisible_by = 1;
  topology.pipeline_layout = json["layout"];
  return topology;
}

struct Recorded {
  std::string name;
  nlohmann::json config;
  Topology topology;
  bool fused_norms = false;
  std::vector<std::pair<uint32_t, std::vector<std::string>>> ranks;
};

// Appends the lines that a recorded line stands for: "w{0,1} 8" for "w0 8" and "w1 8".
void Unfold(const std::string& line, std::vector<std::string>& lines) {
  const size_t open = line.find('{');
  if (open == std::string::npos) return lines.push_back(line);
  const size_t close = line.find('}', open);
  std::istringstream numbers(line.substr(open + 1, close - open - 1));
  for (std::string number; std::getline(numbers, number, ',');) {
    Unfold(line.substr(0, open) + number + line.substr(close + 1), lines);
  }
}

std::vector<Recorded> ReadAll() {
  std::ifstream file(kRecorded);
  REQUIRE(file.is_open());
  std::vector<Recorded> all;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    if (const std::string name = After(line, "case"); !name.empty()) {
      all.push_back({.name = name});
    } else if (const std::string config = After(line, "config"); !config.empty()) {
      all.back().config = nlohmann::json::parse(config);
    } else if (const std::string topology = After(line, "topology"); !topology.empty()) {
      all.back().topology = TopologyOf(nlohmann::json::parse(topology));
    } else if (const std::string spec = After(line, "spec"); !spec.empty()) {
      all.back().fused_norms = spec == "te";
    } else if (const std::string rank = After(line, "rank"); !rank.empty()) {
      all.back().ranks.emplace_back(std::stoul(rank), std::vector<std::string>());
    } else {
      Unfold(line, all.back().ranks.back().second);
    }
  }
  return all;
}

TEST_CASE("Ranks hold what real Megatron-core models hold") {
  for (const Recorded& recorded : ReadAll()) {
    const MegatronRules rules = RulesOf(recorded.config);
    for (const auto& [rank, expected] : recorded.ranks) {
      INFO(recorded.name << " rank " << rank);
      const auto parameters = rules.ExpectedParameters(recorded.topology, rank, recorded.fused_norms);
      INFO(parameters.status().ToString());
      REQUIRE(parameters.ok());
      std::vector<std::string> lines;
      for (const LocalParameter& parameter : *parameters) lines.push_back(Line(parameter.name, parameter.shape));
      std::vector<std::string> sorted = expected;
      std::sort(lines.begin(), lines.end());
      std::sort(sorted.begin(), sorted.end());
      CHECK(lines == sorted);
    }
  }
}

TEST_CASE("Every family has been recorded") {
  std::set<std::string> recorded;
  for (const Recorded& one : ReadAll()) recorded.insert(one.config["model_type"]);
  for (const Family& family : Families()) CHECK(recorded.contains(std::string(family.model_type)));
}

}  // namespace
}  // namespace lockstep::rules
