// Where the blocks of a pull wait, or are put at once, until the version is verified.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"
#include "raas_receiver/pull/run_board.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/plan.h"

namespace lockstep {

// Full blocks, read straight into the target replica. Remembers of which version each is, and its hash: while a full
// pull runs, the trainer may move on, and later blocks are of a later version.
class FullStaging : public BlockSink {
 public:
  // REQUIRES the target of `replicas` to be writable memory of `layout` as long as blocks come.
  FullStaging(const ModelLayout& layout, ReplicaPair& replicas);

  std::span<std::byte> Destination(const FrameHeader& frame) override { return replicas_.target_block(frame.block); }
  Status Put(const FrameHeader& frame, ByteView payload) override;

  const std::vector<Version>& versions() const { return versions_; }  // per block; 0 where none came
  const std::vector<uint64_t>& hashes() const { return hashes_; }     // per block

 private:
  ReplicaPair& replicas_;
  std::vector<Version> versions_;
  std::vector<uint64_t> hashes_;
};

// Delta blocks, kept aside: nothing is applied before all of a pull has arrived and was checked.
class DeltaStaging : public BlockSink {
 public:
  // REQUIRES `layout` to outlive the staging.
  DeltaStaging(const ModelLayout& layout, const std::vector<PlanStep>& steps);

  std::span<std::byte> Destination(const FrameHeader&) override { return {}; }
  // kProtocol for more blocks or bytes than the plan announced.
  Status Put(const FrameHeader& frame, ByteView payload) override;

  // A step's payload that came whole, every hash checked. kProtocol when it is not the one planned for `run`.
  Status Give(uint64_t payload_id, const RunId& run, std::shared_ptr<const Payload> payload);

  // All blocks of a step, which came live; each has its frame's hash. kProtocol when they are not what was planned.
  Status GiveBlocks(uint64_t payload_id, std::vector<DeltaBlock> blocks);

  // The runs that ask for every block of every step that did not come whole.
  std::vector<BlockRun> Runs(uint64_t request_bytes, size_t lanes) const;

  // The payloads of the steps, once all of their blocks are here; the staging is empty then. `base` and `base_digest`
  // name what the first one applies to. kProtocol, naming the step, when blocks or bytes are missing.
  Result<DeltaChain> Assemble(const Held& base, const ManifestDigest& base_digest, int64_t committed_unix_ns);

 private:
  struct Step {
    PlanStep plan;
    std::shared_ptr<const Payload> whole;  // came so; else null
    std::vector<DeltaBlock> blocks;
    uint64_t bytes = 0;
    bool complete() const { return whole != nullptr || blocks.size() == plan.entries; }
  };

  const ModelLayout& layout_;
  std::mutex mutex_;
  std::vector<Step> steps_;
  std::map<uint64_t, size_t> by_payload_;
};

// OK when each step of `chain` leads from `hashes` to the digest it names. kCorrupt names the version that does not.
Status VerifyChain(const ModelLayout& layout, const DeltaChain& chain, std::vector<uint64_t> hashes);

}  // namespace lockstep
