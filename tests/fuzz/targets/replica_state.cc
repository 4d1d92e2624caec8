// The state file of a replica, which a receiver reads back when it starts (raas_receiver/replica/state_file.h).
#include "kernels/hash.h"
#include "raas_receiver/replica/state_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace lockstep::fuzz {
namespace {

using replica::ReplicaStateHeader;

// The same with digests and checksum put right, as far as they lie inside.
Bytes Sealed(ByteView input) {
  Bytes bytes = Copy(input);
  ReplicaStateHeader header;
  if (bytes.size() < sizeof header + sizeof(uint64_t)) return bytes;
  std::memcpy(&header, bytes.data(), sizeof header);
  const uint64_t layout_end = bytes.size() - sizeof(uint64_t);
  const uint64_t layout_at = sizeof header + uint64_t{header.block_count} * sizeof(uint64_t);
  if (layout_at <= layout_end) {
    std::vector<uint64_t> hashes(header.block_count);
    ByteReader reader(ByteView(bytes).subspan(sizeof header));
    for (uint64_t& hash : hashes) reader.Take(hash);
    header.layout_bytes = layout_end - layout_at;
    header.layout_digest = {Hash128(ByteView(bytes).subspan(layout_at, header.layout_bytes))};
    header.manifest_digest = model::ComputeManifestDigest(header.layout_digest, hashes);
    std::memcpy(bytes.data(), &header, sizeof header);
  }
  const uint64_t check = Hash64(bytes.data(), layout_end);
  std::memcpy(bytes.data() + layout_end, &check, sizeof check);
  return bytes;
}

void TestBytes(const Bytes& bytes, ByteView input) {
  const auto state = replica::DecodeReplicaState(bytes);
  if (!state.ok()) {
    return CheckRefusal(state.status(), {ErrorCode::kProtocol, ErrorCode::kCorrupt, ErrorCode::kBadData});
  }
  LS_FUZZ_RULE(replica::EncodeReplicaState(*state) == bytes);
  const model::Manifest& manifest = state->manifest;
  LS_FUZZ_RULE(!manifest.held.nothing() && manifest.block_hashes.size() == state->layout->block_count());
  LS_FUZZ_RULE(model::ComputeManifestDigest(*state->layout, manifest.block_hashes) == manifest.digest);
  Accepted(input, {manifest.held.version > 1'000'000, state->layout->tensors()[0].dtype == model::DType::kU32});
}

}  // namespace

std::vector<Bytes> Seeds() {
  return {HexBlock("raas_receiver/replica/FORMAT.md", "state"),
          replica::EncodeReplicaState({SmallLayout(), SmallManifest(5), 1'000'000'000})};
}

void TestInput(ByteView input) {
  if (NamesManyBlocks(input)) return;
  TestBytes(Copy(input), input);
  TestBytes(Sealed(input), input);
}

}  // namespace lockstep::fuzz
