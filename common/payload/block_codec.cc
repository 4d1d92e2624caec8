#include "common/payload/block_codec.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/base/text.h"
#include "common/payload/control_coder.h"
#include "kernels/change_streams.h"
#include "kernels/pack_bits.h"

namespace lockstep::payload {
namespace {

constexpr uint8_t kControlsCompressed = 0x80;  // in the first byte, with gap_bits
constexpr uint32_t kMaxGapBits = 20;           // more than a block of 1 MiB has gaps for
constexpr uint64_t kMeanControl = 4;  // gap_bits are so many that the mean of what is left of a gap is at most this

// A control byte has four bits of a code. With so many bits below them no code of a control byte means a step of zero.
constexpr uint32_t MaxStepBits(uint32_t unit) {
  return 8 * unit - 5;
}

constexpr uint64_t MaxCode(uint32_t unit) {
  return (~uint64_t{0} >> (64 - 8 * unit)) - 1;
}

Status Corrupt(const std::string& problem) {
  return {ErrorCode::kCorrupt, "coded block: " + problem};
}

Status CheckUnit(uint32_t unit) {
  if (unit == 1 || unit == 2 || unit == 4 || unit == 8) return OkStatus();
  return Corrupt(Cat("its unit is ", unit, " bytes"));
}

// What a block is taken apart into, and put together from. Kept per thread at full size.
struct Streams {
  std::vector<uint8_t> controls;
  std::vector<uint32_t> gaps;
  std::vector<uint64_t> codes;
  std::vector<uint32_t> escapes;  // indices
  Bytes frame;                    // the control bytes, compressed

