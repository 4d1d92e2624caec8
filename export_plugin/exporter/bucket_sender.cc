#include "export_plugin/exporter/bucket_sender.h"

#include "common/base/text.h"

namespace lockstep::exporter {

BucketSender::BucketSender(uint32_t proxy, const layout::PlanDigest& plan, RankBuckets<OutgoingBucket> buckets,
                           Link* link, CopyEngine* engine)
    : proxy_(proxy),
      plan_(plan),
      buckets_(std::move(buckets)),
      link_(link),
      engine_(engine),
      memory_(buckets_.largest_payload()) {}

Status BucketSender::Send(Version version, Status ready, std::span<const LocalTensor> locals, PublishStats& stats) {
  stats.exchange_memory_bytes = memory_.bytes();
  Link::Pending pending[2];
  const uint32_t count = with_frozen_ ? static_cast<uint32_t>(buckets_.all.size()) : buckets_.changing;
  for (uint32_t i = 0; i < count; ++i) {
    const OutgoingBucket& bucket = buckets_.all[i];
    const size_t slot = i % 2;
    link_->Wait(pending[slot]);
    if (ready.ok()) ready = Pack(bucket, slot, locals).WithContext(Cat("version ", version));
    const BucketPlace place{
        .version = version, .plan = plan_, .index = i, .count = count, .payload_bytes = bucket.payload_bytes};
    memory_.SetHeader(slot, MakeHeader(place, ready.code(), {memory_.payload(slot), bucket.payload_bytes}));
    pending[slot] = link_->Send(proxy_, memory_.message(slot), sizeof(BucketHeader) + bucket.payload_bytes);
    if (!link_->Alive(proxy_)) break;
    ++stats.buckets_sent;
    stats.bytes_sent += bucket.payload_bytes;
  }
  for (size_t i = count; i < buckets_.all.size(); ++i) stats.bytes_frozen += buckets_.all[i].payload_bytes;
  for (Link::Pending& last : pending) link_->Wait(last);
  const Status answer = TakeAnswer(version);
  return ready.ok() ? answer : ready;
}

Status BucketSender::Pack(const OutgoingBucket& bucket, size_t slot, std::span<const LocalTensor> locals) {
  LS_RETURN_IF_ERROR(Place(bucket.copies, locals, memory_.payload(slot), placed_));
  return engine_->Run(placed_);
}

Status BucketSender::TakeAnswer(Version version) {
  with_frozen_ = true;
  Link::Pending pending = link_->Receive(proxy_, memory_.message(0), sizeof(BucketHeader));
  link_->Wait(pending);
  LS_RETURN_IF_ERROR(link_->status());
  const BucketHeader header = memory_.header(0);
  LS_RETURN_IF_ERROR(CheckHeader(header, proxy_));
  with_frozen_ = header.index != 0;
  const Status answer = CheckAnswer(header, {.version = version, .plan = plan_}, proxy_);
  if (header.kind == static_cast<uint8_t>(BucketKind::kLastAnswer)) {
    link_->Lose(proxy_, {ErrorCode::kUnavailable, "it lost another rank and takes no further version"});
  }
  return answer;
}

}  // namespace lockstep::exporter
