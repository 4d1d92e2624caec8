#include "common/derive/format.h"

#include <array>

#include "common/base/text.h"

namespace lockstep::derive {
namespace {

using kernels::BlockScale;
using kernels::FloatRows;
using model::DType;

// --- encodings ---

uint8_t* Octets(std::byte* bytes) {
  return reinterpret_cast<uint8_t*>(bytes);
}
// Tensors begin at multiples of their elements' size.
float* Floats(std::byte* bytes) {
  return reinterpret_cast<float*>(bytes);
}

template <BlockScale kScale>
constexpr Encoding kFp8Blocks = {.values = DType::kF8E4M3,
                                 .values_in_byte = 1,
                                 .scales = DType::kF32,
                                 .scale_rows = kernels::kFp8BlockSide,
                                 .scale_columns = kernels::kFp8BlockSide,
                                 .multiple_of = 1,
                                 .global = nullptr,
                                 .quantise = [](const FloatRows& rows, float, std::byte* values, std::byte* scales) {
                                   kernels::QuantiseFp8Blocks(rows, kScale, Octets(values), Floats(scales));
                                 }};

constexpr Encoding kFp8Rows = {.values = DType::kF8E4M3,
                               .values_in_byte = 1,
                               .scales = DType::kF32,
                               .scale_rows = 1,
                               .scale_columns = 0,
                               .multiple_of = 1,
                               .global = nullptr,
                               .quantise = [](const FloatRows& rows, float, std::byte* values, std::byte* scales) {
                                 kernels::QuantiseFp8Rows(rows, Octets(values), Floats(scales));
                               }};

constexpr Encoding kFp8Whole = {.values = DType::kF8E4M3,
                                .values_in_byte = 1,
                                .scales = DType::kF32,
                                .scale_rows = 0,
                                .scale_columns = 0,
                                .multiple_of = 1,
                                .global = kernels::Fp8Scale,
                                .quantise = [](const FloatRows& rows, float global, std::byte* values, std::byte*) {
                                  kernels::QuantiseFp8(rows, global, Octets(values));
                                }};

constexpr Encoding kMxfp8 = {.values = DType::kF8E4M3,
                             .values_in_byte = 1,
                             .scales = DType::kU8,  // engines copy them by value into bytes: not F8_E8M0
                             .scale_rows = 1,
                             .scale_columns = kernels::kMxfp8Group,
                             .multiple_of = kernels::kMxfp8Group,
                             .global = nullptr,
                             .quantise = [](const FloatRows& rows, float, std::byte* values, std::byte* scales) {
                               kernels::QuantiseMxfp8(rows, Octets(values), Octets(scales));
                             }};

constexpr Encoding kNvfp4 = {.values = DType::kU8,
                             .values_in_byte = 2,
                             .scales = DType::kF8E4M3,
                             .scale_rows = 1,
                             .scale_columns = kernels::kNvfp4Group,
                             .multiple_of = kernels::kNvfp4Group,
                             .global = kernels::Nvfp4GlobalScale,
                             .quantise = [](const FloatRows& rows, float global, std::byte* values, std::byte* scales) {
                               kernels::QuantiseNvfp4(rows, global, Octets(values), Octets(scales));
                             }};

// --- what a quantization_config says ---

bool Has(const Json& object, std::string_view key, const Json& value) {
  const auto at = object.find(key);
  return at != object.end() && *at == value;
}

bool IsGiven(const Json& object, std::string_view key) {
  const auto at = object.find(key);
  return at != object.end() && !at->is_null();
}

// quant_method fp8, whose activations are quantised when they are there: nothing is calibrated.
bool IsFp8(const Json& config, bool blocks) {
  if (!Has(config, "quant_method", "fp8") || !Has(config, "activation_scheme", "dynamic")) return false;
  if (IsGiven(config, "ignored_layers")) return false;  // engines would take this list for modules_to_not_convert
  return blocks ? Has(config, "weight_block_size", Json::array({128, 128})) : !IsGiven(config, "weight_block_size");
}

// compressed-tensors, with one group of linear layers, whose weights have all of `wanted`.
bool IsCompressed(const Json& config, std::string_view format, const Json& wanted, bool activations) {
  if (!Has(config, "quant_method", "compressed-tensors") || !Has(config, "format", format)) return false;
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object() || groups->size() != 1) return false;
  const Json& group = *groups->begin();
  if (!group.is_object() || !Has(group, "targets", Json::array({"Linear"}))) return false;
  const auto inputs = group.find("input_activations");
  const bool quantised = inputs != group.end() && !inputs->is_null();
  // Others need scales from a calibration.
  if (quantised && !(activations && inputs->is_object() && Has(*inputs, "dynamic", true))) return false;
  const auto weights = group.find("weights");
  if (weights == group.end() || !weights->is_object()) return false;
  for (const auto& [key, value] : wanted.items()) {
    if (!Has(*weights, key, value)) return false;
  }
  return true;
}

bool IsCompressedFp8(const Json& config, Json wanted) {
  wanted["num_bits"] = 8;
  wanted["type"] = "float";
  return IsCompressed(config, "float-quantized", wanted, /*activations=*/true);
}

const std::array kFormats = {
    Format{.name = "fp8-block",
           .encoding = &kFp8Blocks<BlockScale::kExact>,
           .is = [](const Json& config) { return IsFp8(config, true) && !IsGiven(config, "scale_fmt"); },
           .left_out = "modules_to_not_convert",
           .values = "weight",
           .scales = "weight_scale_inv",
           .global = ""},
    Format{.name = "fp8-block-ue8m0",
           .encoding = &kFp8Blocks<BlockScale::kPowerOfTwo>,
           .is = [](const Json& config) { return IsFp8(config, true) && Has(config, "scale_fmt", "ue8m0"); },
           .left_out = "modules_to_not_convert",
           .values = "weight",
           .scales = "weight_scale_inv",
           .global = ""},
    Format{.name = "fp8-block-compressed",
           .encoding = &kFp8Blocks<BlockScale::kExact>,
           .is =
               [](const Json& config) {
                 return IsCompressedFp8(config, {{"strategy", "block"}, {"block_structure", Json::array({128, 128})}});
               },
           .left_out = "ignore",
           .values = "weight",
           .scales = "weight_scale",
           .global = ""},
    Format{.name = "fp8-channel",
           .encoding = &kFp8Rows,
           .is =
               [](const Json& config) {
                 return IsCompressedFp8(config, {{"strategy", "channel"}});
               },
           .left_out = "ignore",
           .values = "weight",
           .scales = "weight_scale",
           .global = ""},
    Format{.name = "fp8-tensor",
           .encoding = &kFp8Whole,
           .is = [](const Json& config) { return IsFp8(config, false); },
           .left_out = "modules_to_not_convert",
           .values = "weight",
           .scales = "",
           .global = "weight_scale"},
    Format{.name = "fp8-tensor-compressed",
           .encoding = &kFp8Whole,
           .is =
               [](const Json& config) {
                 return IsCompressedFp8(config, {{"strategy", "tensor"}});
               },
           .left_out = "ignore",
           .values = "weight",
           .scales = "",
           .global = "weight_scale"},
    Format{.name = "mxfp8",
           .encoding = &kMxfp8,
           .is =
               [](const Json& config) {
                 return Has(config, "quant_method", "modelopt") && Has(config, "quant_algo", "MXFP8");
               },
           .left_out = "ignore",
           .values = "weight",
           .scales = "weight_scale",
           .global = ""},
    Format{.name = "mxfp8-inv",
           .encoding = &kMxfp8,
           .is = [](const Json& config) { return Has(config, "quant_method", "mxfp8"); },
           .left_out = "ignored_layers",
           .values = "weight",
           .scales = "weight_scale_inv",
           .global = ""},
    Format{.name = "nvfp4",
           .encoding = &kNvfp4,
           .is =
               [](const Json& config) {
                 return IsCompressed(
                     config, "nvfp4-pack-quantized",
                     {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}},
                     /*activations=*/false);
               },
           .left_out = "ignore",
           .values = "weight_packed",
           .scales = "weight_scale",
           .global = "weight_global_scale"},
};

}  // namespace

Result<const Format*> FindFormat(const Json& quantization_config) {
  std::string names;
  for (const Format& format : kFormats) {
    if (format.is(quantization_config)) return &format;
    names += Cat(names.empty() ? "" : ", ", format.name);
  }
  return Status(ErrorCode::kBadData, Cat("its quantization_config is of none of the formats ", names,
                                         "; common/derive/FORMAT.md has that of each"));
}

}  // namespace lockstep::derive
