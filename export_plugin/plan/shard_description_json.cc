// Descriptions from and to JSON.
#include <algorithm>
#include <unordered_set>

#include "common/base/text.h"
#include "common/json/json_reader.h"
#include "common/model/layout.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::plan {
namespace {

constexpr uint32_t kDescriptionFormat = 1;

using OrderedJson = nlohmann::ordered_json;

Status ReadShape(const json::Json& json, const json::JsonPath& path, layout::Extents& shape) {
  LS_RETURN_IF_ERROR(json::ReadValue(json, path, shape));
  uint64_t elements = 1;  // of the dimensions that are not 0
  for (const uint64_t size : shape) {
    if (size > model::kMaxDataBytes / elements) return path.Bad("is larger than any tensor can be");
    elements *= std::max<uint64_t>(size, 1);
  }
  return OkStatus();
}

// ---- Megatron ----------------------------------------------------------------------------------------------------

Status CheckSeat(const json::JsonPath& path, std::string_view group, rules::GroupPlace place) {
  if (place.of >= 1 && place.of <= kMaxGroup && place.at < place.of) return OkStatus();
  return path.Bad(Cat(group, "_rank ", place.at, " of ", group, "_size ", place.of, ": sizes are 1 to ", kMaxGroup,
                      ", ranks below them"));
}

Status ReadPlace(const json::Json& json, const json::JsonPath& path, rules::RankCoordinates& place) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("tensor_rank", place.tensor.at));
  LS_RETURN_IF_ERROR(object.Read("tensor_size", place.tensor.of));
  LS_RETURN_IF_ERROR(object.Read("pipeline_rank", place.pipeline));
  LS_RETURN_IF_ERROR(object.Read("expert_rank", place.expert.at));
  LS_RETURN_IF_ERROR(object.Read("expert_size", place.expert.of));
  LS_RETURN_IF_ERROR(object.Read("expert_tensor_rank", place.expert_tensor.at));
  LS_RETURN_IF_ERROR(object.Read("expert_tensor_size", place.expert_tensor.of));
  LS_RETURN_IF_ERROR(object.Finish());
  LS_RETURN_IF_ERROR(CheckSeat(path, "tensor", place.tensor));
  LS_RETURN_IF_ERROR(CheckSeat(path, "expert", place.expert));
  return CheckSeat(path, "expert_tensor", place.expert_tensor);
}

Status ReadParameter(const json::Json& json, const json::JsonPath& path, rules::LocalParameter& parameter) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", parameter.name));
  LS_RETURN_IF_ERROR(object.Read("dtype", parameter.dtype));
  LS_RETURN_IF_ERROR(object.Read("shape", parameter.shape, ReadShape));
  LS_RETURN_IF_ERROR(object.ReadOptional("frozen", parameter.frozen));
  return object.Finish();
}

Result<MegatronDescription> ReadMegatron(json::ObjectReader& part) {
  MegatronDescription description;
  LS_ASSIGN_OR_RETURN(const json::Json* config, part.Need("config"));
  if (!config->is_object()) return part.path().Bad("\"config\" must be an object");
  description.config = config->dump();
  LS_RETURN_IF_ERROR(part.Read("place", description.place, ReadPlace));
  LS_RETURN_IF_ERROR(part.ReadList("parameters", model::kMaxTensors, description.parameters, ReadParameter));
  return description;
}

// ---- Tensors that describe themselves ----------------------------------------------------------------------------

Status ReadBox(const json::Json& json, const json::JsonPath& path, size_t rank, layout::Piece& box) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("local", box.source));
  LS_RETURN_IF_ERROR(object.Read("global", box.target));
  LS_RETURN_IF_ERROR(object.Read("size", box.size));
  LS_RETURN_IF_ERROR(object.Finish());
  if (box.source.size() == rank && box.target.size() == rank && box.size.size() == rank) return OkStatus();
  return path.Bad(Cat("must have ", rank, " dimensions, like \"shape\""));
}

Status ReadBoxes(json::ObjectReader& object, TensorDescription& tensor) {
  const auto read = [&](const json::Json& json, const json::JsonPath& path, layout::Piece& box) {
    return ReadBox(json, path, tensor.shape.size(), box);
  };
  LS_RETURN_IF_ERROR(object.ReadList("boxes", kMaxBoxes, tensor.boxes, read));
  // A shard that came out empty: nothing is held.
  std::erase_if(tensor.boxes,
                [](const layout::Piece& box) { return std::ranges::find(box.size, 0) != box.size.end(); });
  if (tensor.boxes.empty()) return OkStatus();
  const Status inside = layout::CheckBounds(tensor.boxes, tensor.local_shape, tensor.shape);
  return inside.ok() ? OkStatus() : object.PathOf("boxes").Bad(inside.message());
}

