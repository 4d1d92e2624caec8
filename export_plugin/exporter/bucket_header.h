// BucketHeader: the 64 bytes in front of every message between a rank on another host and its proxy (FORMAT.md).
//
// Both ends know from the plan what comes next, so a header carries nothing that is believed: each field must be what
// the other end expects, and an error names both values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/layout/copy_plan.h"

namespace lockstep::exporter {

struct BucketHeader {
  uint32_t magic = 0;
  uint16_t format = 0;
  uint8_t kind = 0;      // BucketKind
  uint8_t code = 0;      // ErrorCode: 0, or why the sender of this header aborted the version
  uint64_t version = 0;  // that the sender of this header publishes
  layout::PlanDigest plan;
  uint32_t index = 0;  // of this bucket in its set; in an answer 1: the next set must have the frozen buckets, too
  uint32_t count = 0;  // of buckets in the set: all of the rank's, or those of what changes
  uint64_t payload_bytes = 0;
  uint64_t payload_hash = 0;  // as the kind says; 0 when code is not 0
  uint64_t header_hash = 0;   // xxh3-64 of the 56 bytes before
};
static_assert(sizeof(BucketHeader) == 64);
static_assert(offsetof(BucketHeader, version) == 8);
static_assert(offsetof(BucketHeader, plan) == 16);
static_assert(offsetof(BucketHeader, index) == 32);
static_assert(offsetof(BucketHeader, payload_bytes) == 40);
static_assert(offsetof(BucketHeader, payload_hash) == 48);
static_assert(offsetof(BucketHeader, header_hash) == 56);

inline constexpr uint32_t kBucketMagic = 0x4b42'534c;  // "LSBK"
inline constexpr uint16_t kBucketFormat = 1;

enum class BucketKind : uint8_t {
  kBucket = 1,        // remote rank to proxy, a payload follows; its hash is xxh3-64
  kAnswer = 2,        // proxy to remote rank, once a version
  kLastAnswer = 3,    // as kAnswer, and the proxy's exchange is broken: it takes no further version
  kDeviceBucket = 4,  // as kBucket, from a GPU's memory to another's; its hash is the sum of kernels/cuda/sum.h
};

// Identifies a message among all of an exchange.
struct BucketPlace {
  BucketKind kind = BucketKind::kBucket;
  Version version = 0;
  layout::PlanDigest plan;
  uint32_t index = 0;
  uint32_t count = 0;
  uint64_t payload_bytes = 0;
};

// Returns a header for `place`, with its own hash; `payload_hash` counts only when `code` is kOk.
BucketHeader MakeHeader(const BucketPlace& place, ErrorCode code, uint64_t payload_hash);

// Whether `header` came whole. kProtocol for another format, kCorrupt for flipped bits.
Status CheckHeader(const BucketHeader& header, uint32_t peer);

// Whether a checked header is that of the bucket at `expected`, of an end that did not abort, with a payload of this
// hash.
// kProtocol names the field and both values, kAborted the peer's own failure, kCorrupt a payload that differs.
Status CheckBucket(const BucketHeader& header, const BucketPlace& expected, uint64_t payload_hash, uint32_t peer);

// Whether a checked header is the answer that the version at `expected` was committed. kAborted: it was not, or the
// peer was at another version.
Status CheckAnswer(const BucketHeader& header, const BucketPlace& expected, uint32_t peer);

}  // namespace lockstep::exporter
