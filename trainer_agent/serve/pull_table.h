// PullTable: the pulls in progress, what each may read, and the tickets that admit its lanes.
//
// A pull keeps alive what it was promised: its payloads, and for a full pull the deltas from its target on. It ends by
// Close(), or by Expire() after idle_timeout without a call or a block; a live one, without a lane. Nothing here waits
// for a receiver.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "trainer_agent/store/version_catalog.h"

namespace lockstep {

struct PullLimits {
  size_t max_pulls = 256;
  uint32_t max_lanes = 16;  // of one pull; twice that while broken ones have not been noticed yet
  std::chrono::milliseconds idle_timeout{120'000};
};

struct PullWish {
  std::string model;
  std::string receiver;
  Held held;
  ManifestDigest held_digest;
  LayoutDigest layout;
  uint32_t lanes = 1;
  bool force_full = false;
  uint64_t link_bytes_per_s = 0;  // what its lanes last carried; 0: not known
};

// Who wants the next deltas while they are made.
struct LiveWish {
  std::string model;
  std::string receiver;
  LayoutDigest layout;
  uint32_t lanes = 1;
  uint64_t link_bytes_per_s = 0;
};

enum class PlanMode { kUpToDate, kFull, kDelta, kChain, kFolded };

struct PlannedStep {
  uint64_t payload_id = 0;
  std::shared_ptr<const Payload> payload;
};

struct Plan {
  uint64_t pull_id = 0;  // 0 for kUpToDate: nothing was opened
  PlanMode mode = PlanMode::kUpToDate;
  Held base;
  Held target;
  ManifestDigest target_digest;
  int64_t committed_unix_ns = 0;
  std::vector<PlannedStep> steps;
  uint64_t payload_bytes = 0;
  std::vector<Ticket> tickets;
  Ticket local_ticket;                   // for a connection on this host (local_server.h)
  CodecLevel level = CodecLevel::kFast;  // of the steps
};

struct LivePlan {
  uint64_t pull_id = 0;
  std::vector<Ticket> tickets;
};

// What one receiver last told about one model.
struct ReceiverReport {
  std::string receiver;
  Held held;
  std::string outcome;
  std::chrono::steady_clock::time_point at;
};

// One pull as its lanes see it. Thread-safe.
class Pull {
 public:
  Pull(uint64_t id, std::string receiver, std::shared_ptr<ServedRun> run, Version target)
      : id(id), receiver(std::move(receiver)), run(std::move(run)), target(target), touched_(Clock::now()) {}

  const uint64_t id;
  const std::string receiver;
  const std::shared_ptr<ServedRun> run;
  const Version target;  // as planned first; CatchUp moves on from it

  std::shared_ptr<const Payload> FindPayload(uint64_t payload_id) const;  // null: not of this pull
  void Touch();
  // Of OpenLive: it lasts as long as its lanes, whatever they do.
  bool live() const { return follower_ != nullptr; }
  // Its lanes end, at the latest with the next version, and no other is let in.
  bool closed() const { return closed_; }

  // One lane that was let in; its end makes room for another.
  class LaneLease {
   public:
    LaneLease(std::shared_ptr<Pull> pull, uint32_t lane) : pull_(std::move(pull)), lane_(lane) {}
    LaneLease(LaneLease&&) = default;
    ~LaneLease() {
      if (pull_ != nullptr) --pull_->lanes_;
    }
    Pull& operator*() const { return *pull_; }
    Pull* operator->() const { return pull_.get(); }
    uint32_t lane() const { return lane_; }  // how many the pull had before it

   private:
    std::shared_ptr<Pull> pull_;
    uint32_t lane_ = 0;
  };

 private:
  friend class PullTable;
  using Clock = std::chrono::steady_clock;

  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Payload>> payloads_;
  std::unique_ptr<DeltaStore::Hold> hold_;
  std::unique_ptr<LiveFeed::Follower> follower_;  // set before anybody else has the pull
  std::set<Ticket> tickets_;
  Clock::time_point touched_;
  std::atomic<uint32_t> lanes_{0};
  std::atomic<bool> closed_{false};
};

// Thread-safe.
class PullTable {
 public:
  // REQUIRES the catalog to outlive this.
  PullTable(const VersionCatalog* catalog, PullLimits limits) : catalog_(catalog), limits_(limits) {}

  // kNotFound: no such model. kState: no version yet, or another layout. kResourceExhausted: too many pulls.
  Result<Plan> Open(const PullWish& wish);
  // A subscription to the deltas of the run that is open now. Errors as Open's; a run without versions is fine.
  Result<LivePlan> OpenLive(const LiveWish& wish);
  // The steps from `oldest` to the newest version, for the blocks of a full pull. kNotFound: the pull has expired.
  // kState: too far behind, pull anew.
  Result<Plan> CatchUp(uint64_t pull_id, Version oldest);
  Result<std::vector<Ticket>> RenewTickets(uint64_t pull_id, uint32_t lanes);
  void Close(uint64_t pull_id, const Held& held, const std::string& outcome);

  // Lets a lane in and uses up its ticket. kPermission: unknown pull, or no such ticket. kResourceExhausted: too many
  // lanes.
  Result<Pull::LaneLease> Admit(uint64_t pull_id, const Ticket& ticket);

  // Ends pulls that nobody has touched for idle_timeout. To be called now and then.
  void Expire();

  size_t open_pulls(const std::string& model) const;
  // Pulls that were touched within `recent`.
  size_t ActivePulls(std::chrono::milliseconds recent) const;
  std::vector<ReceiverReport> Reports(const std::string& model) const;

 private:
  Result<std::shared_ptr<Pull>> Find(uint64_t pull_id);
  Result<std::shared_ptr<ServedRun>> FindRun(const std::string& model, const std::string& receiver,
                                             const LayoutDigest& layout) const;
  Status Insert(const std::shared_ptr<Pull>& pull);
  void AddSteps(Pull& pull, const std::vector<std::shared_ptr<const Payload>>& payloads, Plan& plan);
  std::vector<Ticket> IssueTickets(Pull& pull, uint32_t lanes);
  void Report(const std::string& model, ReceiverReport report);

  const VersionCatalog* const catalog_;
  const PullLimits limits_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Pull>> pulls_;
  std::map<std::string, std::map<std::string, ReceiverReport>> reports_;  // model -> receiver
  uint64_t next_payload_id_ = 1;
};

}  // namespace lockstep
