#include "raas_receiver/replica/state_file.h"

#include <cstring>

#include "common/base/text.h"
#include "common/model/label.h"
#include "common/os/file.h"
#include "kernels/hash.h"

namespace lockstep::replica {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'R', 'E', 'P', 'L', '0', '1'};

Status Corrupt(std::string why) {
  return {ErrorCode::kCorrupt, std::move(why)};
}

Status CheckHeader(const ReplicaStateHeader& header, size_t file_bytes) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return Corrupt("not a replica state: wrong magic");
  if (header.format != kReplicaStateFormat) {
    return {ErrorCode::kProtocol,
            Cat("replica state format ", header.format, ", this receiver knows ", kReplicaStateFormat)};
  }
  if (header.header_bytes != sizeof(ReplicaStateHeader)) {
    return Corrupt(Cat("replica state has a header of ", header.header_bytes, " bytes, not ", sizeof header));
  }
  const uint64_t fixed = sizeof header + uint64_t{header.block_count} * sizeof(uint64_t) + sizeof(uint64_t);
  if (file_bytes < fixed || file_bytes - fixed < header.layout_bytes ||
      file_bytes - fixed - header.layout_bytes > model::kMaxLabel) {
    return Corrupt(Cat("replica state has ", file_bytes, " bytes, which its own lengths do not add up to"));
  }
  if (header.block_count == 0) return Corrupt("replica state has no block hashes");
  if (header.run.IsZero() || header.version == 0) return Corrupt("replica state names no version");
  return OkStatus();
}

Status CheckContent(const ReplicaStateHeader& header, const ReplicaState& state) {
  if (state.layout->digest() != header.layout_digest) return Corrupt("replica state has another layout than it names");
  if (state.layout->block_count() != header.block_count) {
    return Corrupt(
        Cat("replica state has ", header.block_count, " block hashes, its layout ", state.layout->block_count()));
  }
  if (model::ComputeManifestDigest(*state.layout, state.manifest.block_hashes) != header.manifest_digest) {
    return Corrupt("replica state's hashes do not give its manifest digest");
  }
  return OkStatus();
}

}  // namespace

uint64_t MaxReplicaStateBytes(const model::ModelLayout& layout) {
  return sizeof(ReplicaStateHeader) + layout.block_count() * sizeof(uint64_t) + layout.encoded().size() +
         model::kMaxLabel + sizeof(uint64_t);
}

Bytes EncodeReplicaState(const ReplicaState& state) {
  ReplicaStateHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.format = kReplicaStateFormat;
  header.header_bytes = sizeof header;
  header.block_count = state.layout->block_count();
  header.run = state.manifest.held.run;
  header.version = state.manifest.held.version;
  header.layout_digest = state.layout->digest();
  header.manifest_digest = state.manifest.digest;
  header.committed_unix_ns = state.committed_unix_ns;
  header.layout_bytes = state.layout->encoded().size();

  Bytes out;
  Append(out, header);
  AppendBytes(out, std::as_bytes(std::span(state.manifest.block_hashes)));
  AppendBytes(out, state.layout->encoded());
  AppendBytes(out, AsBytes(std::string_view(state.label)));
  Append(out, Hash64(out));
  return out;
}

Result<ReplicaState> DecodeReplicaState(ByteView encoded) {
  ByteReader reader(encoded);
  ReplicaStateHeader header;
  if (!reader.Take(header)) return Corrupt(Cat("replica state is cut off at ", encoded.size(), " bytes"));
  LS_RETURN_IF_ERROR(CheckHeader(header, encoded.size()));
  ByteView hashes, layout, label;
  uint64_t check = 0;
  if (!reader.TakeBytes(header.block_count * sizeof(uint64_t), hashes) ||
      !reader.TakeBytes(header.layout_bytes, layout) || !reader.TakeBytes(reader.rest().size() - sizeof check, label) ||
      !reader.Take(check) || check != Hash64(encoded.first(encoded.size() - sizeof check))) {
    return Corrupt("replica state does not have its checksum");
  }

  ReplicaState state;
  LS_ASSIGN_OR_RETURN(state.layout, model::ModelLayout::Decode(layout, /*joined=*/true));
  state.manifest.held = {header.run, header.version};
  state.manifest.block_hashes.resize(header.block_count);
  std::memcpy(state.manifest.block_hashes.data(), hashes.data(), hashes.size());
  state.manifest.digest = header.manifest_digest;
  state.committed_unix_ns = header.committed_unix_ns;
  state.label = AsText(label);
  if (!model::CheckLabel(state.label).ok()) return Corrupt("replica state has a label that is none");
  LS_RETURN_IF_ERROR(CheckContent(header, state));
  return state;
}

Status WriteReplicaState(const std::string& path, const ReplicaState& state) {
  return os::WriteFileAtomic(path, EncodeReplicaState(state), 0600);
}

Result<ReplicaState> ReadReplicaState(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string content, os::ReadFile(path));
  Result<ReplicaState> state = DecodeReplicaState(AsBytes(std::string_view(content)));
  if (!state.ok()) return state.status().WithContext(path);
  return state;
}

}  // namespace lockstep::replica
