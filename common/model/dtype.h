// Element types, exactly those that the safetensors format names.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::model {

// The numbers are part of the layout's canonical encoding: never reuse one.
enum class DType : uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kF8E5M2 = 4,
  kF8E4M3 = 5,
  kF8E8M0 = 6,
  kF8E4M3FNUZ = 7,
  kF8E5M2FNUZ = 8,
  kI16 = 9,
  kU16 = 10,
  kF16 = 11,
  kBF16 = 12,
  kI32 = 13,
  kU32 = 14,
  kF32 = 15,
  kI64 = 16,
  kU64 = 17,
  kF64 = 18,
  kC64 = 19,
  kF4 = 20,
  kF6E2M3 = 21,
  kF6E3M2 = 22,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // as safetensors writes it
  uint32_t bits;          // of one element
  uint32_t unit_bytes;  // of the unit that is compared and stepped: the element, or one byte for packed and byte types
};

// Null when there is no such type.
const DTypeInfo* FindDType(std::string_view name);
const DTypeInfo* FindDType(DType dtype);

}  // namespace lockstep::model
