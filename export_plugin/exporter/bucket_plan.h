// Bucket plans: which bytes of a rank on another host travel in which bucket, and to which rank. Both ends compute the
// same from the copy plan alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "export_plugin/exporter/bucket_header.h"
#include "export_plugin/exporter/lowering.h"

namespace lockstep::exporter {

// Of each rank, the rank on the agent's host that takes its buckets; nothing for ranks that send none. The one with the
// fewest bytes to take so far, then the lowest. REQUIRES some rank on the agent's host, as CompileExport() does.
std::vector<std::optional<uint32_t>> ProxiesOf(const layout::CopyPlan& plan, const std::vector<bool>& on_agent_host);

// A part of a chunk: a box of elements, row by row in the HuggingFace tensor's order.
struct PackedItem {
  uint32_t source = 0;
  uint32_t tensor = 0;
  layout::Piece piece;  // local -> HuggingFace tensor
  uint64_t bytes = 0;
  uint64_t packed_offset = 0;  // in the payload
};

struct PackedBucket {
  std::vector<PackedItem> items;
  std::vector<StridedRange> completed;  // of the data section: chunks whose last item is in this bucket
  uint64_t payload_bytes = 0;
};

// The buckets of a rank: first those of what changes, at least one, then those of what is frozen. A set is all of them,
// or just the first `changing`.
template <typename Bucket>
struct RankBuckets {
  std::vector<Bucket> all;
  uint32_t changing = 0;

  uint64_t largest_payload() const {
    uint64_t largest = 0;
    for (const Bucket& bucket : all) largest = std::max(largest, bucket.payload_bytes);
    return largest;
  }
};

// With `plan`, each with at most `payload_bytes` of payload. REQUIRES payload_bytes to hold an element.
RankBuckets<PackedBucket> PackBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                      uint64_t payload_bytes);

// A bucket as its sender makes it: copies into the payload.
struct OutgoingBucket {
  std::vector<LocalCopy> copies;
  uint64_t payload_bytes = 0;
};
// kBadData as ConversionOf().
Result<RankBuckets<OutgoingBucket>> LowerOutgoing(const layout::TrainingModel& model,
                                                  const RankBuckets<PackedBucket>& buckets,
                                                  std::span<const LocalTensor> locals, const LocalsBySource& by_source);

// A bucket as its proxy takes it in: copies from the payload into the data section, and what may be reported after
// them.
struct IncomingBucket {
  std::vector<layout::StridedCopy> copies;
  std::vector<StridedRange> completed;
  uint64_t payload_bytes = 0;
};
RankBuckets<IncomingBucket> LowerIncoming(const layout::TrainingModel& model, RankBuckets<PackedBucket> buckets);

}  // namespace lockstep::exporter
