// The worked examples of the FORMAT.md files, held against the code that they describe.
#include <catch2/catch.hpp>
#include <fstream>

#include "common/base/document_testing.h"
#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/payload/payload.h"
#include "common/wire/lane_identity.h"
#include "common/wire/local.h"
#include "common/wire/rank_messages.h"
#include "export_plugin/exporter/bucket_header.h"
#include "kernels/hash.h"
#include "raas_receiver/replica/state_file.h"
#include "trainer_agent/run/control_segment.h"

namespace lockstep {
namespace {

Bytes Copy(ByteView bytes) {
  return {bytes.begin(), bytes.end()};
}

template <typename T>
Bytes Sealed(T message) {
  wire::Seal(message);
  return Copy(AsBytes(message));
}

constexpr char kModel[] = "common/model/FORMAT.md";
constexpr char kPayload[] = "common/payload/FORMAT.md";
constexpr char kWire[] = "common/wire/FORMAT.md";
constexpr char kReplica[] = "raas_receiver/replica/FORMAT.md";
constexpr char kRun[] = "trainer_agent/run/FORMAT.md";
constexpr char kExporter[] = "export_plugin/exporter/FORMAT.md";

// The model that all examples share: all zero at version 1, one element changed by one ulp at version 2.
struct Story {
  std::shared_ptr<const model::ModelLayout> layout =
      *model::ModelLayout::Create({{"norm", model::DType::kF32, {2}, 0}, {"w", model::DType::kBF16, {3, 2}, 8}}, 4096);
  RunId run;
  Bytes before = Bytes(20);
  Bytes after = Bytes(20);
  payload::DeltaBlock delta{.codec = payload::Codec::kSparse, .changes = 1};

