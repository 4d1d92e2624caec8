#include "raas_receiver/engine/placement/writes/delta_writes.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "raas_receiver/engine/placement/writes/changed_units.h"

namespace lockstep::engine {
namespace {

// What all threads collect for all ranks, as long as write batches are no smaller than a million bytes.
constexpr uint64_t kCollectedBytes = uint64_t{256} << 20;
constexpr uint64_t kLeastCollectedBytes = uint64_t{1} << 20;  // by one thread, for one rank
// Each thread makes write batches of its own, and each write batch costs a rank's answer: for less another one is not
// worth it.
constexpr uint64_t kCodedBytesOfThread = uint64_t{2} << 20;
constexpr size_t kMostThreads = 16;

// A unit of a list is an offset and a value. From this part of a block on, the list is not worth it.
constexpr uint64_t kWholeBlockRatio = 6;

bool ListIsWorthIt(size_t units, uint32_t unit, uint64_t block_bytes) {
  return units * (sizeof(uint32_t) + unit) * kWholeBlockRatio < block_bytes;
}

}  // namespace

// One thread's write batches, one for each rank.
class DeltaWrites::Worker {
 public:
  // One of so many.
  Worker(const DeltaWrites& writes, size_t threads, const Pass& pass)
      : writes_(writes), units_(*writes.layout_, writes.chain_) {
    const uint64_t each =
        std::max(kLeastCollectedBytes, kCollectedBytes / std::max<size_t>(1, threads * writes.ranks_.size()));
    for (const uint32_t rank : writes.ranks_) {
      writers_.emplace_back(
          writes.data_, [rank, &pass](const os::UniqueFd& batch) { return pass(rank, batch); },
          std::min(writes.batch_bytes_, each));
    }
  }

  Status Add(std::span<const BlockIndex> blocks) {
    for (const BlockIndex block : blocks) LS_RETURN_IF_ERROR(AddBlock(block));
    return OkStatus();
  }
  Status Flush() {
    for (BatchWriter& writer : writers_) LS_RETURN_IF_ERROR(writer.Flush());
    return OkStatus();
  }
  uint64_t taken_bytes() const { return Sum(&BatchWriter::taken_bytes); }
  uint64_t written_bytes() const { return Sum(&BatchWriter::written_bytes); }

 private:
  Status AddBlock(BlockIndex block);
  uint64_t Sum(uint64_t (BatchWriter::*of)() const) const {
    uint64_t sum = 0;
    for (const BatchWriter& writer : writers_) sum += (writer.*of)();
    return sum;
  }

  const DeltaWrites& writes_;
  ChangedUnits units_;
  std::vector<BatchWriter> writers_;
};

Status DeltaWrites::Worker::AddBlock(BlockIndex block) {
  const ByteRange range = writes_.layout_->block_range(block);
  const uint32_t unit = writes_.layout_->block_unit(block);
  LS_RETURN_IF_ERROR(units_.Read(block));
  const bool listed = !units_.whole() && ListIsWorthIt(units_.positions().size(), unit, range.bytes);
  Status status;
  for (size_t i = 0; i < writers_.size(); ++i) {
    const RankPlacement& placement = (*writes_.plan_)[writes_.ranks_[i]];
    BatchWriter& writer = writers_[i];
    if (listed) {
      placement.ForEachRun(range, units_.positions(),
                           [&](uint32_t memory, uint64_t to, std::span<const uint32_t> positions) {
                             if (status.ok()) status = writer.Scatter(memory, unit, range.offset, to, positions);
                           });
    } else {
      placement.ForEachCopy(range, [&](uint32_t memory, const layout::StridedCopy& copy) {
        if (status.ok()) status = writer.Copy(memory, copy);
      });
    }
  }
  return status;
}

DeltaWrites::DeltaWrites(const PlacementPlan& plan, std::vector<uint32_t> ranks, const model::ModelLayout& layout,
                         payload::DeltaChain chain, std::span<const std::byte> data, uint64_t batch_bytes,
                         uint64_t chunk_bytes)
    : plan_(&plan),
      ranks_(std::move(ranks)),
      layout_(&layout),
      chain_(std::move(chain)),
      data_(data),
      batch_bytes_(batch_bytes),
      chunk_blocks_(std::max<size_t>(1, chunk_bytes / layout.block_bytes())) {}

Result<DeltaWrites> DeltaWrites::Create(const PlacementPlan& plan, std::vector<uint32_t> ranks,
                                        const model::ModelLayout& layout, payload::DeltaChain chain,
                                        std::span<const std::byte> data, uint64_t batch_bytes, uint64_t chunk_bytes) {
  DeltaWrites writes(plan, std::move(ranks), layout, std::move(chain), data, batch_bytes, chunk_bytes);
  LS_ASSIGN_OR_RETURN(writes.blocks_, ChangedBlocks(layout, writes.chain_));
  return writes;
}

size_t DeltaWrites::chunks() const {
  return (blocks_.size() + chunk_blocks_ - 1) / chunk_blocks_;
}

size_t DeltaWrites::Threads(const WorkerPool& pool) const {
  uint64_t coded_bytes = 0;
  for (const auto& delta : chain_) coded_bytes += delta->header().data_bytes;
  return std::min({pool.size() + 1, chunks() - next_, size_t{1} + coded_bytes / kCodedBytesOfThread, kMostThreads});
}

std::span<const BlockIndex> DeltaWrites::chunk(size_t index) const {
  const size_t first = index * chunk_blocks_;
  return std::span(blocks_).subspan(first, std::min(chunk_blocks_, blocks_.size() - first));
}

// Each thread takes the next chunk, until all are taken or `bytes` are: what was taken comes before what was not.
Status DeltaWrites::RunUntil(uint64_t& bytes, const Pass& pass, WorkerPool& pool) {
  std::atomic<size_t> next{next_};
  std::atomic<uint64_t> taken{0};
  std::atomic<uint64_t> written{0};
  std::atomic<bool> failed{false};
  const auto work = [&](Worker& worker) -> Status {
    uint64_t before = 0;
    while (taken < bytes && !failed) {
      const size_t index = next++;
      if (index >= chunks()) break;
      LS_RETURN_IF_ERROR(worker.Add(chunk(index)));
      taken += worker.taken_bytes() - before;
      before = worker.taken_bytes();
    }
    return worker.Flush();
  };
  const size_t threads = Threads(pool);
  const Status status = pool.ParallelTry(threads, [&](size_t) {
    Worker worker(*this, threads, pass);
    Status worked = work(worker);
    if (!worked.ok()) failed = true;
    written += worker.written_bytes();
    return worked;
  });
  next_ = std::min(next.load(), chunks());
  bytes -= std::min(bytes, taken.load());
  written_bytes_ += written;
  return status;
}

Status DeltaWrites::CheckRest(WorkerPool& pool) const {
  return pool.ParallelTry(chunks() - next_, [&](size_t i) {
    ChangedUnits units(*layout_, chain_);
    for (const BlockIndex block : chunk(next_ + i)) LS_RETURN_IF_ERROR(units.Read(block));
    return OkStatus();
  });
}

Status DeltaWrites::Stage(uint64_t& bytes, const Pass& pass, WorkerPool& pool) {
  LS_RETURN_IF_ERROR(RunUntil(bytes, pass, pool));
  return CheckRest(pool);
}

Status DeltaWrites::Run(const Pass& pass, WorkerPool& pool) {
  uint64_t no_limit = UINT64_MAX;
  return RunUntil(no_limit, pass, pool);
}

}  // namespace lockstep::engine
