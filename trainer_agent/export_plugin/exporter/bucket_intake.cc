#include "trainer_agent/export_plugin/exporter/bucket_intake.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {
namespace {

uint64_t LargestPayload(const std::vector<RemoteShare>& shares) {
  uint64_t largest = 0;
  for (const RemoteShare& share : shares) {
    for (const IncomingBucket& bucket : share.buckets) largest = std::max(largest, bucket.payload_bytes);
  }
  return largest;
}

}  // namespace

BucketIntake::BucketIntake(const PlanDigest& plan, std::vector<RemoteShare> shares, Link* link, CopyEngine* engine)
    : plan_(plan), shares_(std::move(shares)), link_(link), engine_(engine), memory_(LargestPayload(shares_)) {
  size_t most = 0;
  for (const RemoteShare& share : shares_) most = std::max(most, share.buckets.size());
  for (uint32_t bucket = 0; bucket < most; ++bucket) {
    for (const RemoteShare& share : shares_) {
      if (bucket < share.buckets.size()) steps_.push_back({&share, bucket});
    }
  }
}

void BucketIntake::StartStep(size_t step) {
  if (step >= steps_.size()) return;
  const RemoteShare& share = *steps_[step].share;
  const uint64_t bytes = sizeof(BucketHeader) + share.buckets[steps_[step].bucket].payload_bytes;
  pending_[step % 2] = link_->Receive(share.rank, memory_.message(step % 2), bytes);
}

void BucketIntake::Start() {
  StartStep(0);
  StartStep(1);
}

Status BucketIntake::TakeAll(Version version, std::byte* data, const Tell& tell, PublishStats& stats) {
  stats.exchange_memory_bytes = memory_.bytes();
  Status status;
  for (size_t step = 0; step < steps_.size(); ++step) {
    const uint32_t rank = steps_[step].share->rank;
    link_->Wait(pending_[step % 2]);
    if (link_->Alive(rank)) {
      ++stats.buckets_received;
      stats.bytes_received += steps_[step].share->buckets[steps_[step].bucket].payload_bytes;
      if (status.ok()) status = TakeBucket(steps_[step], step % 2, version, data, tell);
    } else if (status.ok()) {
      status = link_->status();
    }
    StartStep(step + 2);
  }
  return status;
}

Status BucketIntake::TakeBucket(const Step& step, size_t slot, Version version, std::byte* data, const Tell& tell) {
  const IncomingBucket& bucket = step.share->buckets[step.bucket];
  const BucketHeader header = memory_.header(slot);
  LS_RETURN_IF_ERROR(CheckHeader(header, step.share->rank));
  const BucketPlace expected{.version = version,
                             .plan = plan_,
                             .index = step.bucket,
                             .count = static_cast<uint32_t>(step.share->buckets.size()),
                             .payload_bytes = bucket.payload_bytes};
  LS_RETURN_IF_ERROR(CheckBucket(header, expected, {memory_.payload(slot), bucket.payload_bytes}, step.share->rank));
  if (data == nullptr) return OkStatus();
  placed_.clear();
  for (const StridedCopy& copy : bucket.copies) placed_.push_back({memory_.payload(slot), data, copy});
  LS_RETURN_IF_ERROR(engine_->Start(placed_));
  LS_RETURN_IF_ERROR(engine_->Finish());
  return tell(bucket.completed);
}

void BucketIntake::Answer(Version version, ErrorCode code) {
  const BucketKind kind = link_->status().ok() ? BucketKind::kAnswer : BucketKind::kLastAnswer;
  memory_.SetHeader(0, MakeHeader({.kind = kind, .version = version, .plan = plan_}, code, {}));
  std::vector<Link::Pending> pending;
  for (const RemoteShare& share : shares_) {
    pending.push_back(link_->Send(share.rank, memory_.message(0), sizeof(BucketHeader)));
  }
  for (Link::Pending& one : pending) link_->Wait(one);
}

}  // namespace lockstep
