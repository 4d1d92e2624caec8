#include "kernels/instruction_sets.h"

#include <hwy/highway.h>

namespace lockstep::kernels {
namespace {

[[maybe_unused]] const bool kept = [] {
  if (KeptToAvx2()) hwy::DisableTargets(HWY_AVX2 - 1);  // a better target is a lower bit
  return KeptToAvx2();
}();

}  // namespace
}  // namespace lockstep::kernels
