// BucketIntake: a rank on the agent's host takes the bytes of ranks on other hosts into the slot that is being written.
//
// It takes the first bucket of each rank, then the second of each, and so on: no rank waits for all buckets of another.
// Two receives are under way at any time.
//
// A set is one rank's buckets of one version; it has one answer. A rank that failed between two publishes may skip a
// set, or send a set that was skipped here. Both ends match sets by the version in the buckets' headers (FORMAT.md,
// "Versions").
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "export_plugin/exporter/bucket_memory.h"
#include "export_plugin/exporter/bucket_plan.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/exporter/tracked_exchange.h"

namespace lockstep::exporter {

// A rank on another host that sends its buckets here.
struct RemoteRank {
  uint32_t rank = 0;
  RankBuckets buckets;
};

uint64_t LargestPayload(const std::vector<RemoteRank>& remote);

// Where a version's buckets go.
struct IntakeTarget {
  using Report = std::function<Status(std::span<const StridedRange>)>;

  Version version = 0;
  std::byte* data = nullptr;  // null: nowhere
  bool holds_frozen = false;  // both slots hold the frozen bytes: those that come nevertheless are ignored
  Report done;
  Report unchanged;
};

// Not thread-safe. `exchange` and `engine` outlive it. Per version: Start(), TakeAll(), Answer().
class BucketIntake {
 public:
  // `memory` holds LargestPayload(remote).
  BucketIntake(const layout::PlanDigest& plan, std::vector<RemoteRank> remote, std::unique_ptr<BucketMemory> memory,
               TrackedExchange* exchange, CopyEngine* engine);

  // All that is written into the slot; `frozen_only`: what only frozen buckets write.
  std::vector<StridedRange> Ranges(bool frozen_only) const;
  // Whether that comes from a GPU's memory.
  bool on_device() const { return memory_->on_device(); }

  // Lets the first buckets come while this rank is busy with its own copies, once the exchange knows its peers.
  void Start(Version version);
  // Takes every bucket of every rank that lives. They are copied, and what they complete is reported, until something
  // is wrong, or not at all where there is no data: the first error is answered, after all were taken.
  Status TakeAll(const IntakeTarget& target, PublishStats& stats);
  // Tells each live rank with a taken set the outcome of `version`, and whether it must send its frozen buckets with
  // the next one.
  void Answer(Version version, ErrorCode code, bool wants_frozen);

 private:
  // How far the set is that a rank sends.
  struct Source {
    RemoteRank remote;
    uint32_t started = 0;  // receives
    uint32_t taken = 0;
    uint32_t count = 0;              // of the set; until the first bucket is taken, those that it has at least
    bool wanted_frozen = true;       // as last answered
    std::optional<Version> version;  // once a header said it
    Status error;                    // the first
    bool awaits_answer = false;
    Version spent = 0;  // a newer version, whose set was taken: versions up to it get no set and are aborted; 0: none
  };
  struct Receive {
    size_t source = 0;
    uint32_t bucket = 0;
    size_t slot = 0;
    TrackedExchange::Pending pending;
  };

  void StartSet(size_t source);
  void StartReceive(size_t slot);
  // The first bucket of a set came: how many there are.
  void LearnCount(const Receive& receive, const Result<BucketHeader>& header);
  // Checks a bucket that came; copies it if it is `wanted`.
  Status TakeBucket(const Receive& receive, const Result<BucketHeader>& read, const IntakeTarget& target, bool wanted);
  // All buckets of a set are here: what that means for the version.
  Status EndSet(size_t source, const IntakeTarget& target, bool wanted);
  Status ReportFrozen(const Source& source, const IntakeTarget& target);
  void SendAnswer(std::span<Source* const> sources, Version version, ErrorCode code, bool wants_frozen);

  const layout::PlanDigest plan_;
  TrackedExchange* const exchange_;
  CopyEngine* const engine_;
  std::vector<Source> sources_;
  const std::unique_ptr<BucketMemory> memory_;
  std::deque<size_t> turns_;  // sources with buckets to start
  std::deque<Receive> under_way_;
  std::vector<PlacedCopy> placed_;
};

}  // namespace lockstep::exporter
