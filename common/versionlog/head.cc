#include "common/versionlog/head.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "common/base/text.h"
#include "common/model/label.h"
#include "common/model/layout.h"
#include "common/os/file.h"
#include "common/versionlog/history.h"

namespace lockstep::versionlog {
namespace {

constexpr size_t kShaBytes = 32;
constexpr std::string_view kPart = ".tmp-";  // os::WriteFileAtomic
constexpr int kMaxSignatures = 16;
constexpr uint64_t kMaxRememberedBytes = 1 << 20;
constexpr std::chrono::hours kClocksDiffer{24};

Status Breaks(std::string_view rule) {
  return {ErrorCode::kProtocol, Cat("breaks a rule of the log's format: ", rule)};
}

bool IsId(std::string_view raw) {
  const auto id = Bytes16(raw);
  return id.ok() && *id != std::array<uint8_t, 16>{};
}

uint64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string IdText(const v1::LogHead& head) {
  const auto id = Bytes16(head.id());
  return id.ok() ? HexEncode(*id) : "unknown";
}

Status CheckBytes(const v1::LogBytes& bytes, std::string_view what) {
  if (bytes.bytes() > model::kMaxDataBytes) return Breaks(Cat(what, " of ", bytes.bytes(), " bytes"));
  const uint64_t piece = bytes.piece_bytes();
  if (bytes.bytes() > 0 && (piece == 0 || piece > kMaxPieceBytes)) {
    return Breaks(Cat(what, " in pieces of ", piece, " bytes"));
  }
  const uint64_t pieces = bytes.bytes() == 0 ? 0 : (bytes.bytes() - 1) / piece + 1;
  const bool named = std::ranges::all_of(bytes.pieces(), [](const auto& name) { return name.size() == kShaBytes; });
  if (static_cast<uint64_t>(bytes.pieces_size()) == pieces && named) return OkStatus();
  return Breaks(Cat(what, " of ", bytes.bytes(), " bytes and ", bytes.pieces_size(), " pieces"));
}

Status CheckVersion(const v1::LogVersion& version) {
  if (version.version() == 0 || version.version() > kMaxVersion) return Breaks(Cat("version ", version.version()));
  if (!Bytes16(version.manifest_digest()).ok()) return Breaks("a manifest digest of 16 bytes");
  return model::CheckLabel(version.label()).ok() ? OkStatus() : Breaks("a label that can be shown");
}

Status CheckSteps(const v1::LogHistory& history) {
  for (int i = 0; i < history.steps_size(); ++i) {
    const v1::LogStep& step = history.steps(i);
    LS_RETURN_IF_ERROR(CheckVersion(step.target()));
    LS_RETURN_IF_ERROR(CheckBytes(step.payload(), "a delta"));
    if (!Bytes16(step.base_digest()).ok()) return Breaks("a base's digest of 16 bytes");
    if (step.base() == 0 || step.base() >= step.target().version()) return Breaks("a step forward");
    if (i == 0) continue;
    const v1::LogVersion& before = history.steps(i - 1).target();
    if (step.base() != before.version() || step.base_digest() != before.manifest_digest()) {
      return Breaks(Cat("consecutive steps, at version ", step.base()));
    }
  }
  if (history.steps().empty()) return OkStatus();
  const v1::LogVersion& last = history.steps().rbegin()->target();
  const bool led =
      last.version() == history.newest().version() && last.manifest_digest() == history.newest().manifest_digest();
  return led ? OkStatus() : Breaks("steps up to the newest version");
}

Status CheckCurrent(const v1::LogHistory& history) {
  if (!history.has_current()) return OkStatus();
  LS_RETURN_IF_ERROR(CheckVersion(history.current()));
  const auto digest = FindDigest(history, history.current().version());
  const bool there = history.current().version() >= history.oldest() && digest.has_value() &&
                     ToBytes(*digest) == history.current().manifest_digest();
  return there ? OkStatus() : Breaks("a current version that it has");
}

// The versions that steps lead on from to the newest, and that itself, rising.
std::vector<Version> Reached(const v1::LogHistory& history) {
  std::vector<Version> versions;
  for (const v1::LogStep& step : history.steps()) versions.push_back(step.base());
  versions.push_back(history.newest().version());
  return versions;
}

Status CheckChunks(const v1::LogHistory& history, bool whole) {
  const uint64_t blocks = history.manifest().bytes() / sizeof(uint64_t);
  if (history.chunk_bytes() == 0 || history.chunk_bytes() > kMaxPieceBytes) return Breaks("a size of chunks");
  if (history.manifest().bytes() % sizeof(uint64_t) != 0 || blocks > model::kMaxBlocks) return Breaks("a manifest");
  const std::vector<Version> reached = Reached(history);
  for (int i = 0; i < history.chunks_size(); ++i) {
    const v1::LogChunk& chunk = history.chunks(i);
    if (chunk.sha256().size() != kShaBytes) return Breaks("a chunk's name of 32 bytes");
    if (!std::ranges::binary_search(reached, chunk.version())) {
      return Breaks(Cat("steps from version ", chunk.version(), " of chunk ", chunk.index(), " on"));
    }
    if (i == 0) continue;
    const v1::LogChunk& before = history.chunks(i - 1);
    const bool rising =
        before.index() < chunk.index() || (before.index() == chunk.index() && before.version() < chunk.version());
    if (!rising) return Breaks("the order of chunks");
  }
  if (!whole) return OkStatus();
  if (!std::ranges::binary_search(reached, history.oldest())) return Breaks("the oldest version");
  // Each index from 0 on has one that the oldest version can be made from; how many there are, the layout says.
  uint32_t index = 0;
  for (int i = 0; i < history.chunks_size(); ++index) {
    if (history.chunks(i).index() != index) return Breaks(Cat("chunk ", index));
    if (history.chunks(i).version() > history.oldest()) return Breaks(Cat("chunk ", index, " of the oldest version"));
    while (i < history.chunks_size() && history.chunks(i).index() == index) ++i;
  }
  return OkStatus();
}

}  // namespace

bool IsEpoch(uint64_t epoch) {
  return epoch != 0 && epoch <= UnixSeconds() + std::chrono::seconds(kClocksDiffer).count();
}

std::string HeadName(std::string_view model) {
  return Cat(model, "/head");
}

std::string ObjectName(std::string_view model, std::string_view kind, std::string_view sha256) {
  const std::span raw(reinterpret_cast<const uint8_t*>(sha256.data()), sha256.size());
  return Cat(model, "/", kind, "/", HexEncode(raw));
}

bool IsObjectName(std::string_view model, std::string_view name) {
  if (name.starts_with(Cat(HeadName(model), kPart))) return true;
  const size_t last = name.rfind('/');
  if (last == std::string_view::npos) return false;
  const auto of = [&](std::string_view kind) { return name.substr(0, last) == Cat(model, "/", kind); };
  std::string_view sum = name.substr(last + 1);
  if (const size_t part = sum.find(kPart); part != std::string_view::npos) sum = sum.substr(0, part);
  return std::ranges::any_of(std::array{kLayout, kManifest, kDelta, kChunk}, of) && sum.size() == 2 * kShaBytes &&
         sum.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Bytes EncodeHead(const v1::LogHead& head, const SigningKey* key) {
  v1::SignedLogHead signed_head;
  signed_head.set_head(head.SerializeAsString());
  const ByteView encoded = AsBytes(std::string_view(signed_head.head()));
  const objects::Sha256 sum = objects::Sha256Of(encoded);
  signed_head.set_sha256(sum.data(), sum.size());
  if (key != nullptr) *signed_head.add_signatures() = key->Sign(encoded);
  const std::string text = signed_head.SerializeAsString();
  const ByteView bytes = AsBytes(std::string_view(text));
  return {bytes.begin(), bytes.end()};
}

Result<v1::LogHead> DecodeHead(ByteView bytes, std::string_view model, const TrustedKeys& trusted) {
  v1::SignedLogHead signed_head;
  if (!signed_head.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status(ErrorCode::kCorrupt, "is no head of a log, or a part of one");
  }
  if (signed_head.signatures_size() > kMaxSignatures) {
    return Status(ErrorCode::kCorrupt, Cat("has more than ", kMaxSignatures, " signatures"));
  }
  const ByteView encoded = AsBytes(std::string_view(signed_head.head()));
  const objects::Sha256 sum = objects::Sha256Of(encoded);
  if (signed_head.sha256() != objects::AsRaw(sum)) {
    return Status(ErrorCode::kCorrupt, "is not what was written: its SHA-256 differs");
  }
  LS_RETURN_IF_ERROR(trusted.Check(encoded, signed_head.signatures()));
  v1::LogHead head;
  if (!head.ParseFromString(signed_head.head())) return Status(ErrorCode::kProtocol, "holds no head of a log");
  if (head.format() != kLogFormat) {
    return Status(ErrorCode::kProtocol,
                  Cat("has format ", head.format(), "; this release reads format ", kLogFormat, "; upgrade it"));
  }
  if (head.model() != model) {
    return Status(ErrorCode::kProtocol, Cat("is of model ", CleanText(head.model(), 128), ", not of ", model));
  }
  if (!IsEpoch(head.epoch())) {
    return Breaks(Cat("an epoch, which is Unix seconds; it has ", head.epoch(), ", and this host's clock says ",
                      UnixSeconds(), "; set the clock, or remove the head"));
  }
  if (!IsId(head.id())) return Breaks("an id of the log, of 16 bytes");
  if (head.has_history()) LS_RETURN_IF_ERROR(CheckHistory(head.history(), /*whole=*/true));
  if (head.has_next()) LS_RETURN_IF_ERROR(CheckHistory(head.next(), /*whole=*/false));
  return head;
}

Status CheckHistory(const v1::LogHistory& history, bool whole) {
  const auto run = Bytes16(history.run());
  if (!run.ok() || RunId{*run}.IsZero()) return Breaks("a run of 16 bytes");
  if (!Bytes16(history.layout_digest()).ok()) return Breaks("a layout digest of 16 bytes");
  LS_RETURN_IF_ERROR(CheckBytes(history.layout(), "a layout"));
  LS_RETURN_IF_ERROR(CheckBytes(history.manifest(), "a manifest"));
  LS_RETURN_IF_ERROR(CheckVersion(history.newest()));
  LS_RETURN_IF_ERROR(CheckSteps(history));
  LS_RETURN_IF_ERROR(CheckCurrent(history));
  return CheckChunks(history, whole);
}

Status CheckLayout(const v1::LogHistory& history, const model::ModelLayout& layout, bool whole) {
  const uint64_t chunk = history.chunk_bytes();
  const bool fits = ToBytes(layout.digest()) == history.layout_digest() && chunk % layout.block_bytes() == 0 &&
                    history.manifest().bytes() == layout.block_count() * sizeof(uint64_t);
  const uint64_t chunks = ChunkCount(history, layout.data_bytes());
  const uint64_t named = history.chunks().empty() ? 0 : history.chunks().rbegin()->index() + uint64_t{1};
  if (fits && (whole ? named == chunks : named <= chunks)) return OkStatus();
  return {ErrorCode::kProtocol, "the head's layout, chunks and manifest do not go together"};
}

Status CheckFollows(const v1::LogHead& seen, const v1::LogHead& next) {
  if (seen.id() != next.id()) {
    return {ErrorCode::kState, Cat("is of another log, ", IdText(next), ", than was read before, ", IdText(seen))};
  }
  const bool older = std::pair(next.epoch(), next.serial()) < std::pair(seen.epoch(), seen.serial());
  const v1::LogHistory& from = seen.history();
  const v1::LogHistory& to = next.history();
  const bool same_run = from.run() == to.run();
  const bool back = same_run && to.newest().version() < from.newest().version();
  const bool lost = seen.has_history() && !next.has_history();
  if (older || back || lost) {
    return {ErrorCode::kState, Cat("goes back, from epoch ", seen.epoch(), " and version ", from.newest().version(),
                                   " to epoch ", next.epoch(), " and version ", to.newest().version())};
  }
  if (seen.has_history() && !same_run && next.epoch() == seen.epoch()) {
    return {ErrorCode::kState, Cat("has another run in the same epoch, ", next.epoch())};
  }
  return OkStatus();
}

Status WriteRemembered(const std::string& path, const v1::LogHead& head) {
  v1::LogHead kept = head;
  kept.clear_next();
  if (kept.has_history()) {
    v1::LogHistory& history = *kept.mutable_history();
    history.clear_steps();
    history.clear_chunks();
    history.clear_layout();
    history.clear_manifest();
    history.clear_current();
  }
  LS_RETURN_IF_ERROR(os::MakeDirs(std::filesystem::path(path).parent_path(), 0700));
  return os::WriteFileAtomic(path, kept.SerializeAsString(), 0600);
}

Result<v1::LogHead> ReadRemembered(const std::string& path) {
  const Result<std::string> text = os::ReadFile(path, kMaxRememberedBytes);
  if (text.status().code() == ErrorCode::kNotFound) return v1::LogHead();
  LS_RETURN_IF_ERROR(text.status());
  v1::LogHead head;
  if (head.ParseFromString(*text) && IsId(head.id())) return head;
  return Status(ErrorCode::kCorrupt, Cat(path, " remembers no head of a log; remove it"));
}

}  // namespace lockstep::versionlog
