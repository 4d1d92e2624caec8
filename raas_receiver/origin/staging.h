// Where the blocks of a pull wait, or are put at once, until the version is verified.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"
#include "raas_receiver/pull/block_source.h"

namespace lockstep::origin {

// Full blocks, read straight into their places. Remembers of which version each is, and its hash: while a full
// pull runs, the trainer may move on, and later blocks are of a later version.
class FullStaging : public pull::BlockSink {
 public:
  // `place_of` answers the memory of a block of `layout`, which is writable as long as blocks come.
  FullStaging(const model::ModelLayout& layout, std::function<std::span<std::byte>(BlockIndex)> place_of);

  // `blocks` are fetched next: they are missing until they come, whatever came before.
  void Expect(const std::vector<BlockIndex>& blocks);
  // The expected blocks that have not come. REQUIRES no fetch to run.
  std::vector<BlockIndex> Missing() const;

  // Notes the expected blocks of `part`, which begins at block `first` of this one, as they came. Any thread, for
  // blocks that no other thread notes.
  void Take(BlockIndex first, const FullStaging& part);
  // Notes that `block` is in its place. Any thread, as Take.
  void Note(BlockIndex block, Version version, uint64_t hash);

  std::span<std::byte> Place(BlockIndex block) const { return place_of_(block); }
  std::span<std::byte> Destination(const wire::FrameHeader& frame) override { return place_of_(frame.block); }
  Status Put(const wire::FrameHeader& frame, ByteView payload) override;

  const std::vector<Version>& versions() const { return versions_; }  // per block; 0 where none came
  const std::vector<uint64_t>& hashes() const { return hashes_; }     // per block

 private:
  const std::function<std::span<std::byte>(BlockIndex)> place_of_;
  std::vector<BlockIndex> expected_;
  std::vector<Version> versions_;
  std::vector<uint64_t> hashes_;
};

// Deltas, kept aside: nothing is applied before all of a pull has arrived and was checked.
class DeltaStaging : public pull::DeltaSink {
 public:
  // REQUIRES `layout` to outlive the staging.
  DeltaStaging(const model::ModelLayout& layout, const RunId& run, const std::vector<pull::DeltaStep>& steps);

  Status PutEntry(uint64_t payload_id, payload::DeltaBlock entry) override;
  Status PutPayload(uint64_t payload_id, std::shared_ptr<const payload::Payload> payload) override;

  // The steps that have not come whole; what came of them in part is dropped. The first call names all steps, also
  // those of no entries: a source may have them to put aside. REQUIRES no fetch to run.
  pull::DeltaRequest TakeMissing();

  // The payloads of the steps, once all of them are here; the staging is empty then. `base_digest` names what the first
  // one applies to. kProtocol, naming the step, when entries or bytes are missing.
  Result<payload::DeltaChain> Assemble(const ManifestDigest& base_digest, int64_t committed_unix_ns);

 private:
  struct Step {
    pull::DeltaStep plan;
    std::shared_ptr<const payload::Payload> whole;  // came so; else null
    std::vector<payload::DeltaBlock> entries;
    uint64_t bytes = 0;  // of the entries
    bool asked = false;  // a request has named it
    bool complete() const { return whole != nullptr || (entries.size() == plan.entries && bytes == plan.data_bytes); }
  };

  const model::ModelLayout& layout_;
  const RunId run_;
  Mutex mutex_;
  std::vector<Step> steps_ LS_GUARDED_BY(mutex_);
  std::map<uint64_t, size_t> by_payload_ LS_GUARDED_BY(mutex_);
};

// OK when each step of `chain` leads from `hashes` to the digest it names. kCorrupt names the version that does not.
Status VerifyChain(const model::ModelLayout& layout, const payload::DeltaChain& chain, std::vector<uint64_t> hashes);

}  // namespace lockstep::origin
