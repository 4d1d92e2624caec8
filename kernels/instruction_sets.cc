// LOCKSTEP_ISA=avx2 in the environment keeps this process's kernels to AVX2 and what was before, as on processors
// without AVX-512: for tests/bench/run.sh --isa.
#include <hwy/highway.h>

#include <cstdlib>
#include <string_view>

namespace lockstep::kernels {
namespace {

[[maybe_unused]] const bool limited = [] {
  const char* const isa = std::getenv("LOCKSTEP_ISA");
  const bool avx2 = isa != nullptr && std::string_view(isa) == "avx2";
  if (avx2) hwy::DisableTargets(HWY_AVX2 - 1);  // a better target is a lower bit
  return avx2;
}();

}  // namespace
}  // namespace lockstep::kernels
