#include "export_plugin/exporter/bucket_intake.h"

#include <algorithm>
#include <numeric>

#include "common/base/text.h"
#include "kernels/hash.h"

namespace lockstep::exporter {
namespace {

constexpr size_t kSlots = 2;

Status Skipped(uint32_t rank, Version to, Version version) {
  return {ErrorCode::kAborted, Cat("rank ", rank, " skipped version ", version, " and sent version ", to,
                                   "; its own error says why. The version after ", to, " has all ranks again")};
}

}  // namespace

uint64_t LargestPayload(const std::vector<RemoteRank>& remote) {
  uint64_t largest = 0;
  for (const RemoteRank& rank : remote) largest = std::max(largest, rank.buckets.largest_payload());
  return largest;
}

BucketIntake::BucketIntake(const layout::PlanDigest& plan, std::vector<RemoteRank> remote,
                           std::unique_ptr<BucketMemory> memory, TrackedExchange* exchange, CopyEngine* engine)
    : plan_(plan), exchange_(exchange), engine_(engine), memory_(std::move(memory)) {
  for (RemoteRank& rank : remote) sources_.push_back({.remote = std::move(rank)});
}

void BucketIntake::AddTo(wire::Share& share) {
  for (Source& source : sources_) {
    source.first_batch = static_cast<uint32_t>(share.batch_ends.size());
    for (const Bucket& bucket : source.remote.buckets.all) share.Add(bucket.completed);
  }
}

std::vector<StridedRange> BucketIntake::Ranges(bool frozen_only) const {
  std::vector<StridedRange> ranges;
  for (const Source& source : sources_) {
    const auto& [all, changing] = source.remote.buckets;
    for (size_t i = frozen_only ? changing : 0; i < all.size(); ++i) {
      ranges.insert(ranges.end(), all[i].completed.begin(), all[i].completed.end());
    }
  }
  return ranges;
}

void BucketIntake::StartSet(size_t source) {
  sources_[source].started = 0;
  sources_[source].taken = 0;
  sources_[source].count = sources_[source].remote.buckets.changing;
  sources_[source].version.reset();
  sources_[source].error = OkStatus();
  sources_to_start_.push_back(source);
}

void BucketIntake::StartReceive(size_t slot) {
  if (sources_to_start_.empty()) return;
  const size_t next = sources_to_start_.front();
  sources_to_start_.pop_front();
  Source& source = sources_[next];
  const uint64_t bytes = sizeof(BucketHeader) + source.remote.buckets.all[source.started].payload_bytes;
  under_way_.push_back(
      {next, source.started, slot, exchange_->Receive(source.remote.rank, memory_->message(slot), bytes)});
  if (++source.started < source.count) sources_to_start_.push_back(next);
}

void BucketIntake::Start(Version version) {
  for (size_t source = 0; source < sources_.size(); ++source) {
    if (sources_[source].newer_set < version) StartSet(source);
  }
  for (size_t slot = 0; slot < kSlots; ++slot) StartReceive(slot);
}

Status BucketIntake::TakeAll(const IntakeTarget& target, PublishStats& stats) {
  stats.exchange_memory_bytes = memory_->bytes();
  Status status;
  for (Source& source : sources_) {
    if (source.newer_set < target.version) continue;
    if (status.ok()) status = Skipped(source.remote.rank, source.newer_set, target.version);
    if (source.newer_set == target.version) source.newer_set = 0;
  }
  while (!under_way_.empty()) {
    Receive receive = under_way_.front();
    under_way_.pop_front();
    Source& source = sources_[receive.source];
    exchange_->Wait(receive.pending);
    const bool wanted = status.ok() && source.error.ok() && target.data != nullptr;
    if (exchange_->Alive(source.remote.rank)) {
      ++stats.buckets_received;
      stats.bytes_received += source.remote.buckets.all[receive.bucket].payload_bytes;
      const Result<BucketHeader> header = memory_->ReadHeader(memory_->message(receive.slot));
      if (receive.bucket == 0) LearnCount(receive, header);
      const Status taken = TakeBucket(receive, header, target, wanted);
      if (source.error.ok()) source.error = taken;
    }
    if (++source.taken == source.count) {
      const Status ended = EndSet(receive.source, target, wanted);
      if (status.ok()) status = ended;
    }
    StartReceive(receive.slot);
  }
  return status;
}

// A header that is damaged says nothing: then the set is taken for what was asked for.
void BucketIntake::LearnCount(const Receive& receive, const Result<BucketHeader>& header) {
  Source& source = sources_[receive.source];
  const auto all = static_cast<uint32_t>(source.remote.buckets.all.size());
  const bool readable = header.ok() && CheckHeader(*header, source.remote.rank).ok();
  const bool with_frozen = readable ? header->count == all : source.wanted_frozen;
  if (!with_frozen || source.count == all) return;
  if (source.started == source.count) sources_to_start_.push_back(receive.source);
  source.count = all;
}

Status BucketIntake::TakeBucket(const Receive& receive, const Result<BucketHeader>& read, const IntakeTarget& target,
                                bool wanted) {
  Source& source = sources_[receive.source];
  const Bucket& bucket = source.remote.buckets.all[receive.bucket];
  LS_ASSIGN_OR_RETURN(const BucketHeader header, read);
  LS_RETURN_IF_ERROR(CheckHeader(header, source.remote.rank));
  if (!source.version && header.plan == plan_) source.version = header.version;
  if (source.version && *source.version != target.version) return OkStatus();  // EndSet() says what that means
  const BucketPlace expected{.kind = memory_->bucket_kind(),
                             .version = target.version,
                             .plan = plan_,
                             .index = receive.bucket,
                             .count = source.count,
                             .payload_bytes = bucket.payload_bytes};
  LS_ASSIGN_OR_RETURN(const uint64_t hash, memory_->PayloadHash(receive.slot, bucket.payload_bytes));
  LS_RETURN_IF_ERROR(CheckBucket(header, expected, hash, source.remote.rank));
  const bool frozen = receive.bucket >= source.remote.buckets.changing;
  if (!wanted || (frozen && target.holds_frozen)) return OkStatus();
  placed_.clear();
  for (const LocalCopy& copy : bucket.copies) {
    placed_.push_back({memory_->payload(receive.slot), target.data, copy.copy});
  }
  LS_RETURN_IF_ERROR(engine_->Run(placed_));
  const uint32_t batch = source.first_batch + receive.bucket;
  return target.done({&batch, 1});
}

Status BucketIntake::ReportFrozen(const Source& source, const IntakeTarget& target) {
  const auto& [all, changing] = source.remote.buckets;
  if (!target.holds_frozen && source.count < all.size()) {
    return {ErrorCode::kAborted, Cat("rank ", source.remote.rank, " sent version ", target.version,
                                     " without its frozen tensors, which are not here yet; it is asked for them")};
  }
  if (!target.holds_frozen || changing == all.size()) return OkStatus();
  std::vector<uint32_t> frozen(all.size() - changing);
  std::iota(frozen.begin(), frozen.end(), source.first_batch + changing);
  return target.unchanged(frozen);
}

Status BucketIntake::EndSet(size_t index, const IntakeTarget& target, bool wanted) {
  Source& source = sources_[index];
  if (!exchange_->Alive(source.remote.rank)) return exchange_->status();
  if (source.version && *source.version < target.version) {
    Source* const to[] = {&source};
    SendAnswer(to, target.version, ErrorCode::kAborted, !target.holds_frozen);
    if (!exchange_->status().ok()) return exchange_->status();  // the answer was the last one
    StartSet(index);
    return OkStatus();
  }
  source.awaits_answer = true;
  if (!source.version || *source.version == target.version) {
    LS_RETURN_IF_ERROR(source.error);
    return wanted ? ReportFrozen(source, target) : OkStatus();
  }
  source.newer_set = *source.version;
  return Skipped(source.remote.rank, source.newer_set, target.version);
}

void BucketIntake::SendAnswer(std::span<Source* const> sources, Version version, ErrorCode code, bool wants_frozen) {
  const BucketKind kind = exchange_->status().ok() ? BucketKind::kAnswer : BucketKind::kLastAnswer;
  const BucketPlace place{.kind = kind, .version = version, .plan = plan_, .index = wants_frozen ? 1u : 0u};
  const Status written = memory_->WriteHeader(memory_->answer(), MakeHeader(place, code, Hash64(nullptr, 0)));
  std::vector<TrackedExchange::Pending> pending;
  for (Source* source : sources) {
    source->awaits_answer = false;
    source->wanted_frozen = wants_frozen;
    if (!written.ok()) exchange_->Lose(source->remote.rank, written);
    pending.push_back(exchange_->Send(source->remote.rank, memory_->answer(), sizeof(BucketHeader)));
  }
  for (TrackedExchange::Pending& one : pending) exchange_->Wait(one);
}

void BucketIntake::Answer(Version version, ErrorCode code, bool wants_frozen) {
  std::vector<Source*> waiting;
  for (Source& source : sources_) {
    if (source.awaits_answer) waiting.push_back(&source);
  }
  SendAnswer(waiting, version, code, wants_frozen);
}

}  // namespace lockstep::exporter
