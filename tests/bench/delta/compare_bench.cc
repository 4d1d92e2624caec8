// Should a rank with weights in host memory compare while it copies? This measures three ways to publish and code a
// whole version, against a plain copy, at three sizes. All take turns, so each finds the caches and memory as another
// one left them.
//
//   copies      what is built: the rank copies into the idle slot, the agent's threads compare and code behind it
//   compares    the rank compares with the served slot while it copies, and the agent's threads code what it found
//   lists       the rank compares with the served slot and copies nothing; the agent's threads code what it found, and
//               bring the idle slot, which is a version behind, forward by two lists
//
// "blocked" lasts until the rank is done, "whole" until all is coded and hashed. Neither has the cost of handing the
// lists to another process: here rank and agent are one.
//
//   compare_bench [--quick]
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <thread>

#include "common/os/segment.h"
#include "common/payload/block_codec.h"
#include "kernels/apply.h"
#include "kernels/copy_rows.h"
#include "kernels/diff.h"
#include "tests/bench/common/memory.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/qwen_layout.h"
#include "tests/bench/common/report.h"
#include "tests/bench/delta/adam_model.h"
#include "trainer_agent/delta/delta_job.h"

namespace lockstep::bench {
namespace {

constexpr double kChanged = 0.01;
constexpr int kBackgroundNice = 10;   // of the agent's threads
constexpr size_t kBatchBlocks = 256;  // 64 MiB: what a rank reports at a time

struct Options {
  std::vector<uint64_t> bytes = {300'000'000, 1'520'000'000, 3'040'000'000};
  int repeats = 9;
};

struct Lists {
  std::vector<payload::Changes> blocks;
  std::vector<uint64_t> hashes;
};

struct Seconds {
  double blocked = 0;
  double whole = 0;
};

// The trainer's weights of two versions that follow each other for ever, and the agent's slots.
class Publisher {
 public:
  static constexpr uint64_t kCopiesOfModel = 5;  // with lists

  explicit Publisher(uint64_t bytes)
      : model_(QwenLayout(bytes)), layout_(model_.layout()), pool_(std::max(1u, std::thread::hardware_concurrency())) {
    for (os::MappedSegment& memory : memory_) {
      memory = OrDie(os::CreateMemfdSegment("version", layout_->data_bytes()));
    }
    const double rate = model_.LearningRateFor(kChanged);
    for (uint32_t version : {0, 1}) {
      model_.Write(version, rate, weights(version), pool_);
      std::memcpy(slot(version).data(), weights(version).data(), bytes_of_model());
      lists_[version].blocks.resize(layout_->block_count());
      lists_[version].hashes.resize(layout_->block_count());
    }
    // Shared: a thread may still wait when this one, awake before it, has returned.
    const auto all = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(pool_.size()) + 1);
    for (size_t i = 0; i < pool_.size(); ++i) {
      pool_.Post([all] {
        (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kBackgroundNice);
        all->arrive_and_wait();
      });
    }
    all->arrive_and_wait();
  }

  uint64_t bytes_of_model() const { return layout_->data_bytes(); }

