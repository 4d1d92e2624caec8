// BucketIntake: a rank beside the agent takes the shares of ranks on other hosts into the half that is being written.
//
// Buckets are taken in turn from all of them, the first of each, then the second: nobody's last bucket waits for
// another's all. Two receives are under way at any time.
//
// A rank's buckets of one version are a set, answered once. Sets come in the order of their versions, but a rank that
// failed between two publishes may leave one out on its side, or meet one that was left out here. What version a set
// belongs to is in its headers, so both ends are soon in step again:
//
//   the set is of an older version     taken in and thrown away, answered with kAborted; the next set is waited for
//   the set is of a newer version w    the same, and this version is given up; when its turn comes, so is w, and all
//                                      before it, at once: the rank has spent its set, and nothing more comes of it
#pragma once

#include <deque>
#include <functional>
#include <optional>
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
  void Start(Version version);
  // Takes every bucket of every rank that lives. They are copied to `data`, and what they complete is told, until
  // something is wrong, from the start where `data` is null: the first error is answered, after all were taken.
  Status TakeAll(Version version, std::byte* data, const Tell& tell, PublishStats& stats);
  // Says to every rank that lives, and whose set was taken, what became of `version`.
  void Answer(Version version, ErrorCode code);

 private:
  // How far the set is that a rank sends.
  struct Source {
    RemoteShare share;
    uint32_t started = 0;  // receives
    uint32_t taken = 0;
    std::optional<Version> version;  // once a header said it
    Status error;                    // the first
    bool awaits_answer = false;
    Version spent = 0;  // the newer version whose set came before its turn; 0: none
  };
  struct Receive {
    size_t source = 0;
    uint32_t bucket = 0;
    size_t slot = 0;
    Link::Pending pending;
  };

  void StartSet(size_t source);
  void StartReceive(size_t slot);
  // Looks at a bucket that came; copies it where `data` is not null.
  Status TakeBucket(const Receive& receive, Version version, std::byte* data, const Tell& tell);
  // All buckets of a set are here: what that means for `version`.
  Status EndSet(size_t source, Version version);
  void MakeAnswer(Version version, ErrorCode code);

  const PlanDigest plan_;
  Link* const link_;
  CopyEngine* const engine_;
  std::vector<Source> sources_;
  BucketMemory memory_;
  BucketHeader answer_;
  std::deque<size_t> turns_;  // sources with buckets to start
  std::deque<Receive> under_way_;
  std::vector<PlacedCopy> placed_;
};

}  // namespace lockstep
