// Sheets from and to JSON.
#include <algorithm>
#include <unordered_set>

#include "common/base/text.h"
#include "common/model/layout.h"
#include "export_plugin/plan/sheet.h"
#include "export_plugin/plan/sheet_reader.h"

namespace lockstep {
namespace {

constexpr uint32_t kSheetFormat = 1;

using OrderedJson = nlohmann::ordered_json;

// ---- Megatron ----------------------------------------------------------------------------------------------------

Status CheckSeat(const SheetPath& path, std::string_view group, uint32_t rank, uint32_t size) {
  if (size >= 1 && size <= kMaxGroup && rank < size) return OkStatus();
  return path.Bad(
      Cat(group, "_rank ", rank, " of ", group, "_size ", size, ": sizes are 1 to ", kMaxGroup, ", ranks below them"));
}

Status ReadPlace(const SheetJson& json, const SheetPath& path, RankPlace& place) {
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("tensor_rank", place.at.tensor));
  LS_RETURN_IF_ERROR(object.Read("tensor_size", place.tensor));
  LS_RETURN_IF_ERROR(object.Read("pipeline_rank", place.at.pipeline));
  LS_RETURN_IF_ERROR(object.Read("expert_rank", place.at.expert));
  LS_RETURN_IF_ERROR(object.Read("expert_size", place.expert));
  LS_RETURN_IF_ERROR(object.Read("expert_tensor_rank", place.at.expert_tensor));
  LS_RETURN_IF_ERROR(object.Read("expert_tensor_size", place.expert_tensor));
  LS_RETURN_IF_ERROR(object.Finish());
  LS_RETURN_IF_ERROR(CheckSeat(path, "tensor", place.at.tensor, place.tensor));
  LS_RETURN_IF_ERROR(CheckSeat(path, "expert", place.at.expert, place.expert));
  return CheckSeat(path, "expert_tensor", place.at.expert_tensor, place.expert_tensor);
}

Status ReadParameter(const SheetJson& json, const SheetPath& path, LocalParameter& parameter) {
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", parameter.name));
  LS_RETURN_IF_ERROR(object.Read("dtype", parameter.dtype));
  LS_RETURN_IF_ERROR(object.Read("shape", parameter.shape));
  LS_RETURN_IF_ERROR(object.ReadOptional("frozen", parameter.frozen));
  return object.Finish();
}

Result<MegatronSheet> ReadMegatron(ObjectReader& part) {
  MegatronSheet sheet;
  LS_ASSIGN_OR_RETURN(const SheetJson* config, part.Need("config"));
  if (!config->is_object()) return part.path().Bad("\"config\" must be an object");
  sheet.config = config->dump();
  LS_ASSIGN_OR_RETURN(const SheetJson* place, part.Need("place"));
  LS_RETURN_IF_ERROR(ReadPlace(*place, {.parent = &part.path(), .key = "place"}, sheet.place));
  LS_ASSIGN_OR_RETURN(const SheetJson* parameters, part.Need("parameters"));
  const SheetPath path{.parent = &part.path(), .key = "parameters"};
  LS_RETURN_IF_ERROR(CheckArray(*parameters, path, kMaxTensors));
  sheet.parameters.resize(parameters->size());
  for (size_t i = 0; i < parameters->size(); ++i) {
    LS_RETURN_IF_ERROR(ReadParameter((*parameters)[i], {.parent = &path, .index = i}, sheet.parameters[i]));
  }
  return sheet;
}

// ---- Tensors that describe themselves
// --------------------------------------------------------------------------------

Status ReadBoxes(const SheetJson& json, const SheetPath& path, TensorSheet& tensor) {
  LS_RETURN_IF_ERROR(CheckArray(json, path, kMaxBoxes));
  for (size_t i = 0; i < json.size(); ++i) {
    const SheetPath at{.parent = &path, .index = i};
    Piece box;
    LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json[i], at));
    LS_RETURN_IF_ERROR(object.Read("local", box.source));
    LS_RETURN_IF_ERROR(object.Read("global", box.target));
    LS_RETURN_IF_ERROR(object.Read("size", box.size));
    LS_RETURN_IF_ERROR(object.Finish());
    const size_t rank = tensor.shape.size();
    if (box.source.size() != rank || box.target.size() != rank || box.size.size() != rank) {
      return at.Bad(Cat("must have ", rank, " dimensions, like \"shape\""));
    }
    // A shard that came out empty: nothing is held.
    if (std::find(box.size.begin(), box.size.end(), 0) == box.size.end()) tensor.boxes.push_back(std::move(box));
  }
  if (tensor.boxes.empty()) return OkStatus();
  const Status inside = CheckBounds(tensor.boxes, tensor.local_shape, tensor.shape);
  return inside.ok() ? OkStatus() : path.Bad(inside.message());
}

