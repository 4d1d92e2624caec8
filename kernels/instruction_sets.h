// LOCKSTEP_ISA=avx2 in the environment keeps this process's kernels to AVX2 and what was before, as on processors
// without AVX-512: for tests/bench/run.sh --isa. Hashes of whole buffers (kernels/hash.h) are not kernels.
#pragma once

#include <cstdlib>
#include <string_view>

namespace lockstep::kernels {

inline bool KeptToAvx2() {
  const char* const isa = std::getenv("LOCKSTEP_ISA");
  return isa != nullptr && std::string_view(isa) == "avx2";
}

}  // namespace lockstep::kernels