Status CheckInside(const json::JsonPath& path, const layout::Extents& at, const layout::Extents& size,
                   const layout::Extents& whole, std::string_view what) {
  for (size_t dim = 0; dim < size.size(); ++dim) {
    if (size[dim] > whole[dim] || at[dim] > whole[dim] - size[dim]) {
      return path.Bad(Cat("ends beyond ", what, " in dimension ", dim));
    }
  }
  return OkStatus();
}

Status ReadInto(const json::Json& json, const json::JsonPath& path, const layout::Extents& source,
                TensorDescription::Into& into) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", into.name));
  LS_RETURN_IF_ERROR(object.Read("shape", into.shape, ReadShape));
  LS_RETURN_IF_ERROR(object.Read("from", into.from));
  LS_RETURN_IF_ERROR(object.ReadOptional("at", into.at));
  LS_RETURN_IF_ERROR(object.ReadOptional("size", into.size));
  LS_RETURN_IF_ERROR(object.ReadOptional("as", into.as, ReadShape));
  LS_RETURN_IF_ERROR(object.Finish());
  const std::string_view planned = into.as.empty() ? "\"shape\"" : "\"as\"";
  if (into.from.size() != source.size() || into.planned().size() > source.size()) {
    return path.Bad(
        Cat("\"from\" must have the ", source.size(), " dimensions of the tensor, ", planned, " at most so many"));
  }
  if (!into.as.empty() && (into.at.empty() || layout::ElementCount(into.as) != layout::ElementCount(into.shape))) {
    return path.Bad("\"as\" must have as many elements as \"shape\", and needs \"at\" and \"size\"");
  }
  if (into.at.size() != into.size.size() || (!into.at.empty() && into.at.size() != into.planned().size())) {
    return path.Bad(Cat("\"at\" and \"size\" must have the ", into.planned().size(), " dimensions of ", planned));
  }
  if (!into.at.empty()) LS_RETURN_IF_ERROR(CheckInside(path, into.at, into.size, into.planned(), planned));
  const layout::Extents size = layout::Promoted(into.at.empty() ? into.shape : into.size, source.size());
  return CheckInside(path, into.from, size, source, "the tensor");
}

Status ReadTensor(const json::Json& json, const json::JsonPath& path, TensorDescription& tensor) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", tensor.name));
  LS_RETURN_IF_ERROR(object.Read("dtype", tensor.dtype));
  LS_RETURN_IF_ERROR(object.Read("shape", tensor.shape, ReadShape));
  LS_RETURN_IF_ERROR(object.Read("local_shape", tensor.local_shape, ReadShape));
  LS_RETURN_IF_ERROR(object.ReadOptional("frozen", tensor.frozen));
  LS_RETURN_IF_ERROR(ReadBoxes(object, tensor));
  const auto read_into = [&](const json::Json& into, const json::JsonPath& at, TensorDescription::Into& value) {
    return ReadInto(into, at, tensor.shape, value);
  };
  LS_RETURN_IF_ERROR(object.ReadOptionalList("into", model::kMaxTensors, tensor.into, read_into));
  return object.Finish();
}

Result<std::vector<TensorDescription>> ReadTensors(json::ObjectReader& part) {
  std::vector<TensorDescription> tensors;
  std::unordered_set<std::string_view> names;
  const auto read = [&](const json::Json& json, const json::JsonPath& path, TensorDescription& tensor) -> Status {
    LS_RETURN_IF_ERROR(ReadTensor(json, path, tensor));
    if (names.insert(tensor.name).second) return OkStatus();
    return path.Bad(Cat("\"", tensor.name, "\" is given twice"));
  };
  LS_RETURN_IF_ERROR(part.ReadList("tensors", model::kMaxTensors, tensors, read));
  return tensors;
}

// ---- The description

Status ReadPart(const json::Json& json, const json::JsonPath& path, PartDescription& part) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  std::string kind;
  LS_RETURN_IF_ERROR(object.Read("kind", kind));
  if (kind == "megatron") {
    LS_ASSIGN_OR_RETURN(part, ReadMegatron(object));
  } else if (kind == "tensors") {
    LS_ASSIGN_OR_RETURN(part, ReadTensors(object));
  } else {
    return path.Bad(Cat("the kind \"", CleanText(kind, 100), "\" is neither \"megatron\" nor \"tensors\""));
  }
  return object.Finish();
}

