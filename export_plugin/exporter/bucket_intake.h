// BucketIntake: a rank on the agent's host receives the buckets of ranks on other hosts, and copies them into the slot
// that is being written.
//
// The intake takes the first bucket of each rank, then the second of each, and so on: no rank waits for all buckets of
// another. Two receives are under way at any time.
//
// A set is the buckets of one rank and one version. The intake answers each set once. A rank that failed between two
// publishes may skip a version's set, or send the set of a version that was skipped here. Both ends match sets by the
// version in the buckets' headers (FORMAT.md, "Versions").
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/wire/rank_messages.h"
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
  using Report = std::function<Status(std::span<const uint32_t> batches)>;

  Version version = 0;
  std::byte* data = nullptr;  // null: nowhere
  bool holds_frozen = false;  // both slots hold the frozen bytes: the intake ignores frozen buckets that still come
  Report done;
  Report unchanged;
};

// Not thread-safe. `exchange` and `engine` outlive it. Per version: Start(), TakeAll(), Answer().
class BucketIntake {
 public:
  // `memory` holds LargestPayload(remote).
  BucketIntake(const layout::PlanDigest& plan, std::vector<RemoteRank> remote, std::unique_ptr<BucketMemory> memory,
               TrackedExchange* exchange, CopyEngine* engine);

  // Appends a batch for each bucket to what this rank writes: the ranges that the bucket completes.
  void AddTo(wire::Share& share);
  // The ranges of the slot that the buckets write; with `frozen_only`, those that frozen buckets write.
  std::vector<StridedRange> Ranges(bool frozen_only) const;
  // Whether the buckets are received into a GPU's memory.
  bool on_device() const { return memory_->on_device(); }

  // Starts to receive the first buckets of `version`, which may come while this rank makes its own copies.
  void Start(Version version);
  // Receives every bucket of every rank that is not lost. Copies each to `target` and reports its batch, up to the
  // first error; copies nothing when target.data is null. Returns the first error, after all buckets have come.
  Status TakeAll(const IntakeTarget& target, PublishStats& stats);
  // Tells each live rank with a taken set the outcome of `version`, and whether it must send its frozen buckets with
  // the next one.
  void Answer(Version version, ErrorCode code, bool wants_frozen);

 private:
  // A remote rank, and how much of its set has come.
  struct Source {
    RemoteRank remote;
    uint32_t first_batch = 0;        // of this rank's share: that of the first bucket
    uint32_t started = 0;            // buckets: their receives were started
    uint32_t taken = 0;              // buckets
    uint32_t count = 0;              // buckets of the set; until the first one is taken, the least that it may have
    bool wanted_frozen = true;       // the last answer asked for frozen buckets
    std::optional<Version> version;  // of the set, once a header has said it
    Status error;                    // the first of the set
    bool awaits_answer = false;
    Version newer_set = 0;  // version of a set that came early: versions up to it get no set and abort; 0: none
  };
  struct Receive {
    size_t source = 0;
    uint32_t bucket = 0;
    size_t slot = 0;
    TrackedExchange::Pending pending;
  };

  void StartSet(size_t source);
  void StartReceive(size_t slot);
  // Learns from the header of a set's first bucket how many buckets the set has.
  void LearnCount(const Receive& receive, const Result<BucketHeader>& header);
  // Checks a bucket that came; copies it if it is `wanted`.
  Status TakeBucket(const Receive& receive, const Result<BucketHeader>& read, const IntakeTarget& target, bool wanted);
  // Ends the set of `source`, all of whose buckets are here. Returns the set's error, or why the version must abort.
  Status EndSet(size_t source, const IntakeTarget& target, bool wanted);
  Status ReportFrozen(const Source& source, const IntakeTarget& target);
  void SendAnswer(std::span<Source* const> sources, Version version, ErrorCode code, bool wants_frozen);

  const layout::PlanDigest plan_;
  TrackedExchange* const exchange_;
  CopyEngine* const engine_;
  std::vector<Source> sources_;
  const std::unique_ptr<BucketMemory> memory_;
  std::deque<size_t> sources_to_start_;  // indices; each has buckets whose receives are to be started
  std::deque<Receive> under_way_;
  std::vector<PlacedCopy> placed_;
};

}  // namespace lockstep::exporter
