#include "export_plugin/rules/megatron.h"

#include "common/base/text.h"
#include "export_plugin/rules/family.h"
#include "export_plugin/rules/parameter_name.h"
#include "export_plugin/rules/rows.h"
#include "export_plugin/rules/slots.h"

namespace lockstep::rules {
namespace {

Status Bad(std::string message) {
  return Status(ErrorCode::kBadData, std::move(message));
}

// The tensors a layer's rows make; counted before any of them is built.
uint64_t TensorsOfLayer(const Family& family, const ModelConfig& config, uint64_t layer) {
  uint64_t count = 0;
  for (const ParameterSlot& slot : LayerSlots(family, config, layer, 1)) {
    count += TargetCount(*slot.row) * (slot.row->where == RowScope::kExpert ? config.experts : 1);
  }
  return count;
}

Status CheckTensorCount(const Family& family, const ModelConfig& config) {
  uint64_t count = 0;
  for (uint64_t layer = 0; layer < config.layers + config.mtp_layers; ++layer) {
    count += TensorsOfLayer(family, config, layer);
  }
  if (count <= model::kMaxTensors - 3) return OkStatus();
  return Bad(Cat("model configuration: ", count, " tensors are more than ", model::kMaxTensors));
}

// Appends the slot's source, its HuggingFace tensors and the conversions between them.
void Append(const ParameterSlot& slot, const ModelConfig& config, layout::TrainingModel& model) {
  const auto source = static_cast<uint32_t>(model.sources.size());
  model.sources.push_back({.name = SourceName(slot, config), .shape = FullShape(*slot.row, config)});
  const uint32_t group = model.groups.empty() ? 0 : model.groups.back() + (slot.joins ? 0 : 1);
  for (RowTarget& target : TargetsOf(*slot.row, config)) {
    const auto tensor = static_cast<uint32_t>(model.tensors.size());
    model.tensors.push_back({.name = HuggingFaceName(slot, target.name),
                             .dtype = slot.row->fp32 ? model::DType::kF32 : config.dtype,
                             .shape = std::move(target.shape)});
    model.groups.push_back(group);
    model.conversions.push_back({.source = source, .tensor = tensor, .pieces = std::move(target.pieces)});
  }
}

void Append(const std::vector<ParameterSlot>& slots, const ModelConfig& config, layout::TrainingModel& model) {
  for (const ParameterSlot& slot : slots) Append(slot, config, model);
}

Status CheckPlace(const RankCoordinates& place) {
  const auto& [tensor, expert, expert_tensor, pipeline] = place;
  if (tensor.at < tensor.of && expert.at < expert.of && expert_tensor.at < expert_tensor.of) return OkStatus();
  return Bad(Cat("its rank stands at tensor ", tensor.at, " of ", tensor.of, ", expert ", expert.at, " of ", expert.of,
                 ", expert tensor ", expert_tensor.at, " of ", expert_tensor.of));
}

bool InScope(ParameterName::Scope scope, RowScope where) {
  switch (scope) {
    case ParameterName::Scope::kWhole:
      return where == RowScope::kModel || where == RowScope::kEnd;
    case ParameterName::Scope::kMtpLayer:
      return where == RowScope::kMtpLayer;
    case ParameterName::Scope::kDecoder:
    case ParameterName::Scope::kMtpInner:
      return where == RowScope::kLayer || where == RowScope::kDense || where == RowScope::kMoe ||
             where == RowScope::kExpert;
  }
  return false;
}

Status NoRow(const Family& family, const ParameterName& name, const FamilyRow* elsewhere) {
  if (elsewhere != nullptr && elsewhere->when.test != nullptr) {
    return Bad(Cat("only a model with ", elsewhere->when.what, " has it, and by config.json this one is not"));
  }
  if (elsewhere != nullptr) {
    return Bad(Cat("by config.json layer ", name.layer, " has ",
                   elsewhere->where == RowScope::kDense ? "experts, and this belongs to a dense one"
                                                        : "a dense MLP, and this belongs to experts"));
  }
  return Bad(Cat("no rule of family ", family.model_type, " covers it; the nearest is '",
                 NearestPattern(family, name.pattern), "'; publish the model by its bridge (docs/howto/trainers.md)"));
}

// The number of the layer, MTP layers after the decoder's.
Result<uint64_t> LayerOf(const ModelConfig& config, const ParameterName& name) {
  if (name.scope == ParameterName::Scope::kWhole) return uint64_t{0};
  const bool decoder = name.scope == ParameterName::Scope::kDecoder;
  const uint64_t count = decoder ? config.layers : config.mtp_layers;
  if (name.layer < count) return name.layer + (decoder ? 0 : config.layers);
  return Bad(Cat("by config.json the model has ", count, decoder ? " decoder" : " MTP", " layers",
                 decoder ? "" : " (num_nextn_predict_layers)"));
}

// The row that has the parameter in this model.
Result<const FamilyRow*> FindRow(const Family& family, const ModelConfig& config, const ParameterName& name,
                                 uint64_t layer) {
  const FamilyRow* elsewhere = nullptr;  // one of that name that this model or layer does not have
  for (const std::span<const FamilyRow> rows : family.rows) {
    for (const FamilyRow& row : rows) {
      if (!InScope(name.scope, row.where) || !Matches(row, name.pattern)) continue;
      const bool whole = name.scope == ParameterName::Scope::kWhole;
      if (row.when.Holds(config) && (whole || InLayer(row.where, config, layer))) return &row;
      elsewhere = &row;
    }
  }
  return NoRow(family, name, elsewhere);
}

// The expert's global number.
Result<uint64_t> ExpertOf(const ModelConfig& config, GroupPlace place, uint64_t local) {
  const uint64_t each = config.experts / place.of;
  if (config.experts % place.of != 0) {
    return Bad(Cat(config.experts, " experts do not divide over ", place.of, " expert-parallel ranks"));
  }
  if (local < each) return place.at * each + local;
  return Bad(Cat("each of ", place.of, " expert-parallel ranks has ", each, " of ", config.experts, " experts"));
}

GroupPlace ShardOfRow(const FamilyRow& row, const RankCoordinates& place) {
  return row.where == RowScope::kExpert ? place.expert_tensor : place.tensor;
}

bool IsTiedHead(const ParameterName& name, const ModelConfig& config) {
  return config.tied_embeddings && name.scope == ParameterName::Scope::kWhole && name.pattern == "output_layer.weight";
}

}  // namespace

Result<MegatronRules> MegatronRules::Create(ModelConfig config) {
  LS_RETURN_IF_ERROR(CheckModelConfig(config));
  const Family& family = *FindFamily(config.model_type);
  LS_RETURN_IF_ERROR(CheckTensorCount(family, config));
  MegatronRules rules(std::move(config));
  layout::TrainingModel& model = rules.model_;
  const ModelConfig& known = rules.config_;
  Append(WholeSlots(family, known, RowScope::kModel), known, model);
  for (uint64_t layer = 0; layer < known.layers; ++layer) {
    Append(LayerSlots(family, known, layer, known.experts), known, model);
  }
  Append(WholeSlots(family, known, RowScope::kEnd), known, model);
  for (uint64_t layer = known.layers; layer < known.layers + known.mtp_layers; ++layer) {
    Append(LayerSlots(family, known, layer, known.experts), known, model);
  }
  LS_RETURN_IF_ERROR(layout::PlaceTensors(model));
  for (uint32_t i = 0; i < model.sources.size(); ++i) rules.sources_.emplace(model.sources[i].name, i);
  return rules;
}

Result<layout::Holding> MegatronRules::HoldingOf(const LocalParameter& parameter, const RankCoordinates& place) const {
  const Family& family = *FindFamily(config_.model_type);
  const auto holding = [&]() -> Result<layout::Holding> {
    LS_RETURN_IF_ERROR(CheckPlace(place));
    LS_ASSIGN_OR_RETURN(ParameterName name, ParseParameterName(parameter.name));
    const bool tied_head = IsTiedHead(name, config_);
    if (tied_head) name.pattern = "embedding.word_embeddings.weight";
    LS_ASSIGN_OR_RETURN(const uint64_t layer, LayerOf(config_, name));
    LS_ASSIGN_OR_RETURN(const FamilyRow* row, FindRow(family, config_, name, layer));
    ParameterSlot slot{.row = row, .layer = layer};
    if (row->where == RowScope::kExpert) {
      LS_ASSIGN_OR_RETURN(slot.expert, ExpertOf(config_, place.expert, name.expert.value_or(0)));
    }
    const uint32_t source = sources_.at(SourceName(slot, config_));
    LS_ASSIGN_OR_RETURN(layout::Pieces pieces,
                        PiecesOf(row->split, model_.sources[source].shape, parameter.shape, ShardOfRow(*row, place)));
    const bool copy = tied_head || (row->where == RowScope::kModel && place.pipeline != 0);
    return layout::Holding{.source = source, .local_shape = parameter.shape, .pieces = std::move(pieces), .copy = copy};
  }();
  if (holding.ok()) return holding;
  return holding.status().WithContext(Cat("parameter '", CleanText(parameter.name, 256), "'"));
}

namespace {

// Collects the parameters of one rank.
struct Collector {
  const Family& family;
  const ModelConfig& config;
  const RankCoordinates place;
  const uint64_t padded_vocabulary;
  const bool fused_norms;
  std::vector<LocalParameter> parameters;

