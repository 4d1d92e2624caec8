#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "common/versionlog/keys.h"

namespace lockstep::versionlog {
namespace {

constexpr uint64_t kChunkBytes = 100;
constexpr uint32_t kChunks = 8;
constexpr uint64_t kData = kChunks * kChunkBytes;

std::string Digest(Version version) {
  return std::string(16, static_cast<char>('a' + version % 26));
}

v1::LogBytes BytesOf(uint64_t bytes, char name) {
  v1::LogBytes whole;
  whole.set_bytes(bytes);
  whole.set_piece_bytes(1000);
  for (uint64_t at = 0; at < bytes; at += 1000) whole.add_pieces(std::string(32, name));
  return whole;
}

void AddChunk(v1::LogHistory& history, uint32_t index, Version version) {
  v1::LogChunk& chunk = *history.add_chunks();
  chunk.set_index(index);
  chunk.set_version(version);
  chunk.set_sha256(std::string(28, 'c') + Cat(index, ".", version).substr(0, 3) + "x");
}

// Version 1 in chunks, and a delta of `delta_bytes` to each up to `newest`.
v1::LogHistory History(Version newest, uint64_t delta_bytes = 40) {
  v1::LogHistory history;
  history.set_run(std::string(16, 'r'));
  history.set_layout_digest(std::string(16, 'l'));
  *history.mutable_layout() = BytesOf(70, 'l');
  *history.mutable_manifest() = BytesOf(kChunks * 8, 'm');
  history.set_chunk_bytes(kChunkBytes);
  history.set_oldest(1);
  for (uint32_t index = 0; index < kChunks; ++index) AddChunk(history, index, 1);
  history.mutable_newest()->set_version(1);
  history.mutable_newest()->set_manifest_digest(Digest(1));
  for (Version version = 2; version <= newest; ++version) {
    v1::LogStep& step = *history.add_steps();
    step.set_base(version - 1);
    step.set_base_digest(Digest(version - 1));
    step.mutable_target()->set_version(version);
    step.mutable_target()->set_manifest_digest(Digest(version));
    *step.mutable_payload() = BytesOf(delta_bytes, 'd');
    *history.mutable_newest() = step.target();
  }
  return history;
}

v1::LogHead HeadOf(const v1::LogHistory& history, uint64_t epoch = 5, uint64_t serial = 1) {
  v1::LogHead head;
  head.set_format(kLogFormat);
  head.set_model("actor");
  head.set_id(std::string(16, 'i'));
  head.set_epoch(epoch);
  head.set_serial(serial);
  *head.mutable_history() = history;
  return head;
}

Result<v1::LogHead> ReadBack(const v1::LogHead& head) {
  return DecodeHead(EncodeHead(head, nullptr), "actor", {});
}

// Chunk `index` is there in `version`, too.
void Renew(v1::LogHistory& history, uint32_t index, Version version) {
  v1::LogHistory renewed = history;
  renewed.clear_chunks();
  for (uint32_t i = 0; i < kChunks; ++i) {
    for (const v1::LogChunk& chunk : history.chunks()) {
      if (chunk.index() == i) *renewed.add_chunks() = chunk;
    }
    if (i == index) AddChunk(renewed, index, version);
  }
  history = renewed;
}

}  // namespace

TEST_CASE("A head is read as it was written; any bit that flipped in it is found") {
  const v1::LogHead head = HeadOf(History(4));
  const Bytes encoded = EncodeHead(head, nullptr);
  const auto read = DecodeHead(encoded, "actor", {});
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(read->SerializeAsString() == head.SerializeAsString());
  for (size_t i = 0; i < encoded.size(); i += 7) {
    Bytes flipped = encoded;
    flipped[i] ^= std::byte{1};
    const auto wrong = DecodeHead(flipped, "actor", {});
    CHECK((!wrong.ok() || wrong->SerializeAsString() == head.SerializeAsString()));
  }
  for (size_t bytes = 0; bytes < encoded.size(); bytes += 11) {
    CHECK_FALSE(DecodeHead(ByteView(encoded).first(bytes), "actor", {}).ok());
  }
  CHECK_THAT(DecodeHead(encoded, "critic", {}), FailsWith(ErrorCode::kProtocol, "of model actor"));
}

TEST_CASE("A head that breaks a rule is refused with the rule") {
  const std::vector<std::pair<std::string, std::function<void(v1::LogHead&)>>> breaks = {
      {"format 2", [](auto& head) { head.set_format(2); }},
      {"an epoch", [](auto& head) { head.set_epoch(0); }},
      {"an epoch", [](auto& head) { head.set_epoch((uint64_t{1} << 62) - 1); }},
      {"an id of the log", [](auto& head) { head.clear_id(); }},
      {"an id of the log", [](auto& head) { head.set_id(std::string(16, '\0')); }},
      {"a run of 16 bytes", [](auto& head) { head.mutable_history()->set_run("short"); }},
      {"a run of 16 bytes", [](auto& head) { head.mutable_history()->set_run(std::string(16, '\0')); }},
      {"a layout digest", [](auto& head) { head.mutable_history()->clear_layout_digest(); }},
      {"version 0", [](auto& head) { head.mutable_history()->mutable_newest()->set_version(0); }},
      {"consecutive steps", [](auto& head) { head.mutable_history()->mutable_steps(1)->set_base(1); }},
      {"consecutive steps", [](auto& head) { head.mutable_history()->mutable_steps(1)->set_base_digest(Digest(9)); }},
      {"a step forward", [](auto& head) { head.mutable_history()->mutable_steps(0)->set_base(2); }},
      {"steps up to the newest", [](auto& head) { head.mutable_history()->mutable_steps()->RemoveLast(); }},
      {"a delta of 5000 bytes",
       [](auto& head) { head.mutable_history()->mutable_steps(0)->mutable_payload()->set_bytes(5000); }},
      {"a delta in pieces",
       [](auto& head) { head.mutable_history()->mutable_steps(0)->mutable_payload()->set_piece_bytes(0); }},
      {"a size of chunks", [](auto& head) { head.mutable_history()->set_chunk_bytes(0); }},
      {"a size of chunks", [](auto& head) { head.mutable_history()->set_chunk_bytes(uint64_t{1} << 40); }},
      {"a chunk's name", [](auto& head) { head.mutable_history()->mutable_chunks(0)->set_sha256("x"); }},
      {"steps from version 9", [](auto& head) { head.mutable_history()->mutable_chunks(0)->set_version(9); }},
      {"the order of chunks", [](auto& head) { head.mutable_history()->mutable_chunks(1)->set_index(0); }},
      {"chunk 3", [](auto& head) { head.mutable_history()->mutable_chunks()->DeleteSubrange(3, 1); }},
      {"the oldest version", [](auto& head) { head.mutable_history()->set_oldest(7); }},
      {"of the oldest version", [](auto& head) { head.mutable_history()->mutable_chunks(2)->set_version(3); }},
      {"a current version",
       [](auto& head) {
         *head.mutable_history()->mutable_current() = head.history().newest();
         head.mutable_history()->mutable_current()->set_version(9);
       }},
      {"a current version",
       [](auto& head) {
         *head.mutable_history()->mutable_current() = head.history().steps(0).target();
         head.mutable_history()->mutable_current()->set_manifest_digest(Digest(3));
       }},
      {"a label", [](auto& head) { head.mutable_history()->mutable_newest()->set_label(std::string(100, 'x')); }},
      {"a manifest of", [](auto& head) { head.mutable_history()->mutable_manifest()->set_bytes(UINT64_MAX); }},
  };
  for (const auto& [rule, change] : breaks) {
    v1::LogHead head = HeadOf(History(4));
    change(head);
    INFO(rule);
    CHECK_THAT(ReadBack(head), FailsWith(ErrorCode::kProtocol, rule));
  }
}

TEST_CASE("A history that is being written needs no chunk yet, and its rules hold all the same") {
  v1::LogHead head = HeadOf(History(2));
  *head.mutable_next() = History(3);
  head.mutable_next()->clear_chunks();
  head.mutable_next()->clear_oldest();
  CHECK(ReadBack(head).ok());
  head.mutable_next()->mutable_steps(0)->set_base(9);
  CHECK(ReadBack(head).status().code() == ErrorCode::kProtocol);
}

TEST_CASE("A head follows another unless it goes back, or has another run in the same epoch") {
  const v1::LogHead seen = HeadOf(History(4), 5, 3);
  CHECK(CheckFollows(seen, seen).ok());
  CHECK(CheckFollows(seen, HeadOf(History(5), 5, 4)).ok());
  CHECK(CheckFollows(seen, HeadOf(History(4), 6, 1)).ok());
  CHECK_THAT(CheckFollows(seen, HeadOf(History(5), 5, 2)), FailsWith(ErrorCode::kState, "goes back"));
  CHECK_THAT(CheckFollows(seen, HeadOf(History(5), 4, 9)), FailsWith(ErrorCode::kState, "goes back"));
  CHECK_THAT(CheckFollows(seen, HeadOf(History(3), 6, 1)), FailsWith(ErrorCode::kState, "goes back"));
  v1::LogHead none = seen;
  none.clear_history();
  none.set_serial(4);
  CHECK_THAT(CheckFollows(seen, none), FailsWith(ErrorCode::kState, "goes back"));
  v1::LogHead other = HeadOf(History(1), 5, 4);
  other.mutable_history()->set_run(std::string(16, 'o'));
  CHECK_THAT(CheckFollows(seen, other), FailsWith(ErrorCode::kState, "another run"));
  other.set_epoch(6);
  CHECK(CheckFollows(seen, other).ok());
  other.set_id(std::string(16, 'o'));
  CHECK_THAT(CheckFollows(seen, other), FailsWith(ErrorCode::kState, "of another log"));
}

TEST_CASE("A version is made from the newest chunks that are no newer") {
  v1::LogHistory history = History(6);
  Renew(history, 2, 4);
  REQUIRE(CheckHistory(history, true).ok());
  CHECK(FindChunk(history, 2, 3)->version() == 1);
  CHECK(FindChunk(history, 2, 4)->version() == 4);
  CHECK(FindChunk(history, 2, kMaxVersion)->version() == 4);
  CHECK(FindChunk(history, 3, 6)->version() == 1);
  CHECK(FindChunk(history, 3, 0) == nullptr);
  CHECK(FindChunk(history, kChunks, 6) == nullptr);
  CHECK(ToBytes(*FindDigest(history, 6)) == Digest(6));
  CHECK(ToBytes(*FindDigest(history, 1)) == Digest(1));
  CHECK_FALSE(FindDigest(history, 7).has_value());
  CHECK(StepBytes(history, 4) == 80);
}

TEST_CASE("Chunks are due one after another, and none lacks more than half a model") {
  v1::LogHistory history = History(1);
  size_t most = 0;
  for (Version version = 2; version <= 60; ++version) {
    const v1::LogHistory longer = History(version);
    *history.mutable_steps() = longer.steps();
    *history.mutable_newest() = longer.newest();
    const std::vector<uint32_t> due = DueChunks(history, kData);
    most = std::max(most, due.size());
    for (const uint32_t index : due) Renew(history, index, version);
    CHECK(DueChunks(history, kData).empty());
    for (uint32_t index = 0; index < kChunks; ++index) {
      CHECK(StepBytes(history, FindChunk(history, index, version)->version()) <= kData / 2);
    }
  }
  CHECK(most <= 2);  // of eight: a delta of 40 bytes makes 80 bytes of chunks due
}

TEST_CASE("A delta counts for something, however small it is: a chain has an end") {
  constexpr uint64_t kLarge = uint64_t{1} << 30;
  v1::LogHistory history = History(kMostSteps);
  CHECK(DueChunks(history, kLarge).size() == kChunks - 1);
  CHECK(StoredBytes(history, kLarge) > kLarge / 2 - kLarge / kMostSteps);
  history = History(kMostSteps / kChunks);
  CHECK(DueChunks(history, kLarge).empty());
}

TEST_CASE("What a writer of a log may have written, and what it has left half written, is known by its name") {
  const std::string sum(64, 'a');
  CHECK(IsObjectName("actor", "actor/chunk/" + sum));
  CHECK(IsObjectName("actor", "actor/delta/" + sum + ".tmp-Ab3x9Q"));
  for (const std::string other : {"actor/head", "actor/chunk/README", "actor/chunk/something-else"}) {
    CHECK_FALSE(IsObjectName("actor", other));
  }
  CHECK_FALSE(IsObjectName("actor", "actor/chunk/" + sum + ".orig"));
  CHECK_FALSE(IsObjectName("actor", "actor/chunk/" + std::string(64, 'A')));
  CHECK_FALSE(IsObjectName("actor", "critic/chunk/" + sum));
}

TEST_CASE("What no version needs any more goes with the oldest, and the others can be made") {
  v1::LogHistory history = History(6);
  for (uint32_t index = 0; index < kChunks; ++index) Renew(history, index, 3);
  const uint64_t before = StoredBytes(history, kData);
  CHECK(before == 2 * kData + 5 * 40);
  REQUIRE(DropOldest(history));
  CHECK(history.oldest() == 2);
  CHECK(StoredBytes(history, kData) == before);  // version 2 needs them
  REQUIRE(DropOldest(history));
  CHECK(history.oldest() == 3);
  CHECK(StoredBytes(history, kData) == kData + 3 * 40);
  CHECK(history.steps(0).base() == 3);
  CHECK(CheckHistory(history, true).ok());
  while (DropOldest(history)) CHECK(CheckHistory(history, true).ok());
  CHECK(history.oldest() == 6);
  CHECK(history.steps(0).base() == 3);  // its chunks are of that version
}

TEST_CASE("A head that a trusted key has signed is taken, and no other where there are keys") {
  const os::TempDir dir;
  for (const std::string name : {"ours", "other"}) {
    const std::string key = dir.File(name + ".pem");
    REQUIRE(std::system(Cat("umask 077; openssl genpkey -algorithm ed25519 -out ", key, " 2>/dev/null && ",
                            "openssl pkey -in ", key, " -pubout -out ", dir.File(name + ".pub"))
                            .c_str()) == 0);
  }
  const auto ours = SigningKey::Read(dir.File("ours.pem"));
  const auto other = SigningKey::Read(dir.File("other.pem"));
  REQUIRE((ours.ok() && other.ok()));
  const auto trusted = TrustedKeys::Read(dir.File("ours.pub"));
  REQUIRE(trusted.ok());
  const v1::LogHead head = HeadOf(History(3));
  CHECK(DecodeHead(EncodeHead(head, &*ours), "actor", *trusted).ok());
  CHECK(DecodeHead(EncodeHead(head, &*other), "actor", {}).ok());
  CHECK_THAT(DecodeHead(EncodeHead(head, &*other), "actor", *trusted),
             FailsWith(ErrorCode::kPermission, "no key that is trusted"));
  CHECK_THAT(DecodeHead(EncodeHead(head, nullptr), "actor", *trusted),
             FailsWith(ErrorCode::kPermission, "is not signed"));
  // Signed by the other, under our key's name.
  v1::SignedLogHead forged;
  const Bytes encoded = EncodeHead(head, &*other);
  REQUIRE(forged.ParseFromArray(encoded.data(), static_cast<int>(encoded.size())));
  forged.mutable_signatures(0)->set_key(ours->Sign({}).key());
  const std::string text = forged.SerializeAsString();
  CHECK(DecodeHead(AsBytes(std::string_view(text)), "actor", *trusted).status().code() == ErrorCode::kPermission);
  // Signed as something else.
  google::protobuf::RepeatedPtrField<v1::LogSignature> of_receipt;
  *of_receipt.Add() = ours->Sign(encoded, Signed::kReceipt);
  CHECK(trusted->Check(encoded, of_receipt, Signed::kReceipt).ok());
  CHECK(trusted->Check(encoded, of_receipt).code() == ErrorCode::kPermission);
  // Both keys in one file.
  const std::string both = *os::ReadFile(dir.File("ours.pub")) + *os::ReadFile(dir.File("other.pub"));
  REQUIRE(os::WriteFileAtomic(dir.File("both.pub"), both).ok());
  CHECK(DecodeHead(EncodeHead(head, &*other), "actor", *TrustedKeys::Read(dir.File("both.pub"))).ok());
}

TEST_CASE("A file that is no key is refused with what to do") {
  const os::TempDir dir;
  REQUIRE(os::WriteFileAtomic(dir.File("none"), "nothing", 0600).ok());
  CHECK_THAT(SigningKey::Read(dir.File("none")), FailsWith(ErrorCode::kConfig, "openssl genpkey"));
  CHECK_THAT(TrustedKeys::Read(dir.File("none")), FailsWith(ErrorCode::kConfig, "-pubout"));
  CHECK(SigningKey::Read(dir.File("missing")).status().code() == ErrorCode::kConfig);
  REQUIRE(std::system(Cat("umask 022; openssl genpkey -algorithm ed25519 -out ", dir.File("open.pem"),
                          " 2>/dev/null; chmod 644 ", dir.File("open.pem"))
                          .c_str()) == 0);
  CHECK(SigningKey::Read(dir.File("open.pem")).status().code() == ErrorCode::kConfig);
}

}  // namespace lockstep::versionlog
