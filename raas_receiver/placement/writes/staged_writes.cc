#include "raas_receiver/placement/writes/staged_writes.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace lockstep::placement {
namespace {

// What one thread takes at a time, in bytes of the data section: some tens of microseconds of changes, or a copy that
// goes past the caches.
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

using Writers = StagedWrites::Writers;

class FirstError {
 public:
  void Set(const Status& status) {
    if (status.ok()) return;
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  Status Get() {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  Status status_;
};

// Side by side: each may wait for a process of its own.
void FlushAll(const Writers& writers, WorkerPool& pool, FirstError& error) {
  pool.ParallelFor(writers.size(), [&](size_t i) {
    if (writers[i] != nullptr) error.Set(writers[i]->Flush());
  });
}

}  // namespace

Status StagedWrites::Write(const WriteList& list, const Writers& writers) const {
  for (const BufferWrites& writes : list.buffers) {
    const TargetBuffer& at = plan_->buffers()[writes.buffer];
    PortionWriter* const writer = writers[at.rank];
    if (writer == nullptr) continue;
    LS_RETURN_IF_ERROR(writer->Scatter(at.memory, writes.runs));
    LS_RETURN_IF_ERROR(writer->Copy(at.memory, writes.copies, data_.data()));
    LS_RETURN_IF_ERROR(writer->Zero(at.memory, writes.zeros));
  }
  return OkStatus();
}

Status StagedWrites::Stage(const model::ModelLayout& layout, uint64_t memory_limit, WorkerPool& pool) {
  LS_ASSIGN_OR_RETURN(blocks_, translator_->Blocks());
  const size_t at_once = std::max<size_t>(1, kChunkBytes / layout.block_bytes());
  const size_t chunks = (blocks_.size() + at_once - 1) / at_once;
  const auto chunk = [&](size_t i) {
    return std::span(blocks_).subspan(i * at_once, std::min(at_once, blocks_.size() - i * at_once));
  };
  std::vector<WriteList> staged(chunks);
  std::vector<char> kept(chunks);
  std::atomic<uint64_t> taken{0};
  FirstError error;
  pool.ParallelFor(chunks, [&](size_t i) {
    Result<WriteList> list = translator_->Translate(chunk(i));
    if (!list.ok()) return error.Set(list.status());
    staged[i] = *std::move(list);
    const bool fits = taken.fetch_add(staged[i].staged_bytes) + staged[i].staged_bytes <= memory_limit;
    kept[i] = fits ? 1 : 0;
    if (fits) return;
    taken.fetch_sub(staged[i].staged_bytes);
    staged[i].buffers.clear();
    staged[i].memory.reset();
  });
  LS_RETURN_IF_ERROR(error.Get());
  for (size_t i = 0; i < chunks; ++i) {
    stats_.positions += staged[i].positions;
    stats_.written_bytes += staged[i].written_bytes;
    if (!kept[i]) {
      late_.push_back(chunk(i));
      continue;
    }
    stats_.staged_bytes += staged[i].staged_bytes;
    lists_.push_back(std::move(staged[i]));
  }
  return OkStatus();
}

void StagedWrites::StageCopies(uint32_t buffer, std::span<const layout::StridedCopy> copies) {
  std::vector<layout::StridedCopy> parts;
  for (const layout::StridedCopy& copy : copies) layout::AppendSplit(copy, kChunkBytes, layout::ElementBytes{}, parts);
  for (size_t from = 0; from < parts.size();) {
    uint64_t bytes = 0;
    size_t to = from;
    while (to < parts.size() && (to == from || bytes + parts[to].bytes() <= kChunkBytes)) bytes += parts[to++].bytes();
    WriteList& list = lists_.emplace_back();
    list.buffers.push_back(
        {buffer, {}, {parts.begin() + static_cast<ptrdiff_t>(from), parts.begin() + static_cast<ptrdiff_t>(to)}, {}});
    stats_.written_bytes += bytes;
    stats_.staged_bytes += sizeof list + (to - from) * sizeof(layout::StridedCopy);
    from = to;
  }
}

void StagedWrites::StageZeros(uint32_t buffer, std::span<const StridedRange> zeros) {
  if (zeros.empty()) return;
  lists_.emplace_back().buffers.push_back({buffer, {}, {}, zeros});
  for (const StridedRange& range : zeros) stats_.written_bytes += range.bytes();
}

// Of each rank one list after the other, so that all have something to do. REQUIRES lists of one buffer each.
void StagedWrites::TakeTurns() {
  std::unordered_map<uint32_t, size_t> lists_of;  // by rank
  std::vector<std::pair<size_t, WriteList>> turns;
  for (WriteList& list : lists_) {
    const size_t turn = lists_of[plan_->buffers()[list.buffers.front().buffer].rank]++;
    turns.emplace_back(turn, std::move(list));
  }
  std::stable_sort(turns.begin(), turns.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < turns.size(); ++i) lists_[i] = std::move(turns[i].second);
}

size_t StagedWrites::TakeLists(uint64_t& bytes) const {
  for (size_t i = 0; i < lists_.size(); ++i) {
    const uint64_t takes = lists_[i].staged_bytes + lists_[i].written_bytes;
    if (takes > bytes) return i;
    bytes -= takes;
  }
  return lists_.size();
}

// A few chunks at a time: their lists must live until the writers are flushed.
Status StagedWrites::RunLate(const Writers& writers, WorkerPool& pool) const {
  FirstError error;
  const size_t at_once = 4 * (pool.size() + 1);
  for (size_t from = 0; from < late_.size() && error.Get().ok(); from += at_once) {
    std::vector<WriteList> wave(std::min(at_once, late_.size() - from));
    pool.ParallelFor(wave.size(), [&](size_t i) {
      Result<WriteList> list = translator_->Translate(late_[from + i]);
      if (!list.ok()) return error.Set(list.status());
      wave[i] = *std::move(list);
      error.Set(Write(wave[i], writers));
    });
    FlushAll(writers, pool, error);
  }
  return error.Get();
}

Result<StagedWrites> StagedWrites::FromChain(const PlacementPlan& plan, const model::ModelLayout& layout,
                                             payload::DeltaChain chain, std::span<const std::byte> data,
                                             const std::vector<bool>& wanted, uint64_t memory_limit, WorkerPool& pool) {
  StagedWrites writes(plan, data);
  writes.translator_ = std::make_unique<Translator>(plan, wanted, layout, std::move(chain), data);
  LS_RETURN_IF_ERROR(writes.Stage(layout, memory_limit, pool));
  return writes;
}

StagedWrites StagedWrites::Whole(const PlacementPlan& plan, std::span<const std::byte> data,
                                 const std::vector<bool>& wanted) {
  StagedWrites writes(plan, data);
  for (uint32_t buffer = 0; buffer < wanted.size(); ++buffer) {
    if (!wanted[buffer]) continue;
    writes.StageCopies(buffer, plan.copies(buffer));
    writes.StageZeros(buffer, plan.zeros(buffer));
  }
  writes.TakeTurns();
  return writes;
}

Status StagedWrites::RunLists(size_t from, size_t to, const Writers& writers, WorkerPool& pool) const {
  FirstError error;
  pool.ParallelFor(to - from, [&](size_t i) { error.Set(Write(lists_[from + i], writers)); });
  FlushAll(writers, pool, error);
  return error.Get();
}

Status StagedWrites::RunFirst(size_t lists, const Writers& writers, WorkerPool& pool) const {
  return RunLists(0, lists, writers, pool);
}

Status StagedWrites::RunRest(size_t lists, const Writers& writers, WorkerPool& pool) const {
  LS_RETURN_IF_ERROR(RunLists(lists, lists_.size(), writers, pool));
  return RunLate(writers, pool);
}

}  // namespace lockstep::placement