  Status Add(const ParameterSlot& slot, std::string_view name) {
    const FamilyRow& row = *slot.row;
    layout::Extents full = FullShape(row, config);
    if (row.split == TensorSplit::kVocabulary) full[0] = padded_vocabulary;
    auto local = LocalShape(row.split, full, /*replicated=*/fused_norms, ShardOfRow(row, place));
    if (!local.ok()) return local.status().WithContext(Cat("parameter '", name, "'"));
    parameters.push_back(
        {.name = std::string(name), .dtype = row.fp32 ? model::DType::kF32 : config.dtype, .shape = *local});
    return OkStatus();
  }

  Status AddAll(const std::vector<ParameterSlot>& slots) {
    for (const ParameterSlot& slot : slots) {
      LS_RETURN_IF_ERROR(Add(slot, McoreName(slot, config, fused_norms)));
    }
    return OkStatus();
  }

  Status AddLayer(uint64_t layer) {
    return AddAll(LayerSlots(family, config, layer, config.experts / place.expert.of));
  }

  // Norm and head: the rows that the stage has, and the head that a tied model keeps apart from its embedding.
  Status AddEnd(const ModelChunk& chunk) {
    for (const ParameterSlot& slot : WholeSlots(family, config, RowScope::kEnd)) {
      const bool head = slot.row->split == TensorSplit::kVocabulary;
      if (head ? chunk.output : chunk.final_norm) LS_RETURN_IF_ERROR(AddAll({slot}));
    }
    if (!config.tied_embeddings || !chunk.output || chunk.embedding) return OkStatus();
    return Add(WholeSlots(family, config, RowScope::kModel).front(), "output_layer.weight");
  }