Status ReadInto(const SheetJson& json, const SheetPath& path, const Extents& source, TensorSheet::Into& into) {
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", into.name));
  LS_RETURN_IF_ERROR(object.Read("shape", into.shape));
  LS_RETURN_IF_ERROR(object.Read("from", into.from));
  LS_RETURN_IF_ERROR(object.Finish());
  if (into.from.size() != source.size() || into.shape.size() > source.size()) {
    return path.Bad(
        Cat("\"from\" must have the ", source.size(), " dimensions of the tensor, \"shape\" at most so many"));
  }
  const Extents size = Promoted(into.shape, source.size());
  for (size_t dim = 0; dim < size.size(); ++dim) {
    if (size[dim] > source[dim] || into.from[dim] > source[dim] - size[dim]) {
      return path.Bad(Cat("ends beyond the tensor in dimension ", dim));
    }
  }
  return OkStatus();
}

Status ReadTensor(const SheetJson& json, const SheetPath& path, TensorSheet& tensor) {
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", tensor.name));
  LS_RETURN_IF_ERROR(object.Read("dtype", tensor.dtype));
  LS_RETURN_IF_ERROR(object.Read("shape", tensor.shape));
  LS_RETURN_IF_ERROR(object.Read("local_shape", tensor.local_shape));
  LS_RETURN_IF_ERROR(object.ReadOptional("frozen", tensor.frozen));
  LS_ASSIGN_OR_RETURN(const SheetJson* boxes, object.Need("boxes"));
  LS_RETURN_IF_ERROR(ReadBoxes(*boxes, {.parent = &path, .key = "boxes"}, tensor));
  if (const SheetJson* into = object.Find("into"); into != nullptr) {
    const SheetPath into_path{.parent = &path, .key = "into"};
    LS_RETURN_IF_ERROR(CheckArray(*into, into_path, kMaxTensors));
    tensor.into.resize(into->size());
    for (size_t i = 0; i < into->size(); ++i) {
      LS_RETURN_IF_ERROR(ReadInto((*into)[i], {.parent = &into_path, .index = i}, tensor.shape, tensor.into[i]));
    }
  }
  return object.Finish();
}

Result<std::vector<TensorSheet>> ReadTensors(ObjectReader& part) {
  LS_ASSIGN_OR_RETURN(const SheetJson* json, part.Need("tensors"));
  const SheetPath path{.parent = &part.path(), .key = "tensors"};
  LS_RETURN_IF_ERROR(CheckArray(*json, path, kMaxTensors));
  std::vector<TensorSheet> tensors(json->size());
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < json->size(); ++i) {
    const SheetPath at{.parent = &path, .index = i};
    LS_RETURN_IF_ERROR(ReadTensor((*json)[i], at, tensors[i]));
    if (!names.insert(tensors[i].name).second) return at.Bad(Cat("\"", tensors[i].name, "\" is given twice"));
  }
  return tensors;
}

// ---- The sheet
// -------------------------------------------------------------------------------------------------------

Status ReadPart(const SheetJson& json, const SheetPath& path, PartSheet& part) {
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, path));
  std::string kind;
  LS_RETURN_IF_ERROR(object.Read("kind", kind));
  if (kind == "megatron") {
    LS_ASSIGN_OR_RETURN(part, ReadMegatron(object));
  } else if (kind == "tensors") {
    LS_ASSIGN_OR_RETURN(part, ReadTensors(object));
  } else {
    return path.Bad(Cat("the kind \"", kind.substr(0, 100), "\" is neither \"megatron\" nor \"tensors\""));
  }
  return object.Finish();
}

