#include "trainer_agent/export_plugin/exporter/bucket_intake.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {
namespace {

constexpr size_t kSlots = 2;

uint64_t LargestPayload(const std::vector<RemoteShare>& shares) {
  uint64_t largest = 0;
  for (const RemoteShare& share : shares) {
    for (const IncomingBucket& bucket : share.buckets) largest = std::max(largest, bucket.payload_bytes);
  }
  return largest;
}

Status WentOn(uint32_t rank, Version to, Version without) {
  return {ErrorCode::kAborted, Cat("rank ", rank, " went on to version ", to, " without version ", without,
                                   "; its own error says why. The version after ", to, " has all ranks again")};
}

}  // namespace

BucketIntake::BucketIntake(const PlanDigest& plan, std::vector<RemoteShare> shares, Link* link, CopyEngine* engine)
    : plan_(plan), link_(link), engine_(engine), memory_(LargestPayload(shares)) {
  for (RemoteShare& share : shares) sources_.push_back({.share = std::move(share)});
}

void BucketIntake::StartSet(size_t source) {
  sources_[source].started = 0;
  sources_[source].taken = 0;
  sources_[source].version.reset();
  sources_[source].error = OkStatus();
  turns_.push_back(source);
}

void BucketIntake::StartReceive(size_t slot) {
  if (turns_.empty()) return;
  const size_t next = turns_.front();
  turns_.pop_front();
  Source& source = sources_[next];
  const uint64_t bytes = sizeof(BucketHeader) + source.share.buckets[source.started].payload_bytes;
  under_way_.push_back({next, source.started, slot, link_->Receive(source.share.rank, memory_.message(slot), bytes)});
  if (++source.started < source.share.buckets.size()) turns_.push_back(next);
}

void BucketIntake::Start(Version version) {
  for (size_t source = 0; source < sources_.size(); ++source) {
    if (sources_[source].spent < version) StartSet(source);
  }
  for (size_t slot = 0; slot < kSlots; ++slot) StartReceive(slot);
}

Status BucketIntake::TakeAll(Version version, std::byte* data, const Tell& tell, PublishStats& stats) {
  stats.exchange_memory_bytes = memory_.bytes();
  Status status;
  for (Source& source : sources_) {
    if (source.spent < version) continue;
    if (status.ok()) status = WentOn(source.share.rank, source.spent, version);
    if (source.spent == version) source.spent = 0;
  }
  while (!under_way_.empty()) {
    Receive receive = under_way_.front();
    under_way_.pop_front();
    Source& source = sources_[receive.source];
    link_->Wait(receive.pending);
    if (link_->Alive(source.share.rank)) {
      ++stats.buckets_received;
      stats.bytes_received += source.share.buckets[receive.bucket].payload_bytes;
      const bool wanted = status.ok() && source.error.ok();
      const Status taken = TakeBucket(receive, version, wanted ? data : nullptr, tell);
      if (source.error.ok()) source.error = taken;
    }
    if (++source.taken == source.share.buckets.size()) {
      const Status ended = EndSet(receive.source, version);
      if (status.ok()) status = ended;
    }
    StartReceive(receive.slot);
  }
  return status;
}

Status BucketIntake::TakeBucket(const Receive& receive, Version version, std::byte* data, const Tell& tell) {
  Source& source = sources_[receive.source];
  const IncomingBucket& bucket = source.share.buckets[receive.bucket];
  const BucketHeader header = memory_.header(receive.slot);
  LS_RETURN_IF_ERROR(CheckHeader(header, source.share.rank));
  if (!source.version && header.plan == plan_) source.version = header.version;
  if (source.version && *source.version != version) return OkStatus();  // the end of the set says what that means
  const BucketPlace expected{.version = version,
                             .plan = plan_,
                             .index = receive.bucket,
                             .count = static_cast<uint32_t>(source.share.buckets.size()),
                             .payload_bytes = bucket.payload_bytes};
  LS_RETURN_IF_ERROR(
      CheckBucket(header, expected, {memory_.payload(receive.slot), bucket.payload_bytes}, source.share.rank));
  if (data == nullptr) return OkStatus();
  placed_.clear();
  for (const StridedCopy& copy : bucket.copies) placed_.push_back({memory_.payload(receive.slot), data, copy});
  LS_RETURN_IF_ERROR(engine_->Start(placed_));
  LS_RETURN_IF_ERROR(engine_->Finish());
  return tell(bucket.completed);
}

Status BucketIntake::EndSet(size_t index, Version version) {
  Source& source = sources_[index];
  if (!link_->Alive(source.share.rank)) return link_->status();
  if (source.version && *source.version < version) {
    MakeAnswer(version, ErrorCode::kAborted);
    Link::Pending pending = link_->Send(source.share.rank, &answer_, sizeof(answer_));
    link_->Wait(pending);
    if (!link_->status().ok()) return link_->status();  // the answer was the last one
    StartSet(index);
    return OkStatus();
  }
  source.awaits_answer = true;
  if (!source.version || *source.version == version) return source.error;
  source.spent = *source.version;
  return WentOn(source.share.rank, source.spent, version);
}

void BucketIntake::MakeAnswer(Version version, ErrorCode code) {
  const BucketKind kind = link_->status().ok() ? BucketKind::kAnswer : BucketKind::kLastAnswer;
  answer_ = MakeHeader({.kind = kind, .version = version, .plan = plan_}, code, {});
}

void BucketIntake::Answer(Version version, ErrorCode code) {
  MakeAnswer(version, code);
  std::vector<Link::Pending> pending;
  for (Source& source : sources_) {
    if (source.awaits_answer) pending.push_back(link_->Send(source.share.rank, &answer_, sizeof(answer_)));
    source.awaits_answer = false;
  }
  for (Link::Pending& one : pending) link_->Wait(one);
}

}  // namespace lockstep
