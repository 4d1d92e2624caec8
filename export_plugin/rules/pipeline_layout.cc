#include "export_plugin/rules/pipeline_layout.h"

#include <algorithm>
#include <optional>

#include "common/base/text.h"

namespace lockstep::rules {
namespace {

constexpr size_t kMaxExpanded = 1 << 20;

Status Bad(std::string_view layout, std::string_view message) {
  return Status(ErrorCode::kBadData,
                Cat("pipeline layout '", CleanText(layout, 200), "': ", message,
                    " (E embedding, t decoder layer, m MTP layer, L loss, | between stages, x*n, (xy)*n)"));
}

// The n of "*n" at the start of `text`, which loses it; nothing when there is none. Saturates.
std::optional<size_t> TakeCount(std::string_view& text) {
  if (text.size() < 2 || text[0] != '*' || text[1] < '0' || text[1] > '9') return std::nullopt;
  text.remove_prefix(1);
  size_t count = 0;
  for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1)) {
    count = std::min(count * 10 + static_cast<size_t>(text[0] - '0'), kMaxExpanded);
  }
  return count;
}

// Length of the group "(...)" that `text` starts with, or 0.
size_t GroupLength(std::string_view text) {
  const size_t close = text[0] == '(' ? text.find(')') : std::string_view::npos;
  return close == std::string_view::npos || close == 1 ? 0 : close + 1;
}

// `text` with every group, or every single character, repeated as often as the count behind it says. Nothing when that
// grows out of bounds.
std::optional<std::string> Expanded(std::string_view text, bool groups) {
  std::string expanded;
  while (!text.empty()) {
    const size_t length = groups ? GroupLength(text) : 1;
    std::string_view behind = text.substr(length);
    const auto count = length == 0 ? std::nullopt : TakeCount(behind);
    const std::string_view unit = groups && count ? text.substr(1, length - 2) : text.substr(0, 1);
    if (count.value_or(1) > (kMaxExpanded - expanded.size()) / unit.size()) return std::nullopt;
    for (size_t i = 0; i < count.value_or(1); ++i) expanded += unit;
    text = count ? behind : text.substr(1);
  }
  return expanded;
}

Result<std::vector<std::string>> StagesOf(std::string_view layout) {
  std::string plain(layout.substr(0, kMaxExpanded));
  std::erase(plain, ',');
  auto expanded = Expanded(plain, /*groups=*/true);
  if (expanded) expanded = Expanded(*expanded, /*groups=*/false);
  if (!expanded) return Bad(layout, "it repeats too much");
  const size_t stray = expanded->find_first_not_of("EtmL|");
  if (stray != std::string::npos) return Bad(layout, Cat("stray '", CleanText(expanded->substr(stray, 1)), "'"));
  std::vector<std::string> stages(1);
  for (const char c : *expanded) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  return stages;
}

// That the stages read one after another are E, decoder layers, MTP layers, L.
Status CheckOrder(std::string_view layout, const std::vector<std::string>& stages) {
  std::string all;
  for (const std::string& stage : stages) all += stage;
  if (stages.front().empty() || all.front() != 'E' || std::count(all.begin(), all.end(), 'E') != 1) {
    return Bad(layout, "the first stage must start with the only E");
  }
  if (stages.back().empty() || all.back() != 'L' || std::count(all.begin(), all.end(), 'L') != 1) {
    return Bad(layout, "the last stage must end with the only L");
  }
  const size_t mtp = all.find('m');
  if (mtp != std::string::npos && all.find('t', mtp) != std::string::npos) {
    return Bad(layout, "a decoder layer comes after an MTP layer");
  }
  return OkStatus();
}

// Megatron keeps all MTP layers in one stage, the last virtual one of its rank.
Status CheckMtp(std::string_view layout, const std::vector<std::string>& stages, uint32_t pipeline) {
  size_t holders = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].find('m') == std::string::npos) continue;
    if (++holders > 1) return Bad(layout, "MTP layers must be in one stage");
    if (stage + pipeline < stages.size()) return Bad(layout, "MTP layers must be in their rank's last virtual stage");
    if (stage % pipeline == 0 && stage != 0) {
      return Bad(layout, "MTP layers on the first rank, but not in the embedding's stage, would need it twice there");
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<LayoutStage>> ParsePipelineLayout(std::string_view layout, uint32_t pipeline) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> stages, StagesOf(layout));
  if (stages.size() % pipeline != 0) {
    return Bad(layout, Cat(stages.size(), " stages are no multiple of ", pipeline, " pipeline ranks"));
  }
  if (pipeline == 1 && stages.size() > 1) return Bad(layout, "one pipeline rank has one stage");
  LS_RETURN_IF_ERROR(CheckOrder(layout, stages));
  LS_RETURN_IF_ERROR(CheckMtp(layout, stages, pipeline));
  std::vector<LayoutStage> parsed;
  for (const std::string& stage : stages) {
    parsed.push_back({.layers = static_cast<uint32_t>(std::count(stage.begin(), stage.end(), 't')),
                      .mtp_layers = static_cast<uint32_t>(std::count(stage.begin(), stage.end(), 'm'))});
  }
  return parsed;
}

}  // namespace lockstep::rules