  void Fit(size_t count) {
    if (controls.size() >= count) return;
    controls.resize(count);
    gaps.resize(count);
    codes.resize(count);
    escapes.resize(count);
  }
};

Streams& ThreadStreams() {
  thread_local Streams streams;
  return streams;
}

// What stands before the streams of a block.
struct Preamble {
  uint32_t gap_bits = 0;
  uint32_t step_bits = 0;
  uint64_t count = 0;
  bool compressed = false;
  ByteView controls;  // as stored
};

void AppendPreamble(const Preamble& preamble, Bytes& out) {
  out.push_back(static_cast<std::byte>(preamble.gap_bits | (preamble.compressed ? kControlsCompressed : 0)));
  out.push_back(static_cast<std::byte>(preamble.step_bits));
  AppendVarint(out, preamble.count);
  if (preamble.compressed) AppendVarint(out, preamble.controls.size());
  AppendBytes(out, preamble.controls);
}

// Leaves `reader` at the low bits. `max_count` is what the block has units.
Status TakePreamble(ByteReader& reader, uint32_t unit, uint64_t max_count, Preamble& preamble) {
  uint8_t first = 0;
  uint8_t step_bits = 0;
  if (!reader.Take(first) || !reader.Take(step_bits) || !reader.TakeVarint(preamble.count)) return Corrupt("truncated");
  preamble.compressed = (first & kControlsCompressed) != 0;
  preamble.gap_bits = first & ~kControlsCompressed;
  preamble.step_bits = step_bits;
  if (preamble.gap_bits > kMaxGapBits || preamble.step_bits > MaxStepBits(unit)) {
    return Corrupt(Cat("impossible widths: ", preamble.gap_bits, " bits of gaps, ", preamble.step_bits, " of steps"));
  }
  if (preamble.count == 0 || preamble.count > max_count) {
    return Corrupt(Cat(preamble.count, " changes among ", max_count, " elements"));
  }
  uint64_t controls = preamble.count;
  if (preamble.compressed && !reader.TakeVarint(controls)) return Corrupt("truncated");
  return reader.TakeBytes(controls, preamble.controls) ? OkStatus() : Corrupt("the control bytes are truncated");
}

// The least bits with which what is left of the mean gap is at most kMeanControl. The mean decides alone: gaps are near
// geometric, a bit more or less costs a twentieth of a byte, and a fixed rule keeps all levels of a block alike.
uint32_t GapBits(const ChangeView& changes) {
  const uint64_t unchanged = uint64_t{changes.positions.back()} + 1 - changes.size();
  uint32_t bits = 0;
  while (bits < kMaxGapBits && unchanged > (changes.size() * kMeanControl) << bits) ++bits;
  return bits;
}

// The bits with which codes take the fewest, all counted: asked only where steps are large, as in fp32.
uint32_t StepBits(std::span<const uint64_t> codes, uint32_t unit) {
  std::array<uint64_t, 65> widths{};
  for (const uint64_t code : codes) ++widths[static_cast<size_t>(std::bit_width(code))];
  uint32_t best = 0;
  uint64_t least = ~uint64_t{0};
  for (uint32_t bits = 0; bits <= MaxStepBits(unit); ++bits) {
    uint64_t cost = bits * codes.size();
    for (uint32_t width = bits + 5; width < widths.size(); ++width)
      cost += widths[width] * 8 * ((width - bits + 6) / 7);
    if (cost >= least) continue;
    least = cost;
    best = bits;
  }
  return best;
}

template <typename T>
void AppendLowBits(const std::vector<T>& numbers, size_t count, uint32_t bits, Bytes& out) {
  const size_t at = out.size();
  const size_t end = at + kernels::PackedBytes(count, bits);
  out.resize(end + kernels::kPackSlack);
  kernels::PackBits(numbers.data(), count, bits, reinterpret_cast<uint8_t*>(out.data()) + at);
  out.resize(end);
}

// What the control bytes with an escape in the half at `shift` do not say.
template <typename T>
void AppendEscapes(Streams& streams, const std::vector<T>& numbers, size_t count, uint32_t shift, uint32_t bits,
                   Bytes& out) {
  const size_t escapes = kernels::FindEscapes(streams.controls.data(), count, shift, streams.escapes.data());
  for (size_t i = 0; i < escapes; ++i) AppendVarint(out, (numbers[streams.escapes[i]] >> bits) - kernels::kEscape);
}

// The inverse: a number from its low bits and what the reader says of the rest. False when that is truncated, or the
// number above `max`.
bool TakeRest(ByteReader& reader, uint64_t low, uint32_t bits, uint64_t max, uint64_t& number) {
  uint64_t rest = 0;
  const uint64_t limit = max >> bits;
  if (!reader.TakeVarint(rest) || limit < kernels::kEscape || rest > limit - kernels::kEscape) return false;
  number = (rest + kernels::kEscape) << bits | low;
  return number <= max;
}

// The control bytes as bytes: where they lie, or decompressed into `streams`. Null when they do not decompress.
const uint8_t* ControlsOf(const Preamble& preamble, Streams& streams) {
  if (!preamble.compressed) return reinterpret_cast<const uint8_t*>(preamble.controls.data());
  const std::span<uint8_t> controls(streams.controls.data(), preamble.count);
  return DecompressControls(preamble.controls, controls) ? controls.data() : nullptr;
}

// A coded block, taken apart as far as its control bytes.
struct OpenedBlock {
  ByteReader reader;  // at the low bits, then past what was taken
  Preamble preamble;
  const uint8_t* controls = nullptr;  // in the block, or in its Streams
  ByteView step_low_bits;             // once the positions are taken
};

Result<OpenedBlock> OpenBlock(ByteView coded, uint32_t unit, size_t block_bytes, Streams& streams) {
  LS_RETURN_IF_ERROR(CheckUnit(unit));
  OpenedBlock block{.reader = ByteReader(coded)};
  LS_RETURN_IF_ERROR(TakePreamble(block.reader, unit, block_bytes / unit, block.preamble));
  streams.Fit(block.preamble.count);
  block.controls = ControlsOf(block.preamble, streams);
  if (block.controls == nullptr) return Corrupt("the control bytes do not decompress");
  return block;
}

Status TakePositions(OpenedBlock& block, uint64_t elements, Streams& streams, std::vector<uint32_t>& positions) {
  const size_t count = block.preamble.count;
  const uint32_t bits = block.preamble.gap_bits;
  ByteView low_bits;
  if (!block.reader.TakeBytes(kernels::PackedBytes(count, bits), low_bits) ||
      !block.reader.TakeBytes(kernels::PackedBytes(count, block.preamble.step_bits), block.step_low_bits)) {
    return Corrupt("the low bits are truncated");
  }
  positions.resize(count);
  kernels::UnpackBits(reinterpret_cast<const uint8_t*>(low_bits.data()), count, bits, positions.data());
  kernels::JoinGaps(block.controls, count, bits, positions.data());
  const size_t escapes = kernels::FindEscapes(block.controls, count, 0, streams.escapes.data());
  for (size_t i = 0; i < escapes; ++i) {
    uint32_t& gap = positions[streams.escapes[i]];
    uint64_t whole = 0;
    const uint64_t low = gap & ((uint64_t{1} << bits) - 1);
    if (!TakeRest(block.reader, low, bits, elements, whole)) {
      return Corrupt("an escaped gap is truncated or leads past the end of the block");
    }
    gap = static_cast<uint32_t>(whole);
  }
  if (kernels::SumGaps(positions.data(), count) > elements) return Corrupt("a gap leads past the end of the block");
  return OkStatus();
}

// REQUIRES the positions to have been taken.
Status TakeSteps(OpenedBlock& block, uint32_t unit, Streams& streams, std::vector<uint64_t>& steps) {
  const size_t count = block.preamble.count;
  const uint32_t bits = block.preamble.step_bits;
  steps.resize(count);
  if (bits > 0) {
    kernels::UnpackBits(reinterpret_cast<const uint8_t*>(block.step_low_bits.data()), count, bits, steps.data());
  }
  kernels::JoinSteps(block.controls, count, unit, bits, steps.data());
  const size_t escapes = kernels::FindEscapes(block.controls, count, 4, streams.escapes.data());
  for (size_t i = 0; i < escapes; ++i) {
    uint64_t& step = steps[streams.escapes[i]];
    uint64_t code = 0;
    const uint64_t low = kernels::CodeOfStep(step, unit) & ((uint64_t{1} << bits) - 1);
    if (!TakeRest(block.reader, low, bits, MaxCode(unit), code)) {
      return Corrupt("an escaped step is truncated, zero or too large for its unit");
    }
    step = kernels::StepOfCode(code, unit);
  }
  return OkStatus();
}

// As `level` has them, if it gains.
void AppendControls(Preamble& preamble, std::span<const uint8_t> controls, CodecLevel level, Streams& streams,
                    Bytes& out) {
  preamble.compressed = level->compress_controls != nullptr && level->compress_controls(controls, streams.frame);
  preamble.controls = preamble.compressed ? ByteView(streams.frame) : std::as_bytes(controls);
  AppendPreamble(preamble, out);
}

}  // namespace

void EncodeSparse(const ChangeView& changes, uint32_t unit, CodecLevel level, Bytes& out) {
  const size_t count = changes.size();
  Streams& streams = ThreadStreams();
  streams.Fit(count);
  uint8_t* const controls = streams.controls.data();
  const std::span codes(streams.codes.data(), count);
  Preamble preamble{.gap_bits = GapBits(changes), .count = count};
  kernels::SplitGaps(changes.positions.data(), count, preamble.gap_bits, streams.gaps.data(), controls);
  if (kernels::SplitSteps(changes.steps.data(), count, unit, 0, codes.data(), controls) > count / 8) {
    preamble.step_bits = StepBits(codes, unit);
    kernels::SplitSteps(changes.steps.data(), count, unit, preamble.step_bits, codes.data(), controls);
  }
  AppendControls(preamble, {controls, count}, level, streams, out);
  AppendLowBits(streams.gaps, count, preamble.gap_bits, out);
  AppendLowBits(streams.codes, count, preamble.step_bits, out);
  AppendEscapes(streams, streams.gaps, count, 0, preamble.gap_bits, out);
  AppendEscapes(streams, streams.codes, count, 4, preamble.step_bits, out);
}

Status DecodePositions(ByteView coded, uint32_t unit, size_t block_bytes, std::vector<uint32_t>& positions) {
  Streams& streams = ThreadStreams();
  LS_ASSIGN_OR_RETURN(OpenedBlock block, OpenBlock(coded, unit, block_bytes, streams));
  return TakePositions(block, block_bytes / unit, streams, positions);
}

Status DecodeSparse(ByteView coded, uint32_t unit, size_t block_bytes, Changes& changes) {
  Streams& streams = ThreadStreams();
  LS_ASSIGN_OR_RETURN(OpenedBlock block, OpenBlock(coded, unit, block_bytes, streams));
  LS_RETURN_IF_ERROR(TakePositions(block, block_bytes / unit, streams, changes.positions));
  LS_RETURN_IF_ERROR(TakeSteps(block, unit, streams, changes.steps));
  return block.reader.empty() ? OkStatus() : Corrupt("bytes after the last escape");
}

}  // namespace lockstep::payload
