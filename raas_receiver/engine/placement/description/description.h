// What one rank of an inference engine says of its parameters: where each lies in its memory and which slices of which
// HuggingFace tensors it is made of. JSON (FORMAT.md), so that any engine can hand it over, and it can be printed.
//
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/layout/piece.h"
#include "common/layout/strided_copy.h"
#include "common/model/dtype.h"

namespace lockstep::engine {

inline constexpr size_t kMaxParameters = 1'000'000;
inline constexpr size_t kMaxSlices = 65'536;       // of one parameter
inline constexpr size_t kMaxMemories = 1'000'000;  // of a rank
inline constexpr uint32_t kMaxEngineRanks = 4096;
inline constexpr size_t kMaxPatterns = 1024;  // of tensors that an engine does not take

// Elements of a parameter that are those of the box of `shape` at `from` in HuggingFace tensor `tensor`. Where the
// parameter has more dimensions (stacked experts), the tensor is seen with leading dimensions of 1 (Promoted()).
struct Slice {
  std::string tensor;
  layout::Extents from;   // in the tensor
  layout::Extents shape;  // of the box, with the tensor's rank
  layout::Extents at;     // in the parameter

  bool operator==(const Slice&) const = default;
};

// Elements of a parameter that no tensor gives: rows that pad a vocabulary. Whole versions write zeros there.
struct Padding {
  layout::Extents at;
  layout::Extents shape;

  bool operator==(const Padding&) const = default;
};

struct EngineParameter {
  std::string name;
  model::DType dtype = model::DType::kBF16;  // its tensors', but for IsWidened
  layout::Extents shape;
  layout::Extents strides;    // in elements
  uint32_t memory = 0;        // position in RankDescription::memories
  uint64_t offset = 0;        // bytes from that memory's begin to the first element
  std::vector<Slice> slices;  // with `padding`, every element exactly once
  std::vector<Padding> padding;
};

struct RankDescription {
  uint32_t rank = 0;                   // of the engine's group
  uint32_t world = 1;                  // ranks of the group
  std::optional<LayoutDigest> layout;  // that of the model for which this was made; nothing: for any
  std::vector<std::string> ignore;     // patterns (fnmatch(3)) of tensors that no parameter need take
  std::vector<uint64_t> memories;      // the bytes of each
  std::vector<EngineParameter> parameters;
};

// Whether an engine may hold a tensor of `tensor` in a parameter of `parameter`, though they differ: BF16 in F32. Such
// an element is the tensor's in its upper half, and zeros in the lower.
bool IsWidened(model::DType tensor, model::DType parameter);

// How `parameter` lies in its memory. Without strides for what has no element or one.
layout::TensorView ViewOf(const EngineParameter& parameter);
// Bytes from its first element's begin to its last element's end; 0 without elements. REQUIRES CheckPlace.
uint64_t ExtentBytes(const EngineParameter& parameter);
// kBadData unless the elements lie within the parameter's memory, one of `memories`, each at a place of
// its own: by rising stride, every dimension steps over all that is within it.
Status CheckPlace(const EngineParameter& parameter, const std::vector<uint64_t>& memories);

// kBadData says what is wrong and where ("parameters[3].shape"): unknown or missing keys, wrong types, ranks or sizes
// beyond the limits, elements outside their memory, strides that make elements overlap. Never trusts its input.
Result<RankDescription> ReadDescription(const nlohmann::json& document);

}  // namespace lockstep::engine