  // `lists` first needs the list of the version before: a turn of another way makes it.
  //
  // Each way starts with slot `served_` at the version before, the other slot one more behind, and leaves them so.
  Seconds Copies() {
    delta::DeltaJob job(
        &pool_, {.layout = layout_, .target = idle().data(), .base = slot(served_).data(), .base_manifest = nullptr});
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

  double PlainCopy() {
    return TimeOnce([&] { std::memcpy(idle().data(), weights(next_).data(), bytes_of_model()); });
  }

 private:
  std::span<std::byte> weights(size_t version) { return memory_[version].span(); }
  std::span<std::byte> slot(size_t which) { return memory_[2 + which].span(); }
  std::span<std::byte> idle() { return slot(1 - served_); }

  void Copy(BlockIndex block) {
    const ByteRange range = layout_->block_range(block);
    kernels::CopyRows(idle().data() + range.offset, 0, weights(next_).data() + range.offset, 0, 1, range.bytes);
  }

  void Compare(BlockIndex block) {
    thread_local payload::Changes scratch;
    const ByteRange range = layout_->block_range(block);
    const uint32_t unit = layout_->block_unit(block);
    scratch.positions.resize(range.bytes / unit);
    scratch.steps.resize(range.bytes / unit);
    const kernels::Diff diff =
        kernels::FindChangesAndHash(slot(served_).data() + range.offset, weights(next_).data() + range.offset,
                                    range.bytes, unit, scratch.positions.data(), scratch.steps.data());
    payload::Changes& found = lists_[next_].blocks[block];
    found.positions.assign(scratch.positions.begin(),
                           scratch.positions.begin() + static_cast<std::ptrdiff_t>(diff.changes));
    found.steps.assign(scratch.steps.begin(), scratch.steps.begin() + static_cast<std::ptrdiff_t>(diff.changes));
    lists_[next_].hashes[block] = diff.hash;
  }

  void Code(BlockIndex block) {
    thread_local Bytes coded;
    coded.clear();
    const payload::Changes& found = lists_[next_].blocks[block];
    if (found.size() != 0) payload::EncodeSparse(found, layout_->block_unit(block), payload::CodecLevel::kFast, coded);
    coded_bytes_ += coded.size();
  }

  // The idle slot has neither the changes of the version before nor those of this one.
  void Advance(BlockIndex block) {
    const ByteRange range = layout_->block_range(block);
    std::array<kernels::BlockChanges, 2> both;
    for (size_t i : {0, 1}) {
      const payload::Changes& list = lists_[i == 0 ? 1 - next_ : next_].blocks[block];
      both[i] = {list.positions.data(), list.steps.data(), list.size()};
    }
    const uint64_t hash =
        kernels::AddStepsAndHash(idle().data() + range.offset, range.bytes, layout_->block_unit(block), both);
    if (hash != lists_[next_].hashes[block]) Fail({ErrorCode::kInternal, "a block was brought forward wrongly"});
  }

  // `give` is the rank's, batch by batch; `finish` waits for the agent's threads.
  template <typename Give, typename Finish>
  Seconds Timed(const Give& give, const Finish& finish) {
    Seconds seconds;
    seconds.whole = TimeOnce([&] {
      seconds.blocked = TimeOnce([&] {
        for (BlockIndex first = 0; first < layout_->block_count(); first += kBatchBlocks) {
          std::vector<BlockIndex> blocks;
          for (BlockIndex block = first; block < std::min<size_t>(first + kBatchBlocks, layout_->block_count());
               ++block) {
            blocks.push_back(block);
          }
          give(blocks);
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
    std::latch done(layout_->block_count());
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
  const std::shared_ptr<const model::ModelLayout> layout_;
  std::array<os::MappedSegment, 4> memory_;  // weights of two versions, two slots
  struct Lists lists_[2];                    // by version: what changed from the other
  WorkerPool pool_;
  std::atomic<uint64_t> coded_bytes_ = 0;
  size_t served_ = 1;  // this slot has version 1
  size_t next_ = 0;    // so this is published next
};

struct Way {
  const char* name;
  Seconds (Publisher::*publish)();
};
constexpr Way kWays[] = {
    {"copies", &Publisher::Copies}, {"compares", &Publisher::Compares}, {"lists", &Publisher::Lists}};

struct Samples {
  std::vector<double> blocked, whole;
};

std::vector<Samples> Measure(Publisher& publisher, int repeats, std::vector<double>& copied) {
  std::vector<Samples> samples(std::size(kWays));
  for (int turn = -1; turn < repeats; ++turn) {  // the first one warms memory
    for (size_t way = 0; way < std::size(kWays); ++way) {
      const double copy = publisher.PlainCopy();
      const Seconds seconds = (publisher.*kWays[way].publish)();
      if (turn < 0) continue;
      copied.push_back(copy);
      samples[way].blocked.push_back(seconds.blocked);
      samples[way].whole.push_back(seconds.whole);
    }
  }
  return samples;
}

void Run(const Options& options) {
  for (const uint64_t bytes : options.bytes) {
    Publisher publisher(FittingBytes(bytes, Publisher::kCopiesOfModel));
    std::vector<double> copied;
    const std::vector<Samples> samples = Measure(publisher, options.repeats, copied);
    for (size_t way = 0; way < samples.size(); ++way) {
      PrintRow("compare_while_copying", "plain copies",
               {{"way", kWays[way].name},
                {"model_bytes", publisher.bytes_of_model()},
                {"blocked", Median(samples[way].blocked) / Median(copied)},
                {"whole", Median(samples[way].whole) / Median(copied)}});
    }
    if (bytes != options.bytes.back()) continue;
    PrintResult("compare_while_copying", "s", publisher.bytes_of_model(), samples[1].whole, samples[0].whole);
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Options options;
  if (lockstep::bench::IsQuick(argc, argv)) options = {.bytes = {10'000'000, 20'000'000}, .repeats = 2};
  lockstep::bench::Run(options);
}
