// The formats of quantised checkpoints that a derived model may have (FORMAT.md). One table; Derivation uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/status.h"
#include "common/model/dtype.h"
#include "kernels/quantise.h"

namespace lockstep::derive {

// config.json keeps the order of its keys.
using Json = nlohmann::ordered_json;

// How a weight of rows × columns is quantised.
struct Encoding {
  model::DType values;
  uint64_t values_in_byte;
  model::DType scales;
  uint64_t scale_rows, scale_columns;  // elements that share a scale; 0 columns: a whole row, 0 rows: there are none
  uint64_t multiple_of;                // what the number of columns must be
  // An F32 for a whole weight, the same for all weights of a fused module. Null: there is none.
  float (*global)(float abs_max);
  void (*quantise)(const kernels::FloatRows& rows, float global, std::byte* values, std::byte* scales);
};

// A kind of checkpoint. A weight `X.weight` is in `X.<values>`, `X.<scales>` and `X.<global>`.
struct Format {
  std::string_view name;  // for users
  const Encoding* encoding;
  // Whether a checkpoint with this quantization_config has the format.
  bool (*is)(const Json& quantization_config);
  std::string_view left_out;  // key of its list of modules that are not quantised
  std::string_view values, scales, global;
};

// kBadData: no format has this quantization_config; the message lists those that there are.
Result<const Format*> FindFormat(const Json& quantization_config);

}  // namespace lockstep::derive
