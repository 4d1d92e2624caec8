#include "export_plugin/exporter/bucket_header.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/status_testing.h"
#include "kernels/hash.h"

namespace lockstep::exporter {
namespace {

const std::string kPayload = "sixteen bytes...";

BucketPlace Place() {
  BucketPlace place{.kind = BucketKind::kBucket, .version = 7, .index = 1, .count = 3, .payload_bytes = 16};
  for (size_t i = 0; i < place.plan.bytes.size(); ++i) place.plan.bytes[i] = static_cast<uint8_t>(i);
  return place;
}

uint64_t HashOf(std::string_view payload) {
  return Hash64(AsBytes(payload));
}

Status Check(const BucketHeader& header, const BucketPlace& expected) {
  return CheckBucket(header, expected, HashOf(kPayload), 5);
}

TEST_CASE("A header is accepted at its place and nowhere else, and the error has both values") {
  const BucketHeader header = MakeHeader(Place(), ErrorCode::kOk, HashOf(kPayload));
  CHECK(CheckHeader(header, 5).ok());
  CHECK(Check(header, Place()).ok());
  BucketPlace other = Place();
  other.version = 8;
  CHECK_THAT(Check(header, other), FailsWith(ErrorCode::kProtocol, "rank 5: its version is 7, here it is 8"));
  other = Place();
  other.plan.bytes[0] = 1;
  CHECK_THAT(Check(header, other), FailsWith(ErrorCode::kProtocol, "its plan is 000102", "here it is 010102"));
  other = Place();
  other.index = 2;
  CHECK_THAT(Check(header, other), FailsWith(ErrorCode::kProtocol, "its bucket is 1 of 3, here it is 2 of 3"));
  other = Place();
  other.count = 4;
  CHECK_THAT(Check(header, other), FailsWith(ErrorCode::kProtocol, "its bucket is 1 of 3, here it is 1 of 4"));
  other = Place();
  other.payload_bytes = 15;
  CHECK_THAT(Check(header, other), FailsWith(ErrorCode::kProtocol, "size is 16, here it is 15"));
  CHECK(Check(MakeHeader({.kind = BucketKind::kAnswer, .version = 7}, ErrorCode::kOk, 0), Place()).code() ==
        ErrorCode::kProtocol);
}

TEST_CASE("Every flipped bit of a header is found") {
  const BucketHeader header = MakeHeader(Place(), ErrorCode::kOk, HashOf(kPayload));
  for (size_t bit = 0; bit < 8 * sizeof(header); ++bit) {
    BucketHeader flipped = header;
    reinterpret_cast<uint8_t*>(&flipped)[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    const bool foreign = flipped.magic != header.magic || flipped.format != header.format;
    CHECK_THAT(CheckHeader(flipped, 5), FailsWith(foreign ? ErrorCode::kProtocol : ErrorCode::kCorrupt, "rank 5"));
  }
}

TEST_CASE("A payload that differs is corrupt, and that of a failed end is not checked") {
  const BucketHeader header = MakeHeader(Place(), ErrorCode::kOk, HashOf("sixteen bytes..!"));
  CHECK(Check(header, Place()).code() == ErrorCode::kCorrupt);
  const BucketHeader failed = MakeHeader(Place(), ErrorCode::kIo, 0);
  CHECK(failed.payload_hash == 0);
  CHECK_THAT(Check(failed, Place()), FailsWith(ErrorCode::kAborted, "aborted version 7 (io)"));
}

TEST_CASE("An answer says whether the version was committed") {
  BucketPlace place = Place();
  place.kind = BucketKind::kAnswer;
  CHECK(CheckAnswer(MakeHeader(place, ErrorCode::kOk, 0), Place(), 5).ok());
  CHECK(CheckAnswer(MakeHeader(place, ErrorCode::kBadData, 0), Place(), 5).code() == ErrorCode::kAborted);
  CHECK(CheckAnswer(MakeHeader(Place(), ErrorCode::kOk, 0), Place(), 5).code() == ErrorCode::kProtocol);
  CHECK_THAT(
      CheckAnswer(MakeHeader({.kind = BucketKind::kAnswer, .version = 9, .plan = place.plan}, ErrorCode::kAborted, 0),
                  Place(), 5),
      FailsWith(ErrorCode::kAborted, "version 7 was not committed", "was at version 9"));
  BucketHeader unknown = MakeHeader(place, ErrorCode::kOk, 0);
  unknown.code = 200;
  CHECK_THAT(CheckAnswer(unknown, Place(), 5), FailsWith(ErrorCode::kAborted, "an unknown error"));
}

}  // namespace
}  // namespace lockstep::exporter
