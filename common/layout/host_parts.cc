#include "common/layout/host_parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/base/text.h"
#include "common/model/module_names.h"

namespace lockstep::layout {
namespace {

uint64_t Bits(const model::TensorMeta& tensor) {
  return model::FindDType(tensor.dtype)->bits;
}

// Bits of each tensor that ranks of a host hold, the same elements counted once: [tensor][host].
std::vector<std::vector<uint64_t>> HeldBits(const TrainingModel& model, const std::vector<uint32_t>& host_of_rank,
                                            uint32_t hosts) {
  std::vector<std::vector<const Conversion*>> conversions(model.sources.size());
  for (const Conversion& conversion : model.conversions) conversions[conversion.source].push_back(&conversion);
  std::vector<std::vector<uint64_t>> held(model.tensors.size(), std::vector<uint64_t>(hosts));
  std::set<std::pair<uint32_t, std::vector<std::pair<Extents, Extents>>>> seen;  // of one source: host and elements
  uint32_t source = 0;
  std::vector<const Holding*> holdings;
  for (const Holding& holding : model.holdings) {
    if (!holding.copy) holdings.push_back(&holding);
  }
  std::stable_sort(holdings.begin(), holdings.end(),
                   [](const Holding* a, const Holding* b) { return a->source < b->source; });
  for (const Holding* holding : holdings) {
    if (std::exchange(source, holding->source) != holding->source) seen.clear();
    const uint32_t host = host_of_rank[holding->rank];
    std::vector<std::pair<Extents, Extents>> elements;
    for (const Piece& piece : holding->pieces) elements.emplace_back(piece.target, piece.size);
    std::sort(elements.begin(), elements.end());
    if (!seen.emplace(host, std::move(elements)).second) continue;  // another rank's replica
    for (const Conversion* conversion : conversions[holding->source]) {
      const uint64_t count = ElementCount(Compose(holding->pieces, conversion->pieces));
      held[conversion->tensor][host] += count * Bits(model.tensors[conversion->tensor]);
    }
  }
  return held;
}

// The unit that each tensor stays in, counted from 0.
std::vector<size_t> UnitsOf(const TrainingModel& model, size_t& count) {
  std::vector<size_t> units;
  std::map<std::string, size_t, std::less<>> by_module;
  count = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    if (i > 0 && model.groups[i] == model.groups[i - 1]) {
      units.push_back(units.back());
      continue;
    }
    const std::string& name = model.tensors[i].name;
    const std::string module = model::FusedModule(name.substr(0, name.rfind('.')));
    const auto [at, added] = by_module.emplace(module, count);
    if (added) ++count;
    units.push_back(at->second);
  }
  return units;
}

}  // namespace

Result<std::vector<uint32_t>> HostOfTensors(const TrainingModel& model, const std::vector<uint32_t>& host_of_rank) {
  const uint32_t hosts = *std::max_element(host_of_rank.begin(), host_of_rank.end()) + 1;
  const auto held = HeldBits(model, host_of_rank, hosts);
  size_t unit_count = 0;
  const std::vector<size_t> units = UnitsOf(model, unit_count);
  std::vector<std::vector<uint64_t>> of_unit(unit_count, std::vector<uint64_t>(hosts));
  std::vector<uint64_t> bits(unit_count);
  for (size_t i = 0; i < units.size(); ++i) {
    for (uint32_t host = 0; host < hosts; ++host) of_unit[units[i]][host] += held[i][host];
    bits[units[i]] += ElementCount(model.tensors[i].shape) * Bits(model.tensors[i]);
  }
  std::vector<uint64_t> has(hosts);
  std::vector<uint32_t> chosen(unit_count);
  for (size_t unit = 0; unit < unit_count; ++unit) {
    uint32_t& best = chosen[unit];
    for (uint32_t host = 1; host < hosts; ++host) {
      if (of_unit[unit][host] < of_unit[unit][best]) continue;
      if (of_unit[unit][host] > of_unit[unit][best] || has[host] < has[best]) best = host;
    }
    has[best] += bits[unit];
  }
  for (uint32_t host = 0; host < hosts; ++host) {
    if (has[host] > 0) continue;
    return Status(ErrorCode::kBadData, Cat("the agent of host ", host, " of ", hosts, " would have no tensor of the ",
                                           "model; publish from fewer hosts, or without parts"));
  }
  std::vector<uint32_t> host_of_tensor;
  for (const size_t unit : units) host_of_tensor.push_back(chosen[unit]);
  return host_of_tensor;
}

Result<TrainingModel> PartOf(const TrainingModel& model, const std::vector<uint32_t>& host_of_tensor, uint32_t host) {
  TrainingModel part{.tensors = {},
                     .groups = {},
                     .sources = model.sources,
                     .conversions = {},
                     .holdings = model.holdings,
                     .huggingface_shapes = {}};
  std::vector<uint32_t> position(model.tensors.size());
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    if (host_of_tensor[i] != host) continue;
    position[i] = static_cast<uint32_t>(part.tensors.size());
    part.tensors.push_back(model.tensors[i]);
    part.groups.push_back(model.groups[i]);
    const auto shape = model.huggingface_shapes.find(model.tensors[i].name);
    if (shape != model.huggingface_shapes.end()) part.huggingface_shapes.insert(*shape);
  }
  for (const Conversion& conversion : model.conversions) {
    if (host_of_tensor[conversion.tensor] != host) continue;
    part.conversions.push_back(conversion);
    part.conversions.back().tensor = position[conversion.tensor];
  }
  LS_RETURN_IF_ERROR(PlaceTensors(part));
  return part;
}

}  // namespace lockstep::layout
