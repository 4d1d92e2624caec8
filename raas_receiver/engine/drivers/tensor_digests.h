// The digests that engines compute of their own parameters, for comparison with a tensor's bytes.
#pragma once

#include <string>

#include "common/base/bytes.h"

namespace lockstep::engine {

// 64 lower-case hex digits.
std::string Sha256Hex(ByteView bytes);

// SGLang's hash of a tensor in GPU memory (gpu_tensor_hash of 0.5.23), 16 lower-case hex digits.
std::string SglangGpuHash(ByteView bytes);

}  // namespace lockstep::engine
