// BucketSender: a rank on another host sends its bytes, a bucket travelling while the next is packed.
#pragma once

#include <span>
#include <vector>

#include "export_plugin/exporter/bucket_memory.h"
#include "export_plugin/exporter/bucket_plan.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/exporter/tracked_exchange.h"

namespace lockstep::exporter {

// Not thread-safe. `exchange` and `engine` outlive it.
class BucketSender {
 public:
  // `memory` holds the largest of the buckets.
  BucketSender(uint32_t proxy, const layout::PlanDigest& plan, RankBuckets buckets,
               std::unique_ptr<BucketMemory> memory, TrackedExchange* exchange, CopyEngine* engine);

  // Sends a set of buckets, frozen ones if the proxy wants them, and waits for the proxy's answer. `ready`: why this
  // rank cannot give its bytes, if so; then the buckets are sent as failed, for the proxy to continue. Answers the
  // cause: that, what failed while packing, a lost exchange, or what the proxy said.
  Status Send(Version version, Status ready, std::span<const LocalTensor> locals, PublishStats& stats);

  // Makes copies from a GPU into the buckets fast. Answers why it did not.
  Status Pin() { return memory_->PinFor(*engine_); }
  bool pinned() const { return memory_->pinned(); }

 private:
  // Answers the hash of the payload.
  Result<uint64_t> Pack(const Bucket& bucket, size_t slot, std::span<const LocalTensor> locals);
  TrackedExchange::Pending SendBucket(const BucketPlace& place, size_t slot, ErrorCode code, uint64_t payload_hash);
  Status TakeAnswer(Version version);

  const uint32_t proxy_;
  const layout::PlanDigest plan_;
  const RankBuckets buckets_;
  TrackedExchange* const exchange_;
  CopyEngine* const engine_;
  const std::unique_ptr<BucketMemory> memory_;
  std::vector<PlacedCopy> placed_;
  bool with_frozen_ = true;  // the proxy lacks the frozen bytes, or may lack them
};

}  // namespace lockstep::exporter
