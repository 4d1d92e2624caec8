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

  // Sends the set of `version`, with frozen buckets if the proxy wants them, and waits for the proxy's answer. With an
  // error as `ready`, this rank cannot give its bytes: the buckets are sent as failed, so that the proxy can continue.
  // Returns OK when the proxy committed the version. Otherwise returns the cause: `ready`, the error of packing, the
  // loss of the exchange, or the proxy's error.
  Status Send(Version version, Status ready, std::span<const LocalTensor> locals, PublishStats& stats);

  // Pins the buckets, so that copies from a GPU into them are fast. Returns why they are not pinned.
  Status Pin() { return memory_->PinFor(*engine_); }
  bool pinned() const { return memory_->pinned(); }

 private:
  // Packs a bucket's payload into `slot` and returns its hash.
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
