// Xxh3State: xxh3-64, where the caller's loop hashes the long middle of the input.
//
// xxh3 takes a long input in stripes of 64 bytes. It mixes each stripe into eight sums, under a key that moves on, and
// scrambles the sums after every sixteenth stripe. A kernel that has the bytes in registers anyway does this itself.
// The library hashes the rest of the input, and finishes the hash.
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

  // The hash of `input`. The sums have its first Stripes(bytes) stripes. REQUIRES Stripes(bytes) > 0.
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