  Status AddChunk(const ModelChunk& chunk) {
    if (chunk.embedding || chunk.mtp) LS_RETURN_IF_ERROR(AddAll(WholeSlots(family, config, RowScope::kModel)));
    for (const uint32_t layer : chunk.layers) LS_RETURN_IF_ERROR(AddLayer(layer));
    for (uint64_t layer = 0; chunk.mtp && layer < config.mtp_layers; ++layer) {
      LS_RETURN_IF_ERROR(AddLayer(config.layers + layer));
    }
    return AddEnd(chunk);
  }
};

}  // namespace

Result<std::vector<LocalParameter>> MegatronRules::ExpectedParameters(const Topology& topology, uint32_t rank,
                                                                      bool fused_norms) const {
  LS_RETURN_IF_ERROR(CheckTopology(topology, config_.layers));
  if (rank >= topology.world) return Bad(Cat("rank ", rank, " of a world of ", topology.world));
  if (config_.experts % topology.expert != 0) {
    return Bad(Cat("topology: ", config_.experts, " experts do not divide over ", topology.expert, " ranks"));
  }
  const RankCoordinates place = PlaceOf(topology, rank);
  LS_ASSIGN_OR_RETURN(const auto chunks, ChunksOfStage(topology, config_.layers, config_.mtp_layers, place.pipeline));
  Collector collector{
      .family = *FindFamily(config_.model_type),
      .config = config_,
      .place = place,
      .padded_vocabulary = PaddedVocabulary(config_.vocabulary, topology.vocabulary_divisible_by, topology.tensor),
      .fused_norms = fused_norms};
  for (const ModelChunk& chunk : chunks) LS_RETURN_IF_ERROR(collector.AddChunk(chunk));
  return std::move(collector.parameters);
}

uint64_t PaddedVocabulary(uint64_t vocabulary, uint64_t divisible_by, uint32_t tensor) {
  const uint64_t multiple = divisible_by * tensor;
  return (vocabulary + multiple - 1) / multiple * multiple;
}

}  // namespace lockstep::rules
