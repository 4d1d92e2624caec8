// BucketIntake: a rank beside the agent takes the shares of ranks on other hosts into the half that is being written.
//
// Buckets are taken in turn from all of them, the first of each, then the second: nobody's last bucket waits for
// another's all. Two receives are under way at any time.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "trainer_agent/export_plugin/exporter/bucket_memory.h"
#include "trainer_agent/export_plugin/exporter/bucket_plan.h"
#include "trainer_agent/export_plugin/exporter/exporter.h"
#include "trainer_agent/export_plugin/exporter/link.h"

namespace lockstep {

struct RemoteShare {
  uint32_t rank = 0;
  std::vector<IncomingBucket> buckets;
};

// Not thread-safe. `link` and `engine` outlive it. Per version: Start(), TakeAll(), Answer().
class BucketIntake {
 public:
  using Tell = std::function<Status(std::span<const StridedRange>)>;

  BucketIntake(const PlanDigest& plan, std::vector<RemoteShare> shares, Link* link, CopyEngine* engine);

  // Lets the first buckets come while this rank is busy with its own share.
  void Start();
  // Takes every bucket of every rank that lives. They are copied to `data`, and what they complete is told, until
  // something is wrong, from the start where `data` is null: the first error is answered, after all were taken.
  Status TakeAll(Version version, std::byte* data, const Tell& tell, PublishStats& stats);
  // Says to every rank that lives what became of `version`.
  void Answer(Version version, ErrorCode code);

 private:
  struct Step {
    const RemoteShare* share = nullptr;
    uint32_t bucket = 0;
  };

  void StartStep(size_t step);
  Status TakeBucket(const Step& step, size_t slot, Version version, std::byte* data, const Tell& tell);

  const PlanDigest plan_;
  const std::vector<RemoteShare> shares_;
  Link* const link_;
  CopyEngine* const engine_;
  std::vector<Step> steps_;
  BucketMemory memory_;
  Link::Pending pending_[2];
  std::vector<PlacedCopy> placed_;
};

}  // namespace lockstep
