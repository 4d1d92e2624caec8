#include "trainer_agent/run/delta_job.h"

#include <algorithm>
#include <future>

#include "kernels/diff.h"
#include "kernels/hash.h"

namespace lockstep::run {
namespace {

// Enough blocks per task to make the queue's cost vanish, few enough to spread a commit's tail over all threads.
constexpr size_t kBlocksPerTask = 8;

// What differs between two images of a block; kept per thread at full size, so that it is neither allocated nor cleared
// again.
struct BlockScratch {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;
  Bytes coded;
};

BlockScratch& ThreadScratch() {
  thread_local BlockScratch scratch;
  return scratch;
}

struct BlockDiff {
  payload::ChangeView changes;
  uint64_t target_hash;
};

BlockDiff Compare(const std::byte* base, ByteView target, uint32_t unit, BlockScratch& scratch,
                  changes::ChangeCounter& counter) {
  const size_t elements = target.size() / unit;
  if (scratch.positions.size() < elements) {
    scratch.positions.resize(elements);
    scratch.steps.resize(elements);
  }
  auto count = [&](size_t first, size_t last) {
    counter.Take(std::span(scratch.positions).subspan(first, last - first));
  };
  const auto take = [](void* context, size_t first, size_t last) {
    (*static_cast<decltype(count)*>(context))(first, last);
  };
  const kernels::Diff diff = kernels::FindChangesAndHash(
      base, target.data(), target.size(), unit, scratch.positions.data(), scratch.steps.data(), {take, &count});
  return {{std::span(scratch.positions).first(diff.changes), std::span(scratch.steps).first(diff.changes)}, diff.hash};
}

// The smaller of the sparse and the raw form; raw bytes are lent.
payload::DeltaBlock Encode(BlockIndex block, ByteView target, uint32_t unit, const BlockDiff& diff,
                           payload::CodecLevel level, Bytes& coded) {
  payload::DeltaBlock delta{
      .block = block, .changes = static_cast<uint32_t>(diff.changes.size()), .target_hash = diff.target_hash};
  coded.clear();
  payload::EncodeSparse(diff.changes, unit, level, coded);
  if (coded.size() < target.size()) {
    delta.codec = payload::Codec::kSparse;
    delta.data = coded;
    delta.data_hash = Hash64(delta.data);
  } else {
    delta.codec = payload::Codec::kRaw;
    delta.lent = target;
    delta.data_hash = diff.target_hash;
  }
  return delta;
}

}  // namespace

DeltaJob::DeltaJob(WorkerPool* pool, DeltaInput input)
    : pool_(pool),
      input_(std::move(input)),
      hashes_(input_.layout->block_count()),
      deltas_(input_.base == nullptr ? 0 : input_.layout->block_count()),
      changes_(input_.layout->block_count()) {}

DeltaJob::~DeltaJob() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  idle_.wait(lock, [this]() LS_REQUIRES(mutex_) { return tasks_ == 0; });
}

void DeltaJob::BlocksReady(std::vector<BlockIndex> blocks) {
  MutexLock lock(mutex_);
  for (size_t at = 0; at < blocks.size(); at += kBlocksPerTask) {
    const size_t end = std::min(blocks.size(), at + kBlocksPerTask);
    Post({blocks.begin() + static_cast<std::ptrdiff_t>(at), blocks.begin() + static_cast<std::ptrdiff_t>(end)});
  }
}

void DeltaJob::Post(std::vector<BlockIndex> blocks) {
  ++tasks_;
  pool_->Post([this, blocks = std::move(blocks)] { Work(blocks); });
}

void DeltaJob::BlocksUnchanged(std::vector<BlockIndex> blocks) {
  if (input_.base == nullptr) return BlocksReady(std::move(blocks));
  for (const BlockIndex block : blocks) hashes_[block] = input_.base_manifest->block_hashes[block];
  MutexLock lock(mutex_);
  blocks_done_ += blocks.size();
  blocks_unread_ += blocks.size();
}

void DeltaJob::Work(const std::vector<BlockIndex>& blocks) {
  {
    MutexLock lock(mutex_);
    if (cancelled_) {
      if (--tasks_ == 0) idle_.notify_all();
      return;
    }
  }
  for (const BlockIndex block : blocks) WorkBlock(block);
  MutexLock lock(mutex_);
  blocks_done_ += blocks.size();
  if (done_ && blocks_done_ >= hashes_.size()) {
    const auto done = std::exchange(done_, nullptr);
    const size_t unread = blocks_unread_;
    lock.unlock();
    Complete(done, unread);
    lock.lock();
  }
  --tasks_;
  if (tasks_ == 0) idle_.notify_all();
}

void DeltaJob::WorkBlock(BlockIndex block) {
  const ByteRange range = input_.layout->block_range(block);
  const ByteView target(input_.target + range.offset, range.bytes);
  if (input_.base == nullptr) {
    hashes_[block] = model::BlockHash(target);
    changes_[block] = changes::CountNonfinite(*input_.layout, block, target);
    return;
  }
  BlockScratch& scratch = ThreadScratch();
  const uint32_t unit = input_.layout->block_unit(block);
  changes::ChangeCounter counter(*input_.layout, block, input_.base + range.offset, target.data());
  const BlockDiff diff = Compare(input_.base + range.offset, target, unit, scratch, counter);
  hashes_[block] = diff.target_hash;
  if (diff.changes.size() == 0) return;
  changes_[block] = counter.Finish();
  if (too_dense()) return;
  const auto delta =
      std::make_shared<payload::DeltaBlock>(Encode(block, target, unit, diff, input_.level, scratch.coded));
  coded_bytes_ += delta->bytes().size();
  if (input_.on_coded) input_.on_coded(delta->bytes().size());
  if (input_.on_block && !too_dense()) GiveEarly(delta);
  deltas_[block] = delta;
}

void DeltaJob::GiveEarly(const std::shared_ptr<payload::DeltaBlock>& delta) {
  const uint64_t bytes = delta->bytes().size();
  const uint64_t before = early_bytes_.fetch_add(bytes);
  if (before > input_.max_early_bytes) return;
  if (bytes > input_.max_early_bytes - before) return input_.on_block(nullptr);
  // The receiver of the call may keep the block, and the job's input is soon written over.
  if (!delta->lent.empty()) delta->data.assign(delta->lent.begin(), delta->lent.end());
  delta->lent = {};
  input_.on_block(delta);
}

void DeltaJob::Complete(const std::function<void(DeltaOutput)>& done, size_t blocks_unread) {
  DeltaOutput output{.block_hashes = std::move(hashes_), .blocks_unread = blocks_unread, .too_dense = too_dense()};
  for (std::shared_ptr<const payload::DeltaBlock>& delta : deltas_) {
    if (delta != nullptr && !output.too_dense) output.blocks.push_back(std::move(delta));
  }
  deltas_.clear();
  output.changes.resize(input_.layout->tensors().size());
  for (const changes::BlockChange& block : changes_) {
    for (const auto& [tensor, change] : block) output.changes[tensor].Add(change);
  }
  changes_.clear();
  done(std::move(output));
}

void DeltaJob::Finish(std::function<void(DeltaOutput)> done) {
  // A task of its own, so that `done` always runs on the pool, also when the last block is long worked.
  MutexLock lock(mutex_);
  done_ = std::move(done);
  Post({});
}

DeltaOutput DeltaJob::FinishAndWait() {
  std::promise<DeltaOutput> promise;
  Finish([&promise](DeltaOutput output) { promise.set_value(std::move(output)); });
  return promise.get_future().get();
}

}  // namespace lockstep::run
