#include "common/model/dtype.h"

#include <iterator>

namespace lockstep::model {
namespace {

constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, "BOOL", 8, 1},
    {DType::kU8, "U8", 8, 1},
    {DType::kI8, "I8", 8, 1},
    {DType::kF8E5M2, "F8_E5M2", 8, 1},
    {DType::kF8E4M3, "F8_E4M3", 8, 1},
    {DType::kF8E8M0, "F8_E8M0", 8, 1},
    {DType::kF8E4M3FNUZ, "F8_E4M3FNUZ", 8, 1},
    {DType::kF8E5M2FNUZ, "F8_E5M2FNUZ", 8, 1},
    {DType::kI16, "I16", 16, 2},
    {DType::kU16, "U16", 16, 2},
    {DType::kF16, "F16", 16, 2},
    {DType::kBF16, "BF16", 16, 2},
    {DType::kI32, "I32", 32, 4},
    {DType::kU32, "U32", 32, 4},
    {DType::kF32, "F32", 32, 4},
    {DType::kI64, "I64", 64, 8},
    {DType::kU64, "U64", 64, 8},
    {DType::kF64, "F64", 64, 8},
    // A complex element changes in its two floats, so that is its unit; its alignment follows the unit.
    {DType::kC64, "C64", 64, 4},
    {DType::kF4, "F4", 4, 1},
    {DType::kF6E2M3, "F6_E2M3", 6, 1},
    {DType::kF6E3M2, "F6_E3M2", 6, 1},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(InOrder(), "a type is found by its number");

}  // namespace

const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

const DTypeInfo* FindDType(DType dtype) {
  const size_t at = static_cast<size_t>(dtype) - 1;
  return at < std::size(kDTypes) ? &kDTypes[at] : nullptr;
}

}  // namespace lockstep::model