  Story() {
    for (uint8_t i = 0; i < 16; ++i) run.bytes[i] = i;
    after[8] = std::byte{1};
    payload::EncodeSparse(payload::Changes{.positions = {4}, .steps = {1}}, 2, payload::CodecLevel::kCompact,
                          delta.data);
    delta.data_hash = Hash64(delta.data);
    delta.target_hash = model::BlockHash(after);
  }
  // 64 changes that an entropy stage gains on: every third unit, one ulp up.
  static payload::Changes EveryThird() {
    payload::Changes changes;
    for (uint32_t i = 0; i < 64; ++i) {
      changes.positions.push_back(3 * i + 2);
      changes.steps.push_back(1);
    }
    return changes;
  }
  ManifestDigest Digest(const Bytes& bytes) const {
    return model::ComputeManifestDigest(layout->digest(), {model::BlockHash(bytes)});
  }
};

TEST_CASE("The layout example is what the code writes") {
  const Story story;
  CHECK(HexBlock(kModel, "layout") == story.layout->encoded());
  CHECK(ToHex(story.layout->digest()) == "c63fe51ed35b12cf04c3c01edbedbaeb");
  const auto adapter =
      *model::ModelLayout::Create(story.layout->tensors(), 4096, {{"adapter_config.json", R"({"r": 8})"}});
  CHECK(HexBlock(kModel, "layout-with-attachment") == adapter->encoded());
  CHECK(ToHex(adapter->digest()) == "f8424d29fad8d48c5dc62437b7988736");
}

TEST_CASE("Every codec level has its row in the table of levels") {
  std::ifstream document(kPayload);
  const std::string text(std::istreambuf_iterator<char>(document), {});
  for (const payload::CodecLevel level : payload::CodecLevel::All()) {
    CHECK_THAT(text, Catch::Contains(Cat("\n| ", level->name, " |")));
  }
}

TEST_CASE("The payload examples are what the code writes") {
  const Story story;
  Bytes sparse;
  payload::EncodeSparse(payload::Changes{.positions = {3, 300, 301}, .steps = {1, 0xffff, 0x8000}}, 2,
                        payload::CodecLevel::kFast, sparse);
  CHECK(HexBlock(kPayload, "sparse") == sparse);
  Bytes compact;
  payload::EncodeSparse(story.EveryThird(), 2, payload::CodecLevel::kCompact, compact);
  CHECK(HexBlock(kPayload, "compact") == compact);
  const auto payload = payload::Payload::Assemble(*story.layout,
                                                  {.run = story.run,
                                                   .base = 1,
                                                   .target = 2,
                                                   .base_digest = story.Digest(story.before),
                                                   .target_digest = story.Digest(story.after),
                                                   .committed_unix_ns = 1'000'000'000},
                                                  {&story.delta, 1});
  CHECK(HexBlock(kPayload, "payload") == Copy((*payload)->bytes()));
}

TEST_CASE("The lane examples are what the code writes") {
  const Story story;
  wire::LaneHello hello{.pull_id = 7};
  for (uint8_t i = 0; i < 16; ++i) hello.ticket.bytes[i] = static_cast<uint8_t>(0xa0 + i);
  CHECK(HexBlock(kWire, "hello") == Sealed(hello));
  CHECK(HexBlock(kWire, "lane-identity") ==
        Copy(AsBytes(wire::LaneIdentity{.pull_id = 7, .ticket = wire::NameOf(hello.ticket)})));
  CHECK(HexBlock(kWire, "welcome") == Sealed(wire::LaneWelcome{}));
  CHECK(HexBlock(kWire, "request") == Sealed(wire::BlockRequest{.kind = static_cast<uint8_t>(wire::RequestKind::kDelta),
                                                                .request_id = 1,
                                                                .first_block = 0,
                                                                .block_count = 1,
                                                                .payload_id = 5}));
  CHECK(HexBlock(kWire, "frame") ==
        Sealed(wire::FrameHeader{.type = static_cast<uint8_t>(wire::FrameType::kBlock),
                                 .codec = static_cast<uint8_t>(payload::Codec::kSparse),
                                 .request_id = 1,
                                 .version = 2,
                                 .base_version = 1,
                                 .block_hash = story.delta.target_hash,
                                 .payload_hash = story.delta.data_hash,
                                 .payload_bytes = static_cast<uint32_t>(story.delta.data.size()),
                                 .changes = 1,
                                 .payload_id = 5}));
  CHECK(HexBlock(kWire, "local-request") ==
        Sealed(wire::LocalRequest{.kind = static_cast<uint8_t>(wire::LocalKind::kPayload), .payload_id = 5}));
  CHECK(HexBlock(kWire, "local-answer") ==
        Sealed(wire::LocalAnswer{.version = 2, .offset = 128, .data_bytes = 20, .tail_bytes = 8}));
}

TEST_CASE("The replica state example is what the code writes") {
  const Story story;
  const model::Manifest manifest{{story.run, 2}, {model::BlockHash(story.after)}, story.Digest(story.after)};
  CHECK(HexBlock(kReplica, "state") == replica::EncodeReplicaState({story.layout, manifest, 1'000'000'000}));
}

TEST_CASE("The control segment and rank protocol examples are what the code writes") {
  const Story story;
  const uint64_t bytes = run::ControlSegment::BytesFor(*story.layout);
  auto segment = *os::CreateMemfdSegment("golden", bytes);
  const auto written =
      *os::AdoptSegment(os::UniqueFd(::dup(segment.fd())), bytes, os::Access::kReadOnly, "the same memory");
  auto control = run::ControlSegment::Format(std::move(segment), "actor", story.run, *story.layout, 1);
  control.SetCommitted(0, 1, 1'000'000'000);
  control.RecordManifest(0, {{story.run, 1}, {model::BlockHash(story.before)}, story.Digest(story.before)});
  control.SetWriting(1, 2);
  CHECK(HexBlock(kRun, "control") == Copy({written.data(), bytes}));
  Bytes begin;
  Append(begin, wire::RankMessageHeader{.type = static_cast<uint16_t>(wire::RankMessageType::kBegin),
                                        .body_bytes = sizeof(wire::VersionBody)});
  Append(begin, wire::VersionBody{2});
  CHECK(HexBlock(kRun, "begin") == begin);
  Bytes batches;
  Append(batches, wire::RankMessageHeader{.type = static_cast<uint16_t>(wire::RankMessageType::kBatches),
                                          .body_bytes = sizeof(wire::VersionBody) + 2 * sizeof(uint32_t)});
  Append(batches, wire::VersionBody{2});
  for (const uint32_t batch : {1, 2}) Append(batches, batch);
  CHECK(HexBlock(kRun, "batches") == batches);
  Bytes commit;
  Append(commit,
         wire::RankMessageHeader{.type = static_cast<uint16_t>(wire::RankMessageType::kCommit), .body_bytes = 9});
  Append(commit, wire::VersionBody{2});
  AppendBytes(commit, AsBytes(std::string_view("7")));
  CHECK(HexBlock(kRun, "commit") == commit);
}

TEST_CASE("The bucket example is what the code writes") {
  const std::string_view payload = "sixteen bytes...";
  exporter::BucketPlace place{
      .kind = exporter::BucketKind::kBucket, .version = 7, .index = 1, .count = 3, .payload_bytes = 16};
  for (uint8_t i = 0; i < 16; ++i) place.plan.bytes[i] = i;
  Bytes message = Copy(AsBytes(exporter::MakeHeader(place, ErrorCode::kOk, Hash64(AsBytes(payload)))));
  AppendBytes(message, AsBytes(payload));
  CHECK(HexBlock(kExporter, "bucket") == message);
}

}  // namespace
}  // namespace lockstep
