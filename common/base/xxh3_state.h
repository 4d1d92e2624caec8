// Xxh3State: xxh3-64 whose long middle is worked by the caller's loop.
//
// xxh3 takes long inputs in stripes of 64 bytes: each is mixed, under a key that moves on, into eight sums, which are
// scrambled after every sixteenth. A kernel that has the bytes in registers anyway does this on the way; the rest of
// the input, and the end, are the library's.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace lockstep {

class Xxh3State {
 public:
  static constexpr size_t kStripeBytes = 64;
  static constexpr size_t kStripesPerPiece = 16;  // between two scramblings
  static constexpr size_t kKeyStride = 8;         // the n-th stripe of a piece has its key at secret() + n * kKeyStride
  static constexpr size_t kScrambleKey = 128;     // and the scrambling at secret() + kScrambleKey
  static constexpr uint32_t kPrime32 = 0x9E3779B1;

  Xxh3State() { XXH3_64bits_reset(&state_); }

  // How many stripes of an input the caller's loop works. The library wants the last 64 bytes or more for itself; 0 for
  // short inputs, which are hashed in other ways.
  static size_t Stripes(size_t bytes) { return bytes < kShort ? 0 : bytes / kStripeBytes - 1; }

  const uint8_t* secret() const { return state_.extSecret; }
  uint64_t* sums() { return state_.acc; }  // eight

  // The hash of `input`, whose first Stripes(bytes) are in the sums. REQUIRES Stripes(bytes) > 0.
  uint64_t Finish(const uint8_t* input, size_t bytes) {
    const size_t stripes = Stripes(bytes);
    state_.totalLen = stripes * kStripeBytes;
    state_.nbStripesSoFar = stripes % kStripesPerPiece;
    XXH3_64bits_update(&state_, input + state_.totalLen, bytes - state_.totalLen);
    return XXH3_64bits_digest(&state_);
  }

 private:
  static constexpr size_t kShort = 1024;  // the library's own limit is lower: this is for speed alone

  XXH3_state_t state_;
};

}  // namespace lockstep