OrderedJson ToJson(const MegatronDescription& description) {
  const rules::RankCoordinates& place = description.place;
  OrderedJson parameters = OrderedJson::array();
  for (const rules::LocalParameter& parameter : description.parameters) {
    OrderedJson entry = {
        {"name", parameter.name}, {"dtype", model::FindDType(parameter.dtype)->name}, {"shape", parameter.shape}};
    if (parameter.frozen) entry["frozen"] = true;
    parameters.push_back(std::move(entry));
  }
  return {{"kind", "megatron"},
          {"config", OrderedJson::parse(description.config, nullptr, /*allow_exceptions=*/false)},
          {"place",
           {{"tensor_rank", place.tensor.at},
            {"tensor_size", place.tensor.of},
            {"pipeline_rank", place.pipeline},
            {"expert_rank", place.expert.at},
            {"expert_size", place.expert.of},
            {"expert_tensor_rank", place.expert_tensor.at},
            {"expert_tensor_size", place.expert_tensor.of}}},
          {"parameters", std::move(parameters)}};
}

OrderedJson ToJson(const TensorDescription& tensor) {
  OrderedJson entry = {{"name", tensor.name},
                       {"dtype", model::FindDType(tensor.dtype)->name},
                       {"shape", tensor.shape},
                       {"local_shape", tensor.local_shape},
                       {"boxes", OrderedJson::array()}};
  for (const layout::Piece& box : tensor.boxes) {
    entry["boxes"].push_back({{"local", box.source}, {"global", box.target}, {"size", box.size}});
  }
  if (tensor.frozen) entry["frozen"] = true;
  for (const TensorDescription::Into& into : tensor.into) {
    OrderedJson made = {{"name", into.name}, {"shape", into.shape}, {"from", into.from}};
    if (!into.at.empty()) made.update({{"at", into.at}, {"size", into.size}});
    if (!into.as.empty()) made["as"] = into.as;
    entry["into"].push_back(std::move(made));
  }
  return entry;
}

OrderedJson ToJson(const std::vector<TensorDescription>& tensors) {
  OrderedJson list = OrderedJson::array();
  for (const TensorDescription& tensor : tensors) list.push_back(ToJson(tensor));
  return {{"kind", "tensors"}, {"tensors", std::move(list)}};
}

}  // namespace

Result<ShardDescription> ParseDescription(std::string_view json) {
  const json::JsonPath top{.key = "description"};
  LS_ASSIGN_OR_RETURN(const json::Json document, json::ParseJson(json, top, kMaxDescriptionBytes));
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(document, top));
  uint32_t format = 0;
  LS_RETURN_IF_ERROR(object.Read("format", format));
  if (format != kDescriptionFormat) {
    return top.Bad(Cat("is of format ", format, "; this build reads format ", kDescriptionFormat));
  }
  ShardDescription description;
  LS_RETURN_IF_ERROR(object.Read("on_agent_host", description.on_agent_host));
  LS_RETURN_IF_ERROR(object.ReadList("parts", kMaxDescriptionParts, description.parts, ReadPart));
  if (description.parts.empty()) return object.PathOf("parts").Bad("is empty: give at least one part");
  LS_RETURN_IF_ERROR(object.Finish());
  return description;
}

std::string ToJson(const ShardDescription& description) {
  OrderedJson parts = OrderedJson::array();
  for (const PartDescription& part : description.parts) {
    parts.push_back(std::visit([](const auto& kind) { return ToJson(kind); }, part));
  }
  const OrderedJson document = {
      {"format", kDescriptionFormat}, {"on_agent_host", description.on_agent_host}, {"parts", std::move(parts)}};
  return document.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::vector<DescribedLocal> LocalsOf(const ShardDescription& description) {
  std::vector<DescribedLocal> locals;
  for (const PartDescription& part : description.parts) {
    if (const auto* megatron = std::get_if<MegatronDescription>(&part); megatron != nullptr) {
      for (const rules::LocalParameter& parameter : megatron->parameters) {
        locals.push_back({parameter.name, parameter.dtype, parameter.shape});
      }
    } else {
      for (const TensorDescription& tensor : std::get<std::vector<TensorDescription>>(part)) {
        locals.push_back({tensor.name, std::nullopt, tensor.local_shape});
      }
    }
  }
  return locals;
}

}  // namespace lockstep::plan