OrderedJson ToJson(const MegatronSheet& sheet) {
  const RankPlace& place = sheet.place;
  OrderedJson parameters = OrderedJson::array();
  for (const LocalParameter& parameter : sheet.parameters) {
    OrderedJson entry = {
        {"name", parameter.name}, {"dtype", FindDType(parameter.dtype)->name}, {"shape", parameter.shape}};
    if (parameter.frozen) entry["frozen"] = true;
    parameters.push_back(std::move(entry));
  }
  return {{"kind", "megatron"},
          {"config", OrderedJson::parse(sheet.config, nullptr, /*allow_exceptions=*/false)},
          {"place",
           {{"tensor_rank", place.at.tensor},
            {"tensor_size", place.tensor},
            {"pipeline_rank", place.at.pipeline},
            {"expert_rank", place.at.expert},
            {"expert_size", place.expert},
            {"expert_tensor_rank", place.at.expert_tensor},
            {"expert_tensor_size", place.expert_tensor}}},
          {"parameters", std::move(parameters)}};
}

OrderedJson ToJson(const TensorSheet& tensor) {
  OrderedJson entry = {{"name", tensor.name},
                       {"dtype", FindDType(tensor.dtype)->name},
                       {"shape", tensor.shape},
                       {"local_shape", tensor.local_shape},
                       {"boxes", OrderedJson::array()}};
  for (const Piece& box : tensor.boxes) {
    entry["boxes"].push_back({{"local", box.source}, {"global", box.target}, {"size", box.size}});
  }
  if (tensor.frozen) entry["frozen"] = true;
  for (const TensorSheet::Into& into : tensor.into) {
    entry["into"].push_back({{"name", into.name}, {"shape", into.shape}, {"from", into.from}});
  }
  return entry;
}

OrderedJson ToJson(const std::vector<TensorSheet>& tensors) {
  OrderedJson list = OrderedJson::array();
  for (const TensorSheet& tensor : tensors) list.push_back(ToJson(tensor));
  return {{"kind", "tensors"}, {"tensors", std::move(list)}};
}

}  // namespace

Result<RankSheet> ParseSheet(std::string_view json) {
  const SheetPath top;
  if (json.size() > kMaxSheetBytes) return top.Bad(Cat("is larger than ", HumanBytes(kMaxSheetBytes)));
  LS_ASSIGN_OR_RETURN(const SheetJson document, ParseJson(json, top));
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(document, top));
  uint32_t format = 0;
  LS_RETURN_IF_ERROR(object.Read("format", format));
  if (format != kSheetFormat) {
    return top.Bad(Cat("is of format ", format, "; this build reads format ", kSheetFormat));
  }
  RankSheet sheet;
  LS_RETURN_IF_ERROR(object.Read("beside_agent", sheet.beside_agent));
  LS_ASSIGN_OR_RETURN(const SheetJson* parts, object.Need("parts"));
  const SheetPath path{.parent = &top, .key = "parts"};
  LS_RETURN_IF_ERROR(CheckArray(*parts, path, kMaxSheetParts));
  if (parts->empty()) return path.Bad("is empty: give at least one part");
  sheet.parts.resize(parts->size());
  for (size_t i = 0; i < parts->size(); ++i) {
    LS_RETURN_IF_ERROR(ReadPart((*parts)[i], {.parent = &path, .index = i}, sheet.parts[i]));
  }
  LS_RETURN_IF_ERROR(object.Finish());
  return sheet;
}

std::string ToJson(const RankSheet& sheet) {
  OrderedJson parts = OrderedJson::array();
  for (const PartSheet& part : sheet.parts) {
    parts.push_back(std::visit([](const auto& kind) { return ToJson(kind); }, part));
  }
  const OrderedJson document = {
      {"format", kSheetFormat}, {"beside_agent", sheet.beside_agent}, {"parts", std::move(parts)}};
  return document.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::vector<SheetLocal> LocalsOf(const RankSheet& sheet) {
  std::vector<SheetLocal> locals;
  for (const PartSheet& part : sheet.parts) {
    if (const auto* megatron = std::get_if<MegatronSheet>(&part); megatron != nullptr) {
      for (const LocalParameter& parameter : megatron->parameters) {
        locals.push_back({parameter.name, parameter.dtype, parameter.shape});
      }
    } else {
      for (const TensorSheet& tensor : std::get<std::vector<TensorSheet>>(part)) {
        locals.push_back({tensor.name, std::nullopt, tensor.local_shape});
      }
    }
  }
  return locals;
}

}  // namespace lockstep
