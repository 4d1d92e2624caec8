#include "export_plugin/exporter/bucket_header.h"

#include "common/base/text.h"
#include "kernels/hash.h"

namespace lockstep::exporter {
namespace {

uint64_t HeaderHash(const BucketHeader& header) {
  return Hash64(&header, offsetof(BucketHeader, header_hash));
}

Status Differs(uint32_t peer, std::string_view what, const std::string& theirs, const std::string& ours) {
  return {ErrorCode::kProtocol, Cat("rank ", peer, ": its ", what, " is ", theirs, ", here it is ", ours,
                                    "; all ranks must publish the same versions in the same order")};
}

std::string_view CodeLabel(uint8_t code) {
  return code > static_cast<uint8_t>(ErrorCode::kInternal) ? "an unknown error" : Label(static_cast<ErrorCode>(code));
}

}  // namespace

BucketHeader MakeHeader(const BucketPlace& place, ErrorCode code, uint64_t payload_hash) {
  BucketHeader header{.magic = kBucketMagic,
                      .format = kBucketFormat,
                      .kind = static_cast<uint8_t>(place.kind),
                      .code = static_cast<uint8_t>(code),
                      .version = place.version,
                      .plan = place.plan,
                      .index = place.index,
                      .count = place.count,
                      .payload_bytes = place.payload_bytes};
  if (code == ErrorCode::kOk) header.payload_hash = payload_hash;
  header.header_hash = HeaderHash(header);
  return header;
}

Status CheckHeader(const BucketHeader& header, uint32_t peer) {
  if (header.magic != kBucketMagic || header.format != kBucketFormat) {
    return {ErrorCode::kProtocol, Cat("rank ", peer, " sent no bucket of format ", kBucketFormat,
                                      "; every rank must run the same release of Lockstep")};
  }
  if (header.header_hash != HeaderHash(header)) {
    return {ErrorCode::kCorrupt, Cat("the header of a bucket of rank ", peer, " was changed on the way")};
  }
  return OkStatus();
}

Status CheckBucket(const BucketHeader& header, const BucketPlace& expected, uint64_t payload_hash, uint32_t peer) {
  if (header.kind != static_cast<uint8_t>(expected.kind)) {
    return Differs(peer, "kind of message", Cat(+header.kind), Cat(static_cast<int>(expected.kind)));
  }
  if (header.plan != expected.plan) return Differs(peer, "plan", ToHex(header.plan), ToHex(expected.plan));
  if (header.version != expected.version) {
    return Differs(peer, "version", Cat(header.version), Cat(expected.version));
  }
  if (header.index != expected.index || header.count != expected.count) {
    return Differs(peer, "bucket", Cat(header.index, " of ", header.count),
                   Cat(expected.index, " of ", expected.count));
  }
  if (header.payload_bytes != expected.payload_bytes) {
    return Differs(peer, "bucket's size", Cat(header.payload_bytes), Cat(expected.payload_bytes));
  }
  if (header.code != 0) {
    return {ErrorCode::kAborted, Cat("rank ", peer, " aborted version ", expected.version, " (", CodeLabel(header.code),
                                     "); its own error says why")};
  }
  if (header.payload_hash != payload_hash) {
    return {ErrorCode::kCorrupt, Cat("version ", expected.version, ": bucket ", expected.index, " of rank ", peer,
                                     " was changed on the way")};
  }
  return OkStatus();
}

Status CheckAnswer(const BucketHeader& header, const BucketPlace& expected, uint32_t peer) {
  if (header.kind != static_cast<uint8_t>(BucketKind::kAnswer) &&
      header.kind != static_cast<uint8_t>(BucketKind::kLastAnswer)) {
    return Differs(peer, "kind of message", Cat(+header.kind), "an answer");
  }
  if (header.plan != expected.plan) return Differs(peer, "plan", ToHex(header.plan), ToHex(expected.plan));
  if (header.version != expected.version) {
    return {ErrorCode::kAborted,
            Cat("version ", expected.version, " was not committed: rank ", peer,
                ", which takes this rank's bytes, was at version ", header.version,
                "; one of the two failed between two publishes, and the next version has both again")};
  }
  if (header.code != 0) {
    return {ErrorCode::kAborted,
            Cat("version ", expected.version, " was not committed by rank ", peer, ", which takes this rank's bytes (",
                CodeLabel(header.code), "); its own error says why")};
  }
  return OkStatus();
}

}  // namespace lockstep::exporter
