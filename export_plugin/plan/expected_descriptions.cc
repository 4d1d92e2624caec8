#include "common/base/text.h"
#include "common/json/json_reader.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::plan {

Result<std::vector<ShardDescription>> ExpectedDescriptions(std::string_view config_json,
                                                           const rules::Topology& topology, uint32_t ranks_per_host,
                                                           bool fused_norms) {
  LS_ASSIGN_OR_RETURN(rules::ModelConfig config, rules::ParseModelConfig(config_json));
  LS_RETURN_IF_ERROR(rules::CheckTopology(topology, config.layers));
  if (topology.world > kMaxDescriptions) {
    return Status(ErrorCode::kBadData,
                  Cat("a world of ", topology.world, " ranks is over the limit of ", kMaxDescriptions));
  }
  LS_ASSIGN_OR_RETURN(const rules::MegatronRules rules, rules::MegatronRules::Create(std::move(config)));
  LS_ASSIGN_OR_RETURN(const json::Json json,
                      json::ParseJson(config_json, {.key = "config.json"}, kMaxDescriptionBytes));
  const std::string normalised = json.dump();  // as ParseDescription does
  std::vector<ShardDescription> descriptions;
  descriptions.reserve(topology.world);
  for (uint32_t rank = 0; rank < topology.world; ++rank) {
    MegatronDescription part{.config = normalised, .place = rules::PlaceOf(topology, rank)};
    LS_ASSIGN_OR_RETURN(part.parameters, rules.ExpectedParameters(topology, rank, fused_norms));
    descriptions.push_back({.on_agent_host = ranks_per_host == 0 || rank < ranks_per_host, .parts = {std::move(part)}});
  }
  return descriptions;
}

}  // namespace lockstep::plan
