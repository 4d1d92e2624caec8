// The header of a bucket between trainer ranks, and the answer to a set of them
// (export_plugin/exporter/bucket_header.h). An input is a header, then a payload.
#include "export_plugin/exporter/bucket_header.h"

#include "kernels/hash.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

using exporter::BucketHeader;
using exporter::BucketKind;
using exporter::BucketPlace;

constexpr std::string_view kPayload = "sixteen bytes...";

BucketPlace Place(BucketKind kind) {
  BucketPlace place{.kind = kind, .version = 7, .index = 1, .count = 3, .payload_bytes = kPayload.size()};
  for (uint8_t i = 0; i < 16; ++i) place.plan.bytes[i] = i;
  return place;
}

bool SameBytes(const BucketHeader& a, const BucketHeader& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

void TestHeader(const BucketHeader& header, ByteView payload, ByteView input) {
  const Status whole = exporter::CheckHeader(header, 3);
  if (!whole.ok()) return CheckRefusal(whole, {ErrorCode::kProtocol, ErrorCode::kCorrupt});
  const Status answer = exporter::CheckAnswer(header, Place(BucketKind::kAnswer), 3);
  if (!answer.ok()) CheckRefusal(answer, {ErrorCode::kProtocol, ErrorCode::kAborted});
  const BucketPlace place = Place(BucketKind::kBucket);
  const Status bucket = exporter::CheckBucket(header, place, Hash64(payload), 3);
  if (bucket.ok()) LS_FUZZ_RULE(SameBytes(header, exporter::MakeHeader(place, ErrorCode::kOk, Hash64(payload))));
  if (!bucket.ok()) CheckRefusal(bucket, {ErrorCode::kProtocol, ErrorCode::kAborted, ErrorCode::kCorrupt});
  const bool last = header.kind == static_cast<uint8_t>(BucketKind::kLastAnswer);
  if (bucket.ok() || answer.ok()) Accepted(input, {answer.ok(), last, header.index > 1000});
}

Bytes Message(const BucketPlace& place, ErrorCode code, std::string_view payload) {
  Bytes message = Copy(AsBytes(exporter::MakeHeader(place, code, Hash64(AsBytes(payload)))));
  AppendBytes(message, AsBytes(payload));
  return message;
}

}  // namespace

std::vector<Bytes> Seeds() {
  return {HexBlock("export_plugin/exporter/FORMAT.md", "bucket"),
          Message(Place(BucketKind::kBucket), ErrorCode::kOk, kPayload),
          Message(Place(BucketKind::kBucket), ErrorCode::kState, ""),
          Message(Place(BucketKind::kAnswer), ErrorCode::kOk, "")};
}

void TestInput(ByteView input) {
  ByteReader reader(input);
  BucketHeader header;
  if (!reader.Take(header)) return;
  TestHeader(header, reader.rest(), input);
  if (header.code == 0) header.payload_hash = Hash64(reader.rest());
  header.header_hash = Hash64(&header, offsetof(BucketHeader, header_hash));
  TestHeader(header, reader.rest(), input);
}

}  // namespace lockstep::fuzz
