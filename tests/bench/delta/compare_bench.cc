// Should a rank with weights in host memory compare while it copies? Three ways to publish and code a whole version,
// against a plain copy, at three sizes. All take turns, so each finds the caches and memory as another one left them.
//
//   copies      what is built: the rank copies into the idle slot, the agent's threads compare and code behind it
//   compares    the rank compares with the served slot while it copies, and the agent's threads code what it found
//   lists       the rank compares with the served slot and copies nothing; the agent's threads code what it found, and
//               bring the idle slot, which is a version behind, forward by two lists
//
// "blocked" lasts until the rank is done, "whole" until all is coded and hashed. Neither has the cost of handing the
// lists to another process: here rank and agent are one.
#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>

#include "common/os/segment.h"
#include "common/payload/block_codec.h"
#include "kernels/apply.h"
#include "kernels/copy_rows.h"
#include "kernels/diff.h"
#include "tests/bench/common/bench.h"
#include "tests/bench/common/models.h"
#include "tests/bench/delta/adam_model.h"
#include "tests/bench/delta/delta_pair.h"
#include "trainer_agent/run/delta_job.h"

namespace lockstep::bench {
namespace {

constexpr double kChanged = 0.01;
constexpr int kBackgroundNice = 10;   // of the agent's threads
constexpr size_t kBatchBlocks = 256;  // 64 MiB: what a rank reports at a time

struct Seconds {
  double blocked = 0;
  double whole = 0;
};

// The trainer's weights of two versions that follow each other for ever, and the agent's slots.
class Publisher {
 public:
  static constexpr uint64_t kCopiesOfModel = 5;  // with lists

  explicit Publisher(uint64_t bytes)
      : model_(QwenLayout(bytes)), layout_(*model_.layout()), pool_(Cores(), kBackgroundNice) {
    for (os::MappedSegment& memory : memory_) memory = OrDie(os::CreateMemfdSegment("version", this->bytes()));
    const double rate = model_.LearningRateFor(kChanged);
    for (uint32_t version : {0, 1}) {
      model_.Write(version, rate, weights(version), pool_);
      std::memcpy(slot(version).data(), weights(version).data(), this->bytes());
      changes_[version].resize(layout_.block_count());
      hashes_[version].resize(layout_.block_count());
    }
  }

  uint64_t bytes() const { return layout_.data_bytes(); }

  double PlainCopy() {
    return TimeOnce([&] { std::memcpy(idle().data(), weights(next_).data(), bytes()); });
  }

  // Each way starts with slot `served_` at the version before, the other slot one more behind, and leaves them so.
  // Lists() first needs the list of the version before: a turn of another way makes it.
  Seconds Copies() {
    run::DeltaJob job(
        &pool_,
        {.layout = model_.layout(), .target = idle().data(), .base = slot(served_).data(), .base_manifest = nullptr});
    return Timed(
        [&](const std::vector<BlockIndex>& blocks) {
          for (const BlockIndex block : blocks) Copy(block);
          job.BlocksReady(blocks);
        },
        [&] { (void)job.FinishAndWait(); });
  }

  Seconds Compares() {
    return TimedWithCoding(
        [&](BlockIndex block) {
          Compare(block);
          Copy(block);
        },
        [](BlockIndex) {});
  }

  Seconds Lists() {
    return TimedWithCoding([&](BlockIndex block) { Compare(block); }, [&](BlockIndex block) { Advance(block); });
  }

 private:
  std::span<std::byte> weights(size_t version) { return memory_[version].span(); }
  std::span<std::byte> slot(size_t which) { return memory_[2 + which].span(); }
  std::span<std::byte> idle() { return slot(1 - served_); }

  void Copy(BlockIndex block) {
    const ByteRange range = layout_.block_range(block);
    kernels::CopyRows(idle().data() + range.offset, 0, weights(next_).data() + range.offset, 0, 1, range.bytes);
  }

  void Compare(BlockIndex block) {
    thread_local payload::Changes scratch;
    const ByteRange range = layout_.block_range(block);
    const uint32_t unit = layout_.block_unit(block);
    scratch.positions.resize(range.bytes / unit);
    scratch.steps.resize(range.bytes / unit);
    const kernels::Diff diff =
        kernels::FindChangesAndHash(slot(served_).data() + range.offset, weights(next_).data() + range.offset,
                                    range.bytes, unit, scratch.positions.data(), scratch.steps.data());
    const auto count = static_cast<std::ptrdiff_t>(diff.changes);
    payload::Changes& found = changes_[next_][block];
    found.positions.assign(scratch.positions.begin(), scratch.positions.begin() + count);
    found.steps.assign(scratch.steps.begin(), scratch.steps.begin() + count);
    hashes_[next_][block] = diff.hash;
  }

