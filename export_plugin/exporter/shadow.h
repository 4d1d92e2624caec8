// Shadow: a rank's share as it was published last, kept packed on the GPU that has its tensors, so that of the next
// version only what changed crosses the bus.
//
//   tensors ──compare──> shadow, marks ──┬── what two versions changed ──> the half that holds the one before last
//                                        └── all of it ──────────────────> any half
//
// Whatever is written into a half is the shadow's, which read each tensor once: the half is, byte for byte, what a copy
// of everything would have made. The half that a version goes to is two versions old, therefore the marks remember for
// one version what it changed. Each batch for itself is copied whole where more than an eighth of it has changed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/lowering.h"
#include "kernels/cuda/packed.h"

namespace lockstep::exporter {

// Batches under way at most.
constexpr uint64_t kShadowBatches = 2;

// Device memory of a shadow, by what it is for.
struct ShadowBytes {
  uint64_t shadow = 0;
  uint64_t marks = 0;
  // For each batch under way.
  uint64_t either = 0;
  uint64_t stripe_firsts = 0;
  uint64_t region_counts = 0;
  uint64_t region_firsts = 0;
  uint64_t changes = 0;

  uint64_t all() const {
    return shadow + marks + kShadowBatches * (either + stripe_firsts + region_counts + region_firsts + changes);
  }
};

// Where a share lies packed, in units of two bytes: each copy's rows side by side, from a group on.
struct ShadowPlan {
  struct Piece {
    LocalCopy copy;
    uint64_t first_unit = 0;  // in its batch
    uint64_t units() const { return copy.copy.bytes() / 2; }
  };
  struct Batch {
    size_t pieces_end = 0;    // in ShadowPlan::pieces; begins where the one before ends
    uint64_t first_unit = 0;  // in the share
    uint64_t units = 0;       // whole groups
    uint64_t most_changes() const { return units / 8; }
  };

  // kBadData names a tensor whose rows have no whole units.
  static Result<ShadowPlan> Of(const CopyList& list, std::span<const LocalTensor> locals);

  std::span<const Piece> PiecesOf(size_t batch) const;
  uint64_t units() const { return batches.empty() ? 0 : batches.back().first_unit + batches.back().units; }
  uint64_t most_units() const;  // of a batch
  ShadowBytes bytes() const;

  std::vector<Piece> pieces;
  std::vector<Batch> batches;
};

// Not thread-safe. Goes before the engine that it is of.
class Shadow : public CopyEngine {
 public:
  // Every batch of the plan follows, by a Start() each, in order. `advances`: where it is copied to holds the version
  // before the one that came last. Else all is copied.
  virtual void Begin(bool advances) = 0;
};

// Which versions a shadow and its marks are of: what may be advanced.
class ShadowVersions {
 public:
  // `version` goes where `held` is (0: nothing that is known). Answers whether the marks lead from there to it. Until
  // Done(), nothing is known of the shadow.
  bool Begin(Version version, Version held) {
    const bool known = last_ != 0 && last_ < version;  // a number may come again, with other bytes
    const bool leads = known && before_ != 0 && held == before_;
    before_ = known ? last_ : 0;
    last_ = 0;
    return leads;
  }
  void Done(Version version) { last_ = version; }

 private:
  Version last_ = 0;    // in the shadow; 0: nobody knows what
  Version before_ = 0;  // that the marks lead from; 0: none
};

// Writes the changes of a batch of `plan` to where its copies put them, relative to `target`: those of region r are
// from region_firsts[r] to region_firsts[r + 1]. kCorrupt: one has no place there; others may be written.
Status WriteChanges(const ShadowPlan& plan, size_t batch, std::span<const uint32_t> region_firsts,
                    const kernels::cuda::Change* changes, std::byte* target, WorkerPool* pool);

}  // namespace lockstep::exporter
