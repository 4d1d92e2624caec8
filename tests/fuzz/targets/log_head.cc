// The head of a log, which any writer to its store may have written (common/versionlog/head.h). An input is a
// LogHead in protobuf's encoding; it is tried as it is, and as one of a model that is asked for.
#include "common/objects/sha256.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr uint64_t kDataBytes = 200;

v1::LogHead Head() {
  v1::LogHead head;
  head.set_format(versionlog::kLogFormat);
  head.set_model("actor");
  head.set_id(std::string(16, 'i'));
  head.set_epoch(7);
  head.set_serial(2);
  v1::LogHistory& history = *head.mutable_history();
  history.set_run(std::string(16, 'r'));
  history.set_layout_digest(std::string(16, 'l'));
  history.set_chunk_bytes(100);
  history.mutable_manifest()->set_bytes(16);
  history.mutable_manifest()->set_piece_bytes(64);
  history.mutable_manifest()->add_pieces(std::string(32, 'm'));
  v1::LogStep& step = *history.add_steps();
  step.set_base(1);
  step.set_base_digest(std::string(16, 'a'));
  step.mutable_target()->set_version(2);
  step.mutable_target()->set_manifest_digest(std::string(16, 'b'));
  *history.mutable_newest() = step.target();
  for (const auto& [index, version] : {std::pair(0, 1), {0, 2}, {1, 1}}) {
    v1::LogChunk& chunk = *history.add_chunks();
    chunk.set_index(index);
    chunk.set_version(version);
    chunk.set_sha256(std::string(32, 'c'));
  }
  history.set_oldest(1);
  return head;
}

Bytes BytesOf(const std::string& text) {
  const ByteView bytes = AsBytes(std::string_view(text));
  return {bytes.begin(), bytes.end()};
}

void TestHead(const std::string& encoded, ByteView input) {
  v1::SignedLogHead wrapped;
  wrapped.set_head(encoded);
  const objects::Sha256 sum = objects::Sha256Of(AsBytes(std::string_view(encoded)));
  wrapped.set_sha256(sum.data(), sum.size());
  const auto head = versionlog::DecodeHead(BytesOf(wrapped.SerializeAsString()), "actor", {});
  if (!head.ok()) return CheckRefusal(head.status(), {ErrorCode::kProtocol, ErrorCode::kCorrupt});
  LS_FUZZ_RULE(versionlog::CheckFollows(*head, *head).ok());
  (void)versionlog::ObjectNames(*head);
  if (!head->has_history()) return;
  v1::LogHistory history = head->history();
  const Version newest = history.newest().version();
  LS_FUZZ_RULE(versionlog::FindDigest(history, newest).has_value());
  for (const uint32_t due : versionlog::DueChunks(history, kDataBytes)) {
    LS_FUZZ_RULE(versionlog::FindChunk(history, due, kMaxVersion) != nullptr);
  }
  Accepted(input, {history.steps_size() == 1 && history.steps(0).entries() > 3, newest > 2});
  while (versionlog::DropOldest(history)) LS_FUZZ_RULE(versionlog::CheckHistory(history, true).ok());
  LS_FUZZ_RULE(history.oldest() == newest);
}

}  // namespace

std::vector<Bytes> Seeds() {
  v1::LogHead written = Head();
  *written.mutable_next() = written.history();
  written.mutable_next()->clear_chunks();
  return {BytesOf(Head().SerializeAsString()), BytesOf(written.SerializeAsString())};
}

void TestInput(ByteView input) {
  TestHead(std::string(AsText(input)), input);
  v1::LogHead head;
  if (!head.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  head.set_format(versionlog::kLogFormat);
  head.set_model("actor");
  head.set_id(std::string(16, 'i'));
  TestHead(head.SerializeAsString(), input);
}

}  // namespace lockstep::fuzz
