// Bucket plans: which bytes of a rank on another host travel in which bucket, and to which rank. Both ends compute the
// same from the copy plan alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "export_plugin/exporter/bucket_header.h"
#include "export_plugin/exporter/lowering.h"

namespace lockstep::exporter {

// Returns for each rank its proxy, the rank on the agent's host that takes its buckets; no value for ranks that send
// none. The proxy is the rank with the fewest bytes to take so far; of several, the lowest. REQUIRES some rank on the
// agent's host, as CompileExport() does.
std::vector<std::optional<uint32_t>> ProxiesOf(const layout::CopyPlan& plan, const std::vector<bool>& on_agent_host);

// At the sender, `copies` go from local tensors into the payload. At the proxy, `copies` go from the payload into the
// data section, and LocalCopy::local means nothing; then `completed` may be reported.
struct Bucket {
  std::vector<LocalCopy> copies;
  std::vector<StridedRange> completed;  // of the data section: chunks whose last part is in this bucket
  uint64_t payload_bytes = 0;
};

// The buckets of a rank: first those of what changes, at least one, then those of what is frozen. A set is all of them,
// or just the first `changing`.
struct RankBuckets {
  std::vector<Bucket> all;
  uint32_t changing = 0;

  uint64_t largest_payload() const;
};

// The buckets of a rank with `plan`, as the rank sends them, and as its proxy takes them. Each has at most
// `payload_bytes` of payload. kBadData as ConversionOf(). REQUIRES payload_bytes to hold an element.
Result<RankBuckets> OutgoingBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                    uint64_t payload_bytes, std::span<const LocalTensor> locals,
                                    const LocalsBySource& by_source);
Result<RankBuckets> IncomingBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                    uint64_t payload_bytes);

}  // namespace lockstep::exporter
