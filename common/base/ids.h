// Names for things that travel between the processes: runs, versions, blocks, digests and byte ranges.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep {

// 16 opaque bytes, printed as 32 hex digits. The tag keeps runs, digests and tickets apart.
template <typename Tag>
struct Id128 {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const Id128&) const = default;
  bool IsZero() const { return *this == Id128{}; }
};

// One life of a model's history. Versions of two runs are never compared.
using RunId = Id128<struct RunIdTag>;
// xxh3-128 of a layout's canonical encoding: the layout's name.
using LayoutDigest = Id128<struct LayoutDigestTag>;
// xxh3-128 over a layout digest and all block hashes of one version: the version's content.
using ManifestDigest = Id128<struct ManifestDigestTag>;
// One-use secret that admits one lane to one pull.
using Ticket = Id128<struct TicketTag>;

// 16 bytes from the operating system's generator.
std::array<uint8_t, 16> RandomBytes16();
template <typename T>
T RandomId() {
  return T{RandomBytes16()};
}

std::string HexEncode(std::span<const uint8_t> bytes);
// Whether `hex` is two digits for each of `bytes`, which then are what they say.
bool HexDecode(std::string_view hex, std::span<uint8_t> bytes);
Result<std::array<uint8_t, 16>> HexDecode16(std::string_view hex);
Result<std::array<uint8_t, 16>> Bytes16(std::string_view raw);  // exactly 16 raw bytes (a proto bytes field)

template <typename Tag>
std::string ToHex(const Id128<Tag>& id) {
  return HexEncode(id.bytes);
}
template <typename Tag>
std::string ToBytes(const Id128<Tag>& id) {
  return std::string(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
}

// Strictly increasing inside a run; 0 means "no version".
using Version = uint64_t;
// The control segment keeps a state in the top byte's place.
inline constexpr Version kMaxVersion = (Version{1} << 56) - 1;
// Position of a block in the data section, counted from 0.
using BlockIndex = uint32_t;

// Half-open range of bytes of a model's data section.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;

  uint64_t end() const { return offset + bytes; }
  auto operator<=>(const ByteRange&) const = default;
};

// `rows` ranges of `row_bytes`, `pitch` bytes apart: what a shard that is cut along an inner dimension covers. One row
// is a plain range, with pitch 0.
struct StridedRange {
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
  uint64_t pitch = 0;  // from row to row; at least row_bytes

  static StridedRange Plain(ByteRange range) { return {.offset = range.offset, .row_bytes = range.bytes}; }
  uint64_t bytes() const { return rows * row_bytes; }
  auto operator<=>(const StridedRange&) const = default;
};

// The content of a replica or a slot: one whole version of one run, or nothing (version 0).
struct VersionRef {
  RunId run;
  Version version = 0;

  bool nothing() const { return version == 0; }
  auto operator<=>(const VersionRef&) const = default;
};

}  // namespace lockstep
