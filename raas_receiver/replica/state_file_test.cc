#include "raas_receiver/replica/state_file.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/status_testing.h"
#include "common/os/temp_dir.h"
#include "kernels/hash.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::replica {
namespace {

ReplicaState MakeState() {
  TestModel model;
  model.Advance();
  return {model.layout(), model.manifest(1), 123'456'789};
}

// Gives `encoded` the checksum of what it holds now.
Bytes FixChecksum(Bytes encoded) {
  const uint64_t check = Hash64(ByteView(encoded).first(encoded.size() - sizeof(uint64_t)));
  std::memcpy(encoded.data() + encoded.size() - sizeof check, &check, sizeof check);
  return encoded;
}

}  // namespace

TEST_CASE("A replica state survives the round trip through its file") {
  const os::TempDir directory;
  const ReplicaState state = MakeState();
  REQUIRE(WriteReplicaState(directory.File("state"), state).ok());
  const Result<ReplicaState> read = ReadReplicaState(directory.File("state"));
  REQUIRE(read.ok());
  CHECK(read->manifest.held == state.manifest.held);
  CHECK(read->manifest.digest == state.manifest.digest);
  CHECK(read->manifest.block_hashes == state.manifest.block_hashes);
  CHECK(read->layout->digest() == state.layout->digest());
  CHECK(read->committed_unix_ns == 123'456'789);
}

TEST_CASE("A replica state keeps its label, and no prefix of one is a state with a shorter label") {
  ReplicaState state = MakeState();
  state.label = "step 7";
  const Bytes encoded = EncodeReplicaState(state);
  CHECK(DecodeReplicaState(encoded)->label == "step 7");
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    REQUIRE_THAT(DecodeReplicaState(ByteView(encoded).first(bytes)), FailsWith(ErrorCode::kCorrupt, "replica state"));
  }
  state.label = std::string(65, 'x');
  CHECK_THAT(DecodeReplicaState(EncodeReplicaState(state)), FailsWith(ErrorCode::kCorrupt, "do not add up"));
  state.label = "a\nb";
  CHECK_THAT(DecodeReplicaState(EncodeReplicaState(state)), FailsWith(ErrorCode::kCorrupt, "a label that is none"));
}

TEST_CASE("A replica state that is not there is not found") {
  const os::TempDir directory;
  CHECK_THAT(ReadReplicaState(directory.File("state")), FailsWith(ErrorCode::kNotFound, directory.File("state")));
}

TEST_CASE("No prefix of a replica state is one, nor is it with bytes behind") {
  Bytes encoded = EncodeReplicaState(MakeState());
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    REQUIRE_THAT(DecodeReplicaState(ByteView(encoded).first(bytes)), FailsWith(ErrorCode::kCorrupt, "replica state"));
  }
  encoded.resize(encoded.size() + 65);  // more than a label
  const FailsWith longer(ErrorCode::kCorrupt, "which its own lengths do not add up to");
  CHECK_THAT(DecodeReplicaState(encoded), longer);
  CHECK_THAT(DecodeReplicaState(FixChecksum(encoded)), longer);
}

TEST_CASE("A replica state with any byte changed is refused") {
  const Bytes encoded = EncodeReplicaState(MakeState());
  for (size_t i = 0; i < encoded.size(); ++i) {
    Bytes changed = encoded;
    changed[i] ^= std::byte{0x10};
    const bool format = i == 8 || i == 9;
    REQUIRE_THAT(DecodeReplicaState(changed),
                 FailsWith(format ? ErrorCode::kProtocol : ErrorCode::kCorrupt, "replica state"));
  }
}

TEST_CASE("A replica state of another format, also with a right checksum, is refused as such") {
  Bytes encoded = EncodeReplicaState(MakeState());
  encoded[8] = std::byte{3};
  CHECK_THAT(DecodeReplicaState(FixChecksum(encoded)),
             FailsWith(ErrorCode::kProtocol, "replica state format 3, this receiver knows 1"));
  encoded = EncodeReplicaState(MakeState());
  encoded[0] = std::byte{'X'};
  CHECK_THAT(DecodeReplicaState(FixChecksum(encoded)), FailsWith(ErrorCode::kCorrupt, "wrong magic"));
  encoded = EncodeReplicaState(MakeState());
  encoded[offsetof(ReplicaStateHeader, header_bytes)] = std::byte{89};
  CHECK_THAT(DecodeReplicaState(FixChecksum(encoded)), FailsWith(ErrorCode::kCorrupt, "a header of 89 bytes, not 88"));
}

TEST_CASE("A replica state is refused when its hashes, layout and version do not fit together, whatever its checksum") {
  const Bytes encoded = EncodeReplicaState(MakeState());
  for (const size_t offset :
       {offsetof(ReplicaStateHeader, layout_digest), offsetof(ReplicaStateHeader, manifest_digest),
        sizeof(ReplicaStateHeader), offsetof(ReplicaStateHeader, block_count)}) {
    Bytes changed = encoded;
    changed[offset] ^= std::byte{1};
    CHECK_THAT(DecodeReplicaState(FixChecksum(changed)), FailsWith(ErrorCode::kCorrupt, "replica state"));
  }
  Bytes no_version = encoded;
  std::memset(no_version.data() + offsetof(ReplicaStateHeader, version), 0, 8);
  CHECK_THAT(DecodeReplicaState(FixChecksum(no_version)), FailsWith(ErrorCode::kCorrupt, "names no version"));
  ReplicaStateHeader header;
  std::memcpy(&header, encoded.data(), sizeof header);
  Bytes no_hashes = encoded;
  no_hashes.erase(no_hashes.begin() + sizeof header, no_hashes.begin() + sizeof header + header.block_count * 8);
  std::memset(no_hashes.data() + offsetof(ReplicaStateHeader, block_count), 0, 4);
  CHECK_THAT(DecodeReplicaState(FixChecksum(no_hashes)), FailsWith(ErrorCode::kCorrupt, "no block hashes"));
}

}  // namespace lockstep::replica
