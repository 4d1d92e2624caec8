#include "raas_receiver/targets/own_writes.h"

#include <algorithm>
#include <vector>

#include "raas_receiver/targets/rank_link.h"

namespace lockstep::targets {

// One of the half's memories, for whoever writes without knowing whose hand it is.
class OwnWrites::Memory : public placement::TargetMemory {
 public:
  Memory(OwnWrites& writes, uint32_t memory, uint64_t bytes) : writes_(writes), memory_(memory), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }

  Status Scatter(std::span<const placement::ScatterRun> runs) override {
    std::lock_guard lock(writes_.mutex_);
    for (const placement::ScatterRun& run : runs) LS_RETURN_IF_ERROR(writes_.Scatter(memory_, run));
    return OkStatus();
  }
  Status Copy(std::span<const layout::StridedCopy> copies, const std::byte* source) override {
    std::lock_guard lock(writes_.mutex_);
    for (const layout::StridedCopy& copy : copies) LS_RETURN_IF_ERROR(writes_.Copy(memory_, copy, source));
    return OkStatus();
  }
  Status Zero(std::span<const StridedRange> ranges) override {
    std::lock_guard lock(writes_.mutex_);
    for (const StridedRange& range : ranges) LS_RETURN_IF_ERROR(writes_.Zero(memory_, range));
    return OkStatus();
  }
  // Of the half's other memories too.
  Status Finish() override {
    std::lock_guard lock(writes_.mutex_);
    return writes_.Finish();
  }

  Result<bool> Equal(std::span<const layout::StridedCopy> copies, const std::byte* source) override {
    return Compare([&] {
      for (const layout::StridedCopy& copy : copies) LS_RETURN_IF_ERROR(writes_.Copy(memory_, copy, source));
      return OkStatus();
    });
  }
  Result<bool> IsZero(std::span<const StridedRange> ranges) override {
    return Compare([&] {
      for (const StridedRange& range : ranges) LS_RETURN_IF_ERROR(writes_.Zero(memory_, range));
      return OkStatus();
    });
  }

 private:
  template <typename Add>
  Result<bool> Compare(const Add& add) {
    std::lock_guard lock(writes_.mutex_);
    writes_.comparing_ = writes_.equal_ = true;
    Status compared = add();
    if (compared.ok()) compared = writes_.Finish();
    writes_.comparing_ = false;
    LS_RETURN_IF_ERROR(compared);
    return writes_.equal_;
  }

  OwnWrites& writes_;
  const uint32_t memory_;
  const uint64_t bytes_;
};

std::unique_ptr<placement::TargetMemory> OwnWrites::NewMemory(uint32_t memory, uint64_t bytes) {
  return std::make_unique<Memory>(*this, memory, bytes);
}

Status OwnWrites::Checked(Status status) {
  if (status.ok()) return status;
  link_.HangUp();
  failed_ = status;
  return status;
}

// A piece that the portion takes, or the next one.
template <typename Take>
Status OwnWrites::Add(const Take& take) {
  if (!failed_.ok()) return failed_;
  if (take()) return OkStatus();
  LS_RETURN_IF_ERROR(Pass());
  return take() ? OkStatus() : Status(ErrorCode::kInternal, "a piece is larger than a portion");
}

Status OwnWrites::Scatter(uint32_t memory, const placement::ScatterRun& run) {
  const size_t at_once = std::max<size_t>(1, builder_.piece_bytes() / (sizeof(uint32_t) + run.unit));
  for (size_t from = 0; from < run.offsets.size(); from += at_once) {
    const placement::ScatterRun piece{run.base, run.unit,
                                      run.offsets.subspan(from, std::min(at_once, run.offsets.size() - from)),
                                      run.values + from * run.unit};
    LS_RETURN_IF_ERROR(Add([&] { return builder_.Scatter(memory, piece); }));
  }
  return OkStatus();
}

Status OwnWrites::Copy(uint32_t memory, const layout::StridedCopy& copy, const std::byte* source) {
  std::vector<layout::StridedCopy> pieces;
  layout::AppendSplit(copy, builder_.piece_bytes(), layout::ElementBytes{}, pieces);
  for (const layout::StridedCopy& piece : pieces) {
    LS_RETURN_IF_ERROR(Add([&] { return builder_.Copy(memory, piece, source); }));
  }
  return OkStatus();
}

Status OwnWrites::Zero(uint32_t memory, const StridedRange& range) {
  return Add([&] { return builder_.Zero(memory, range); });
}

// The portion, however full it is, goes to the rank.
Status OwnWrites::Pass() {
  Result<os::UniqueFd> portion = builder_.Seal();
  LS_RETURN_IF_ERROR(portion.status());
  LS_RETURN_IF_ERROR(AwaitWritten());
  LS_RETURN_IF_ERROR(Checked(link_.Stage(half_, portion->get())));
  if (comparing_) {
    const Result<bool> equal = link_.Compare(half_);
    LS_RETURN_IF_ERROR(Checked(equal.status()));
    equal_ = equal_ && *equal;
  } else if (at_once_) {
    LS_RETURN_IF_ERROR(Checked(link_.StartWrite(half_, {})));
    awaiting_written_ = true;
  }
  return OkStatus();
}

Status OwnWrites::AwaitWritten() {
  if (!awaiting_written_) return OkStatus();
  awaiting_written_ = false;
  return Checked(link_.AwaitWritten());
}

Status OwnWrites::Finish() {
  if (!failed_.ok()) return failed_;
  const Status passed = builder_.empty() ? OkStatus() : Pass();
  const Status written = AwaitWritten();
  return passed.ok() ? written : passed;
}

Status OwnWrites::WriteLast(const Held& version) {
  std::lock_guard lock(mutex_);
  if (!failed_.ok()) return failed_;
  LS_RETURN_IF_ERROR(AwaitWritten());
  LS_RETURN_IF_ERROR(Checked(link_.StartWrite(half_, version)));
  awaiting_written_ = true;
  return OkStatus();
}

Status OwnWrites::AwaitLast() {
  std::lock_guard lock(mutex_);
  return failed_.ok() ? AwaitWritten() : failed_;
}

}  // namespace lockstep::targets
