// SHA-256: the name of what is stored where others may write, too. xxh3 (kernels/hash.h) is for accidents.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "common/base/bytes.h"

namespace lockstep::objects {

using Sha256 = std::array<uint8_t, 32>;

// Of bytes that come one after another.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();

  void Add(ByteView bytes);
  // Of all that was added; the stream starts again.
  Sha256 Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256 Sha256Of(ByteView bytes);

// Its 32 bytes, as protos have them.
inline std::string_view AsRaw(const Sha256& sum) {
  return {reinterpret_cast<const char*>(sum.data()), sum.size()};
}

}  // namespace lockstep::objects
