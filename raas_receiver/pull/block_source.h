// BlockSource: the interface of what an agent's pull gets blocks and deltas from. There are three: the agent's memory
// on the same host, a delta that was sent while it was made, and the agent's lanes.
//
// A pull asks its sources in order, each for what those before it did not bring. Blocks that came are in the sink,
// checked, and stay good when their source fails afterwards. So only an error of the last source fails the pull.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/pull/block_sink.h"

namespace lockstep::pull {

// Blocks as they are in one version.
struct FullRequest {
  std::vector<BlockIndex> blocks;  // rising
  Version version = 0;             // the oldest that is good enough
  bool exact = false;              // no other version than `version`
};

// A delta, as the agent's plan names it.
struct DeltaStep {
  uint64_t payload_id = 0;
  Version base = 0;
  Version target = 0;
  ManifestDigest target_digest;
  uint32_t entries = 0;
  uint64_t data_bytes = 0;
  uint64_t changed_elements = 0;
};

struct DeltaRequest {
  RunId run;  // of the steps
  std::vector<DeltaStep> steps;
};

// The delta that follows a version, as it is being made.
struct StreamRequest {
  Version base = 0;
};

struct SourceCounters {
  uint64_t payload_bytes = 0;   // of blocks and of entries, however they came
  uint64_t local_bytes = 0;     // of these: from memory of this host
  uint64_t plain_bytes = 0;     // of these: over a network, in plaintext
  uint64_t streamed_bytes = 0;  // of these: came while the version was being made
  uint64_t retries = 0;         // connections opened again
  uint64_t bytes_per_s = 0;     // of the link, while blocks came; 0: not known

  // Of sources that bring bytes one after the other, of which one has a link, or side by side.
  SourceCounters& operator+=(const SourceCounters& other) {
    payload_bytes += other.payload_bytes;
    local_bytes += other.local_bytes;
    plain_bytes += other.plain_bytes;
    streamed_bytes += other.streamed_bytes;
    retries += other.retries;
    bytes_per_s += other.bytes_per_s;
    return *this;
  }
};

// One thread fetches; Cancel and counters may be called from any thread.
class BlockSource {
 public:
  virtual ~BlockSource() = default;

  // For logs.
  virtual std::string_view name() const = 0;

  // Puts every block of `request` into `sink`. kCancelled after Cancel. Any other error says why some blocks are not
  // there; the caller may ask another source for them. The sink is not called after the return. REQUIRES a sink with a
  // destination for every block.
  virtual Status FetchBlocks(const FullRequest& request, BlockSink& sink) = 0;

  // Puts every step of `request` into `sink`, entry by entry or whole. Outcomes as those of FetchBlocks; a step that
  // came in part has to be fetched again from its first entry.
  virtual Status FetchDeltas(const DeltaRequest& request, DeltaSink& sink) = 0;

  // Makes the running and every later fetch end soon.
  virtual void Cancel() = 0;

  virtual SourceCounters counters() const = 0;
};

}  // namespace lockstep::pull
