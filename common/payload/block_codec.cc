#include "common/payload/block_codec.h"

#include <zstd.h>

#include <memory>

#include "common/base/text.h"

namespace lockstep {
namespace {

constexpr uint8_t kGapsCompressed = 1;
constexpr uint8_t kStepsCompressed = 2;
constexpr uint8_t kEscape = 0xff;
constexpr int kZstdLevel = 1;

Status Corrupt(const std::string& problem) {
  return {ErrorCode::kCorrupt, "coded block: " + problem};
}

// One pair of zstd contexts and stream buffers per thread: their set-up would cost more than a block.
struct Scratch {
  Bytes gaps;
  Bytes steps;
  Bytes compressed;
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> compressor{ZSTD_createCCtx(), ZSTD_freeCCtx};
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decompressor{ZSTD_createDCtx(), ZSTD_freeDCtx};
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Signed steps of small size become small codes: +1 -> 0, -1 -> 1, +2 -> 2, ... (zero never occurs).
uint64_t StepToCode(uint64_t step, uint32_t unit) {
  const int shift = 64 - 8 * static_cast<int>(unit);
  const int64_t value = static_cast<int64_t>(step << shift) >> shift;
  return value > 0 ? (static_cast<uint64_t>(value) - 1) * 2 : (~static_cast<uint64_t>(value)) * 2 + 1;
}

uint64_t CodeToStep(uint64_t code, uint32_t unit) {
  const uint64_t value = code % 2 == 0 ? code / 2 + 1 : ~(code / 2);
  return unit == 8 ? value : value & ((uint64_t{1} << (8 * unit)) - 1);
}

void AppendGaps(const ChangeView& changes, Bytes& out) {
  uint64_t next = 0;
  for (const uint32_t position : changes.positions) {
    const uint64_t gap = position - next;
    next = uint64_t{position} + 1;
    if (gap < kEscape) {
      out.push_back(static_cast<std::byte>(gap));
    } else {
      out.push_back(std::byte{kEscape});
      AppendVarint(out, gap - kEscape);
    }
  }
}

void AppendSteps(const ChangeView& changes, uint32_t unit, Bytes& out) {
  for (const uint64_t step : changes.steps) {
    const uint64_t code = StepToCode(step, unit);
    if (code < kEscape) {
      out.push_back(static_cast<std::byte>(code));
    } else {
      out.push_back(std::byte{kEscape});
      AppendBytes(out, AsBytes(step).first(unit));
    }
  }
}

// The stream to write for `raw`: itself, or its zstd form when that is smaller.
ByteView Compress(const Bytes& raw, Scratch& scratch, bool& compressed) {
  scratch.compressed.resize(ZSTD_compressBound(raw.size()));
  const size_t bytes = ZSTD_compressCCtx(scratch.compressor.get(), scratch.compressed.data(), scratch.compressed.size(),
                                         raw.data(), raw.size(), kZstdLevel);
  compressed = !ZSTD_isError(bytes) && bytes < raw.size();
  return compressed ? ByteView(scratch.compressed).first(bytes) : ByteView(raw);
}

// `stored` as it was before Compress; at most `limit` bytes.
Result<ByteView> Decompress(ByteView stored, bool compressed, size_t limit, Bytes& raw, Scratch& scratch) {
  if (!compressed) return stored;
  const unsigned long long bytes = ZSTD_getFrameContentSize(stored.data(), stored.size());
  if (bytes == ZSTD_CONTENTSIZE_UNKNOWN || bytes == ZSTD_CONTENTSIZE_ERROR || bytes > limit) {
    return Corrupt("a compressed stream has an impossible size");
  }
  raw.resize(bytes);
  const size_t got =
      ZSTD_decompressDCtx(scratch.decompressor.get(), raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(got) || got != bytes) return Corrupt("a compressed stream does not decompress");
  return ByteView(raw);
}

Status DecodeGaps(ByteView stream, uint64_t count, uint64_t elements, std::vector<uint32_t>& positions) {
  ByteReader reader(stream);
  uint64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint8_t byte = 0;
    if (!reader.Take(byte)) return Corrupt("the gap stream is truncated");
    uint64_t gap = byte;
    if (byte == kEscape) {
      if (!reader.TakeVarint(gap)) return Corrupt("the gap stream is truncated");
      if (gap > elements) return Corrupt("a gap leads past the end of the block");
      gap += kEscape;
    }
    if (gap >= elements - next) return Corrupt("a gap leads past the end of the block");
    positions.push_back(static_cast<uint32_t>(next + gap));
    next += gap + 1;
  }
  return reader.empty() ? OkStatus() : Corrupt("bytes after the last gap");
}

Status DecodeSteps(ByteView stream, uint64_t count, uint32_t unit, std::vector<uint64_t>& steps) {
  ByteReader reader(stream);
  for (uint64_t i = 0; i < count; ++i) {
    uint8_t byte = 0;
    if (!reader.Take(byte)) return Corrupt("the step stream is truncated");
    uint64_t step = CodeToStep(byte, unit);
    // Of one byte, +128 is −128, which is written as an escape.
    if (unit == 1 && byte == kEscape - 1) return Corrupt("a step code that no step has");
    if (byte == kEscape) {
      ByteView raw;
      if (!reader.TakeBytes(unit, raw)) return Corrupt("the step stream is truncated");
      step = 0;
      std::memcpy(&step, raw.data(), unit);
      if (step == 0 || StepToCode(step, unit) < kEscape) return Corrupt("a step is escaped that need not be");
    }
    steps.push_back(step);
  }
  return reader.empty() ? OkStatus() : Corrupt("bytes after the last step");
}

}  // namespace

void EncodeSparse(const ChangeView& changes, uint32_t unit, CodecLevel, Bytes& out) {
  Scratch& scratch = ThreadScratch();
  scratch.gaps.clear();
  scratch.steps.clear();
  AppendGaps(changes, scratch.gaps);
  AppendSteps(changes, unit, scratch.steps);

  const size_t flags_at = out.size();
  out.push_back(std::byte{0});
  AppendVarint(out, changes.size());
  bool compressed = false;
  const ByteView gaps = Compress(scratch.gaps, scratch, compressed);
  uint8_t flags = compressed ? kGapsCompressed : 0;
  AppendVarint(out, gaps.size());
  AppendBytes(out, gaps);
  AppendBytes(out, Compress(scratch.steps, scratch, compressed));
  if (compressed) flags |= kStepsCompressed;
  out[flags_at] = std::byte{flags};
}

Status DecodeSparse(ByteView coded, uint32_t unit, size_t block_bytes, Changes& changes) {
  changes.Clear();
  if (unit != 1 && unit != 2 && unit != 4 && unit != 8) return Corrupt(Cat("its unit is ", unit, " bytes"));
  const uint64_t elements = block_bytes / unit;
  ByteReader reader(coded);
  uint8_t flags = 0;
  uint64_t count = 0;
  uint64_t gap_bytes = 0;
  ByteView gaps;
  if (!reader.Take(flags) || !reader.TakeVarint(count) || !reader.TakeVarint(gap_bytes) ||
      !reader.TakeBytes(gap_bytes, gaps)) {
    return Corrupt("truncated");
  }
  if (flags > (kGapsCompressed | kStepsCompressed)) return Corrupt(Cat("unknown flags ", static_cast<int>(flags)));
  if (count == 0 || count > elements) return Corrupt(Cat(count, " changes among ", elements, " elements"));
  Scratch& scratch = ThreadScratch();
  // An escaped gap takes at most 1 + 10 bytes, an escaped step 1 + unit.
  LS_ASSIGN_OR_RETURN(const ByteView raw_gaps,
                      Decompress(gaps, flags & kGapsCompressed, count * 11, scratch.gaps, scratch));
  LS_ASSIGN_OR_RETURN(const ByteView raw_steps,
                      Decompress(reader.rest(), flags & kStepsCompressed, count * (1 + unit), scratch.steps, scratch));
  changes.positions.reserve(count);
  changes.steps.reserve(count);
  LS_RETURN_IF_ERROR(DecodeGaps(raw_gaps, count, elements, changes.positions));
  return DecodeSteps(raw_steps, count, unit, changes.steps);
}

void FoldChanges(const Changes& first, const Changes& second, uint32_t unit, Changes& folded) {
  folded.Clear();
  const uint64_t mask = unit == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * unit)) - 1;
  const auto add = [&](uint32_t position, uint64_t step) {
    if (step == 0) return;
    folded.positions.push_back(position);
    folded.steps.push_back(step);
  };
  size_t i = 0;
  size_t j = 0;
  while (i < first.size() || j < second.size()) {
    if (j == second.size() || (i < first.size() && first.positions[i] < second.positions[j])) {
      add(first.positions[i], first.steps[i]);
      ++i;
    } else if (i == first.size() || second.positions[j] < first.positions[i]) {
      add(second.positions[j], second.steps[j]);
      ++j;
    } else {
      add(first.positions[i], (first.steps[i] + second.steps[j]) & mask);
      ++i;
      ++j;
    }
  }
}

}  // namespace lockstep
