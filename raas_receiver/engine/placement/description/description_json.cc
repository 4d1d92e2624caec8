// Descriptions from JSON.
#include <unordered_set>

#include "common/json/json_reader.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/description/description.h"

namespace lockstep::engine {
namespace {

constexpr uint32_t kFormat = 4;

Status ReadLayout(const json::Json& json, const json::JsonPath& path, std::optional<LayoutDigest>& layout) {
  std::string hex;
  LS_RETURN_IF_ERROR(json::ReadValue(json, path, hex));
  const auto digest = HexDecode16(hex);
  if (!digest.ok()) return path.Bad(digest.status().message());
  layout = LayoutDigest{*digest};
  return OkStatus();
}

Status ReadMemory(const json::Json& json, const json::JsonPath& path, uint64_t& bytes) {
  LS_RETURN_IF_ERROR(json::ReadValue(json, path, bytes));
  if (bytes >= 1 && bytes <= model::kMaxDataBytes) return OkStatus();
  return path.Bad(Cat("has ", bytes, " bytes"));
}

// Whether the box lies in a parameter of `whole`; leading dimensions of 1 are added to `shape`.
Status CheckBox(const json::JsonPath& path, const layout::Extents& at, const layout::Extents& shape,
                const layout::Extents& whole) {
  if (at.size() != whole.size() || shape.size() > whole.size()) {
    return path.Bad(Cat("does not have the ", whole.size(), " dimensions of the parameter"));
  }
  const size_t leading = whole.size() - shape.size();
  for (size_t k = 0; k < whole.size(); ++k) {
    const uint64_t size = k < leading ? 1 : shape[k - leading];
    if (size > whole[k] || at[k] > whole[k] - size) {
      return path.Bad(Cat("leaves the parameter of shape ", layout::ShapeText(whole), " in dimension ", k));
    }
  }
  return OkStatus();
}

Status ReadSlice(const json::Json& json, const json::JsonPath& path, const layout::Extents& whole, Slice& slice) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("tensor", slice.tensor));
  LS_RETURN_IF_ERROR(object.Read("from", slice.from));
  LS_RETURN_IF_ERROR(object.Read("shape", slice.shape));
  LS_RETURN_IF_ERROR(object.Read("at", slice.at));
  LS_RETURN_IF_ERROR(object.Finish());
  if (slice.from.size() != slice.shape.size()) return path.Bad("\"from\" and \"shape\" differ in dimensions");
  return CheckBox(path, slice.at, slice.shape, whole);
}

Status ReadPadding(const json::Json& json, const json::JsonPath& path, const layout::Extents& whole, Padding& padding) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("at", padding.at));
  LS_RETURN_IF_ERROR(object.Read("shape", padding.shape));
  LS_RETURN_IF_ERROR(object.Finish());
  if (padding.shape.size() != whole.size()) return path.Bad("\"shape\" must have the dimensions of the parameter");
  return CheckBox(path, padding.at, padding.shape, whole);
}

Status ReadContent(json::ObjectReader& object, EngineParameter& parameter) {
  const layout::Extents& whole = parameter.shape;
  const auto read_slice = [&](const json::Json& json, const json::JsonPath& path, Slice& slice) {
    return ReadSlice(json, path, whole, slice);
  };
  LS_RETURN_IF_ERROR(object.ReadOptionalList("slices", kMaxSlices, parameter.slices, read_slice));
  const auto read_padding = [&](const json::Json& json, const json::JsonPath& path, Padding& padding) {
    return ReadPadding(json, path, whole, padding);
  };
  return object.ReadOptionalList("padding", kMaxSlices, parameter.padding, read_padding);
}

Status ReadParameter(const json::Json& json, const json::JsonPath& path, const RankDescription& description,
                     EngineParameter& parameter) {
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("name", parameter.name));
  LS_RETURN_IF_ERROR(object.Read("dtype", parameter.dtype));
  LS_RETURN_IF_ERROR(object.Read("shape", parameter.shape));
  parameter.strides = layout::ContiguousStrides(parameter.shape);
  LS_RETURN_IF_ERROR(object.ReadOptional("strides", parameter.strides));
  LS_RETURN_IF_ERROR(object.ReadOptional("memory", parameter.memory));
  LS_RETURN_IF_ERROR(object.Read("offset", parameter.offset));
  const Status place = CheckPlace(parameter, description.memories);
  if (!place.ok()) return path.Bad(place.message());
  LS_RETURN_IF_ERROR(ReadContent(object, parameter));
  LS_RETURN_IF_ERROR(object.Finish());
  if (parameter.slices.empty() && parameter.padding.empty() && layout::ElementCount(parameter.shape) != 0) {
    return path.Bad(Cat("neither slices nor padding give elements of \"", parameter.name, "\""));
  }
  return OkStatus();
}

Status ReadParameters(json::ObjectReader& object, RankDescription& description) {
  std::unordered_set<std::string_view> names;
  const auto read = [&](const json::Json& json, const json::JsonPath& path, EngineParameter& parameter) -> Status {
    LS_RETURN_IF_ERROR(ReadParameter(json, path, description, parameter));
    if (names.insert(parameter.name).second) return OkStatus();
    return path.Bad(Cat("\"", parameter.name, "\" is given twice"));
  };
  return object.ReadList("parameters", kMaxParameters, description.parameters, read);
}

}  // namespace

Result<RankDescription> ReadDescription(const json::Json& document) {
  const json::JsonPath top{.key = "description"};
  LS_ASSIGN_OR_RETURN(json::ObjectReader object, json::ObjectReader::Open(document, top));
  uint32_t format = 0;
  LS_RETURN_IF_ERROR(object.Read("format", format));
  if (format != kFormat) return top.Bad(Cat("is of format ", format, "; this build reads format ", kFormat));
  RankDescription description;
  LS_RETURN_IF_ERROR(object.Read("rank", description.rank));
  LS_RETURN_IF_ERROR(object.Read("world", description.world));
  if (description.world > kMaxEngineRanks || description.rank >= description.world) {
    return top.Bad(Cat("is of rank ", description.rank, " of ", description.world, "; the limit is ", kMaxEngineRanks));
  }
  LS_RETURN_IF_ERROR(object.ReadOptional("layout", description.layout, ReadLayout));
  const auto read_pattern = [](const json::Json& json, const json::JsonPath& path, std::string& pattern) {
    return json::ReadValue(json, path, pattern);
  };
  LS_RETURN_IF_ERROR(object.ReadOptionalList("ignore", kMaxPatterns, description.ignore, read_pattern));
  LS_RETURN_IF_ERROR(object.ReadList("memories", kMaxMemories, description.memories, ReadMemory));
  LS_RETURN_IF_ERROR(ReadParameters(object, description));
  LS_RETURN_IF_ERROR(object.Finish());
  return description;
}

}  // namespace lockstep::engine
