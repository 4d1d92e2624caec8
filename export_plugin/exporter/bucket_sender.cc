#include "export_plugin/exporter/bucket_sender.h"

#include "common/base/text.h"

namespace lockstep::exporter {

BucketSender::BucketSender(uint32_t proxy, const layout::PlanDigest& plan, RankBuckets buckets,
                           std::unique_ptr<BucketMemory> memory, TrackedExchange* exchange, CopyEngine* engine)
    : proxy_(proxy),
      plan_(plan),
      buckets_(std::move(buckets)),
      exchange_(exchange),
      engine_(engine),
      memory_(std::move(memory)) {}

Status BucketSender::Send(Version version, Status ready, std::span<const LocalTensor> locals, PublishStats& stats) {
  stats.exchange_memory_bytes = memory_->bytes();
  TrackedExchange::Pending pending[2];
  const uint32_t count = with_frozen_ ? static_cast<uint32_t>(buckets_.all.size()) : buckets_.changing;
  for (uint32_t i = 0; i < count; ++i) {
    const Bucket& bucket = buckets_.all[i];
    const size_t slot = i % 2;
    exchange_->Wait(pending[slot]);
    uint64_t hash = 0;
    if (ready.ok()) {
      const Result<uint64_t> packed = Pack(bucket, slot, locals);
      ready = packed.status().WithContext(Cat("version ", version));
      if (packed.ok()) hash = *packed;
    }
    const BucketPlace place{.kind = memory_->bucket_kind(),
                            .version = version,
                            .plan = plan_,
                            .index = i,
                            .count = count,
                            .payload_bytes = bucket.payload_bytes};
    pending[slot] = SendBucket(place, slot, ready.code(), hash);
    if (!exchange_->Alive(proxy_)) break;
    ++stats.buckets_sent;
    stats.bytes_sent += bucket.payload_bytes;
  }
  for (size_t i = count; i < buckets_.all.size(); ++i) stats.bytes_frozen += buckets_.all[i].payload_bytes;
  for (TrackedExchange::Pending& last : pending) exchange_->Wait(last);
  const Status answer = TakeAnswer(version);
  return ready.ok() ? answer : ready;
}

Result<uint64_t> BucketSender::Pack(const Bucket& bucket, size_t slot, std::span<const LocalTensor> locals) {
  LS_RETURN_IF_ERROR(Place(bucket.copies, locals, memory_->payload(slot), placed_));
  LS_RETURN_IF_ERROR(engine_->Run(placed_));
  return memory_->PayloadHash(slot, bucket.payload_bytes);
}

// Without its header a message cannot be sent, and the proxy would not know the next one.
TrackedExchange::Pending BucketSender::SendBucket(const BucketPlace& place, size_t slot, ErrorCode code,
                                                  uint64_t payload_hash) {
  std::byte* const message = memory_->message(slot);
  const Status written = memory_->WriteHeader(message, MakeHeader(place, code, payload_hash));
  if (!written.ok()) exchange_->Lose(proxy_, written);
  return exchange_->Send(proxy_, message, sizeof(BucketHeader) + place.payload_bytes);
}

Status BucketSender::TakeAnswer(Version version) {
  with_frozen_ = true;
  TrackedExchange::Pending pending = exchange_->Receive(proxy_, memory_->answer(), sizeof(BucketHeader));
  exchange_->Wait(pending);
  LS_RETURN_IF_ERROR(exchange_->status());
  LS_ASSIGN_OR_RETURN(const BucketHeader header, memory_->ReadHeader(memory_->answer()));
  LS_RETURN_IF_ERROR(CheckHeader(header, proxy_));
  with_frozen_ = header.index != 0;
  const Status answer = CheckAnswer(header, {.version = version, .plan = plan_}, proxy_);
  if (header.kind == static_cast<uint8_t>(BucketKind::kLastAnswer)) {
    exchange_->Lose(proxy_, {ErrorCode::kUnavailable, "it lost another rank and takes no further version"});
  }
  return answer;
}

}  // namespace lockstep::exporter
