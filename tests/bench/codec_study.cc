// What the block codec makes of training's deltas, density by density: the tables that docs/performance.md quotes. Also
// what was measured and not built: positions in classes of the old value's exponent, and whole models in byte planes.
// One thread; times are of its processor alone, so that they mean the same on a busy machine.
//
//   codec_study [--quick]
#include <time.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "common/payload/block_codec.h"
#include "kernels/diff.h"
#include "tests/bench/adam_model.h"
#include "tests/bench/or_die.h"

namespace lockstep::bench {
namespace {

constexpr double kDensities[] = {0.0005, 0.003, 0.006, 0.009, 0.013, 0.025, 0.05, 0.1, 0.5};
constexpr uint32_t kUnit = 2;
constexpr size_t kMaxBlocks = 512;  // of every model, evenly spread

struct Sample {
  std::vector<Changes> blocks;  // with changes
  uint64_t changes = 0;
  uint64_t block_bytes = 0;
};

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Processor seconds of `body`: the median of `repeats`, after one that warms.
template <typename Body>
double MedianSeconds(int repeats, Body body) {
  body();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = ProcessorSeconds();
    body();
    seconds.push_back(ProcessorSeconds() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

// Order-0 entropy of whatever is counted.
class Entropy {
 public:
  void Add(uint64_t symbol) { ++counts_[symbol]; }
  double bits() const {
    double total = 0;
    for (const auto& [symbol, count] : counts_) total += static_cast<double>(count);
    double bits = 0;
    for (const auto& [symbol, count] : counts_) {
      bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
    }
    return bits;
  }

 private:
  std::unordered_map<uint64_t, uint64_t> counts_;
};

// Both versions of a model, and the blocks that are looked at.
class Pair {
 public:
  Pair(const AdamModel& model, WorkerPool& pool, double density) : layout_(*model.layout()) {
    const double rate = model.LearningRateFor(density);
    for (uint32_t version : {0, 1}) {
      halves_[version].resize(layout_.data_bytes());
      model.Write(version, rate, halves_[version], pool);
    }
    const uint32_t every = std::max<uint32_t>(1, layout_.block_count() / kMaxBlocks);
    for (BlockIndex block = 0; block < layout_.block_count(); block += every) {
      if (layout_.block_unit(block) == kUnit) blocks_.push_back(block);
    }
  }
  const std::vector<BlockIndex>& blocks() const { return blocks_; }
  ByteView block(uint32_t version, BlockIndex block) const {
    const ByteRange range = layout_.block_range(block);
    return ByteView(halves_[version]).subspan(range.offset, range.bytes);
  }
  Sample Changed() const {
    Sample sample;
    std::vector<uint32_t> positions(layout_.block_bytes() / kUnit);
    std::vector<uint64_t> steps(positions.size());
    sample.block_bytes = layout_.block_bytes();
    for (const BlockIndex index : blocks_) {
      const ByteView before = block(0, index);
      const size_t count = kernels::FindChangesAndHash(before.data(), block(1, index).data(), before.size(), kUnit,
                                                       positions.data(), steps.data())
                               .changes;
      if (count == 0) continue;
      sample.changes += count;
      sample.blocks.push_back({{positions.begin(), positions.begin() + static_cast<ptrdiff_t>(count)},
                               {steps.begin(), steps.begin() + static_cast<ptrdiff_t>(count)}});
    }
    return sample;
  }

 private:
  const ModelLayout& layout_;
  Bytes halves_[2];
  std::vector<BlockIndex> blocks_;
};

double BoundBytes(const Sample& sample) {
  Entropy gaps, steps;
  for (const Changes& block : sample.blocks) {
    uint32_t next = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      gaps.Add(block.positions[i] - next);
      steps.Add(block.steps[i]);
      next = block.positions[i] + 1;
    }
  }
  return (gaps.bits() + steps.bits()) / 8 / static_cast<double>(sample.changes);
}

// Of `body(block index)`, over all blocks: nanoseconds a change.
template <typename Body>
double NanosecondsPerChange(const Sample& sample, int repeats, Body body) {
  const double seconds = MedianSeconds(repeats, [&] {
    for (size_t i = 0; i < sample.blocks.size(); ++i) body(i);
  });
  return seconds * 1e9 / static_cast<double>(sample.changes);
}

struct LevelFigures {
  double bytes = 0;  // per change
  double encode_ns = 0;
  double decode_ns = 0;
  std::vector<Bytes> coded;

  LevelFigures(const Sample& sample, CodecLevel level, int repeats) : coded(sample.blocks.size()) {
    uint64_t total = 0;
    for (size_t i = 0; i < coded.size(); ++i) {
      EncodeSparse(sample.blocks[i], kUnit, level, coded[i]);
      total += coded[i].size();
    }
    bytes = static_cast<double>(total) / static_cast<double>(sample.changes);
    Bytes out;
    encode_ns = NanosecondsPerChange(sample, repeats, [&](size_t i) {
      out.clear();
      EncodeSparse(sample.blocks[i], kUnit, level, out);
    });
    Changes decoded;
    decode_ns = NanosecondsPerChange(
        sample, repeats, [&](size_t i) { OrDie(DecodeSparse(coded[i], kUnit, sample.block_bytes, decoded)); });
  }
};

void PrintCodecRow(const Sample& sample, size_t looked_at, int repeats) {
  const LevelFigures fast(sample, CodecLevel::kFast, repeats);
  const LevelFigures compact(sample, CodecLevel::kCompact, repeats);
  Bytes out;
  const double compact_ns = NanosecondsPerChange(sample, repeats, [&](size_t i) {
    out.clear();
    OrDie(RecodeSparse(fast.coded[i], kUnit, sample.block_bytes, CodecLevel::kCompact, out));
  });
  const double elements = static_cast<double>(looked_at) * static_cast<double>(sample.block_bytes / kUnit);
  const double bound = BoundBytes(sample);
  std::printf("| %.2f %% | %.3f | %.3f (%.2f) | %.3f (%.2f) | %.2f / %.2f | %.2f / %.2f | %.2f |\n",
              100 * static_cast<double>(sample.changes) / elements, bound, fast.bytes, fast.bytes / bound,
              compact.bytes, compact.bytes / bound, fast.encode_ns, compact.encode_ns, fast.decode_ns,
              compact.decode_ns, compact_ns);
  std::fflush(stdout);
}

// Positions counted among the elements of the same exponent: the bound, and what counting alone costs either end.
void PrintClassesRow(const Pair& pair, const Sample& sample, int repeats) {
  std::vector<Entropy> gaps(256), steps(256);
  std::vector<uint32_t> next(256), seen(256);
  const auto class_of = [](ByteView bytes, size_t i) {
    uint16_t value;
    std::memcpy(&value, bytes.data() + 2 * i, 2);
    return value >> 7 & 0xff;
  };
  uint64_t elements = 0;
  size_t at = 0;
  for (const BlockIndex block : pair.blocks()) {
    const ByteView old = pair.block(0, block);
    if (std::memcmp(old.data(), pair.block(1, block).data(), old.size()) == 0) continue;
    const Changes& changes = sample.blocks[at++];
    std::fill(next.begin(), next.end(), 0);
    std::fill(seen.begin(), seen.end(), 0);
    for (size_t i = 0, change = 0; i < old.size() / 2; ++i) {
      const auto exponent = static_cast<size_t>(class_of(old, i));
      if (change < changes.size() && changes.positions[change] == i) {
        gaps[exponent].Add(seen[exponent] - next[exponent]);
        steps[exponent].Add(changes.steps[change++]);
        next[exponent] = seen[exponent] + 1;
      }
      ++seen[exponent];
    }
    elements += old.size() / 2;
  }
  double bits = 0;
  for (size_t i = 0; i < gaps.size(); ++i) bits += gaps[i].bits() + steps[i].bits();
  const double counting = MedianSeconds(repeats, [&] {
    for (const BlockIndex block : pair.blocks()) {
      const ByteView old = pair.block(0, block);
      for (size_t i = 0; i < old.size() / 2; ++i) ++seen[static_cast<size_t>(class_of(old, i))];
    }
  });
  const double looked_at = static_cast<double>(pair.blocks().size()) * static_cast<double>(sample.block_bytes / 2);
  std::printf("| %.2f %% | %.3f | %.3f | %.2f |\n", 100 * static_cast<double>(sample.changes) / looked_at,
              BoundBytes(sample), bits / 8 / static_cast<double>(sample.changes), counting * 1e9 / looked_at);
  std::fflush(stdout);
}

// The bytes at `plane` of every element.
Bytes Plane(ByteView block, size_t plane) {
  Bytes bytes(block.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = block[2 * i + plane];
  return bytes;
}

struct PlanesWay {
  const char* name;
  bool high_bytes;  // of every element, the low ones stay as they are; else the block as it is
  bool matches;     // level 1; else literals alone, as the codec has its heads coded
};

ZSTD_CCtx* CompressorFor(const PlanesWay& way) {
  ZSTD_CCtx* const made = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(made, ZSTD_c_compressionLevel, 1);
  if (way.matches) return made;
  ZSTD_CCtx_setParameter(made, ZSTD_c_hashLog, 6);
  ZSTD_CCtx_setParameter(made, ZSTD_c_minMatch, 7);
  return made;
}

// Speeds are of the blocks' bytes; taking the planes apart is not counted.
void PrintPlanesRow(const Pair& pair, const PlanesWay& way, int repeats) {
  std::vector<Bytes> inputs, frames;
  double block_bytes = 0, stored = 0;
  for (const BlockIndex block : pair.blocks()) {
    const ByteView bytes = pair.block(0, block);
    inputs.push_back(way.high_bytes ? Plane(bytes, 1) : Bytes(bytes.begin(), bytes.end()));
    block_bytes += static_cast<double>(bytes.size());
    stored += static_cast<double>(bytes.size() - inputs.back().size());
  }
  frames.resize(inputs.size());
  ZSTD_CCtx* const compressor = CompressorFor(way);
  const double compress = MedianSeconds(repeats, [&] {
    for (size_t i = 0; i < inputs.size(); ++i) {
      frames[i].resize(ZSTD_compressBound(inputs[i].size()));
      frames[i].resize(
          ZSTD_compress2(compressor, frames[i].data(), frames[i].size(), inputs[i].data(), inputs[i].size()));
    }
  });
  ZSTD_freeCCtx(compressor);
  Bytes out(pair.block(0, 0).size());
  ZSTD_DCtx* const decompressor = ZSTD_createDCtx();
  const double decompress = MedianSeconds(repeats, [&] {
    for (const Bytes& frame : frames) {
      ZSTD_decompressDCtx(decompressor, out.data(), out.size(), frame.data(), frame.size());
    }
  });
  ZSTD_freeDCtx(decompressor);
  for (const Bytes& frame : frames) stored += static_cast<double>(frame.size());
  std::printf("| %s | %.3f | %.2f | %.2f |\n", way.name, stored / block_bytes, block_bytes / 1e9 / compress,
              block_bytes / 1e9 / decompress);
  std::fflush(stdout);
}

void Run(bool quick) {
  const int repeats = quick ? 1 : 15;
  WorkerPool pool(std::max(1u, std::thread::hardware_concurrency()));
  const AdamModel model(QwenLayout(quick ? 0.03 : 0.3));
  std::printf("| changed | entropy, B | fast, B | compact, B | encode, ns | decode, ns | fast to compact, ns |\n");
  std::printf("|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const double density : kDensities) {
    const Pair pair(model, pool, density);
    PrintCodecRow(pair.Changed(), pair.blocks().size(), repeats);
  }
  std::printf("\n| changed | entropy, B | in classes, B | counting, ns per element |\n|---:|---:|---:|---:|\n");
  for (const double density : {0.003, 0.009, 0.013, 0.05}) {
    const Pair pair(model, pool, density);
    PrintClassesRow(pair, pair.Changed(), std::min(repeats, 3));
  }
  std::printf("\n| whole blocks | of their bytes | compress, GB/s | decompress, GB/s |\n|---|---:|---:|---:|\n");
  const Pair pair(model, pool, 0.009);
  for (const PlanesWay& way :
       {PlanesWay{"as they are, zstd-1", false, true}, PlanesWay{"high bytes, zstd-1", true, true},
        PlanesWay{"high bytes, Huffman alone", true, false}}) {
    PrintPlanesRow(pair, way, std::min(repeats, 5));
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(argc > 1 && std::string_view(argv[1]) == "--quick");
}