  void Code(BlockIndex block) {
    thread_local Bytes coded;
    coded.clear();
    const payload::Changes& found = changes_[next_][block];
    if (found.size() != 0) payload::EncodeSparse(found, layout_.block_unit(block), payload::CodecLevel::kFast, coded);
    coded_bytes_ += coded.size();
  }

  // The idle slot has neither the changes of the version before nor those of this one.
  void Advance(BlockIndex block) {
    const ByteRange range = layout_.block_range(block);
    std::array<kernels::BlockChanges, 2> both;
    for (size_t i : {0, 1}) {
      const payload::Changes& list = changes_[i == 0 ? 1 - next_ : next_][block];
      both[i] = {list.positions.data(), list.steps.data(), list.size()};
    }
    const uint64_t hash =
        kernels::AddStepsAndHash(idle().data() + range.offset, range.bytes, layout_.block_unit(block), both);
    Require(hash == hashes_[next_][block], "a block was brought forward wrongly");
  }

  // `give` is the rank's, batch by batch; `finish` waits for the agent's threads.
  template <typename Give, typename Finish>
  Seconds Timed(const Give& give, const Finish& finish) {
    const std::vector<BlockIndex> all = layout_.AllBlocks();
    Seconds seconds;
    seconds.whole = TimeOnce([&] {
      seconds.blocked = TimeOnce([&] {
        for (size_t first = 0; first < all.size(); first += kBatchBlocks) {
          const size_t last = std::min(first + kBatchBlocks, all.size());
          give(std::vector<BlockIndex>(&all[first], all.data() + last));
        }
      });
      finish();
    });
    served_ = 1 - served_;
    next_ = 1 - next_;
    return seconds;
  }

  template <typename Rank, typename Agent>
  Seconds TimedWithCoding(const Rank& rank, const Agent& agent) {
    std::latch done(layout_.block_count());
    return Timed(
        [&](const std::vector<BlockIndex>& blocks) {
          for (const BlockIndex block : blocks) rank(block);
          pool_.Post([&, blocks] {
            for (const BlockIndex block : blocks) {
              Code(block);
              agent(block);
              done.count_down();
            }
          });
        },
        [&] { done.wait(); });
  }

  const AdamModel model_;
  const model::ModelLayout& layout_;
  std::array<os::MappedSegment, 4> memory_;  // weights of two versions, two slots
  // By version: what changed from the other, and its hashes.
  std::vector<payload::Changes> changes_[2];
  std::vector<uint64_t> hashes_[2];
  WorkerPool pool_;
  std::atomic<uint64_t> coded_bytes_ = 0;
  size_t served_ = 1;  // this slot has version 1
  size_t next_ = 0;    // so this is published next
};

struct Way {
  const char* name;
  Seconds (Publisher::*publish)();
  std::vector<double> blocked, whole;
};

void Measure(uint64_t bytes, int repeats, bool largest) {
  Publisher publisher(FittingBytes(bytes, Publisher::kCopiesOfModel));
  Way ways[] = {{"copies", &Publisher::Copies}, {"compares", &Publisher::Compares}, {"lists", &Publisher::Lists}};
  std::vector<double> copied;
  for (int turn = -1; turn < repeats; ++turn) {  // the first one warms memory
    for (Way& way : ways) {
      const double copy = publisher.PlainCopy();
      const Seconds seconds = (publisher.*way.publish)();
      if (turn < 0) continue;
      copied.push_back(copy);
      way.blocked.push_back(seconds.blocked);
      way.whole.push_back(seconds.whole);
    }
  }
  for (const Way& way : ways) {
    PrintRow("compare_while_copying", "plain copies",
             {{"way", way.name},
              {"model_bytes", publisher.bytes()},
              {"blocked", Median(way.blocked) / Median(copied)},
              {"whole", Median(way.whole) / Median(copied)}});
  }
  if (largest) PrintResult("compare_while_copying", "s", publisher.bytes(), ways[1].whole, ways[0].whole);
}

}  // namespace

void Run(bool quick) {
  const std::vector<uint64_t> sizes = quick ? std::vector<uint64_t>{10'000'000, 20'000'000}
                                            : std::vector<uint64_t>{300'000'000, 1'520'000'000, 3'040'000'000};
  for (const uint64_t bytes : sizes) Measure(bytes, quick ? 2 : 9, bytes == sizes.back());
}

}  // namespace lockstep::bench
