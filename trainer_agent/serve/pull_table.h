// PullTable: the pulls in progress. It plans them, admits their lanes, and ends unused ones.
//
// A pull ends by Close(), or by Expire(): after idle_timeout without a call or a block (a standing one, without a
// lane), or once its owner may no longer have the model. Nothing here waits for a receiver.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "trainer_agent/run/version_catalog.h"
#include "trainer_agent/serve/pull.h"
#include "trainer_agent/serve/pull_plan.h"
#include "trainer_agent/serve/receiver_reports.h"

namespace lockstep::serve {

struct PullLimits {
  size_t max_pulls = 256;   // and as many standing ones; of either, one identity that has a name may have a quarter
  uint32_t max_lanes = 16;  // of one pull; twice that while broken ones have not been noticed yet
  std::chrono::milliseconds idle_timeout{120'000};
};

// Thread-safe.
class PullTable {
 public:
  // REQUIRES the catalog to outlive this.
  PullTable(const run::VersionCatalog* catalog, PullLimits limits) : catalog_(catalog), limits_(limits) {}

  const PullLimits& limits() const { return limits_; }

  // kNotFound: no such model. kState: no version yet, unless it is to be a standing one, or another layout.
  // kResourceExhausted: too many pulls.
  Result<PullPlan> Open(const PullRequest& request);
  // The next four calls treat a pull that another identity than `owner` opened as one that does not exist.
  Result<std::shared_ptr<run::ServedRun>> RunOf(uint64_t pull_id, const std::string& owner) const;
  // The steps from `oldest` to the newest version, for the blocks of a full pull. kNotFound: the pull has expired.
  // kState: too far behind, pull again.
  Result<PullPlan> CatchUp(uint64_t pull_id, Version oldest, const std::string& owner = "");
  Result<std::vector<Ticket>> RenewTickets(uint64_t pull_id, uint32_t lanes, const std::string& owner = "");
  // Answers the model; empty: there is no such pull.
  std::string Close(uint64_t pull_id, const VersionRef& held, const std::string& outcome,
                    const std::string& owner = "");

  // The ticket of this name, not used yet; nothing: there is none. Uses nothing up, and keeps no pull alive.
  std::optional<Ticket> FindTicket(const wire::LaneIdentity& identity) const;
  // Lets a lane in and uses up its ticket. kPermission: unknown pull, or no such ticket. kResourceExhausted: too many
  // lanes.
  Result<Pull::LaneLease> Admit(uint64_t pull_id, const Ticket& ticket);

  // Ends each pull that is over at `now`, as above. Takes deltas back that the others hold for too long
  // (DeltaStore::TakeBack). The agent calls this now and then.
  void Expire(Pull::Clock::time_point now = Pull::Clock::now());

  size_t open_pulls(const std::string& model) const;
  // Pulls that were touched within `recent`.
  size_t ActivePulls(std::chrono::milliseconds recent) const;
  ReceiverReports& reports() { return reports_; }

 private:
  Result<std::shared_ptr<Pull>> Find(uint64_t pull_id) const;  // of any owner
  Result<std::shared_ptr<Pull>> FindOwn(uint64_t pull_id, const std::string& owner) const;
  Result<std::shared_ptr<Pull>> FindAndTouch(uint64_t pull_id, const std::string& owner) const;
  Result<PullPlan> OpenStanding(const PullRequest& request, const std::shared_ptr<run::ServedRun>& run);
  Result<std::shared_ptr<run::ServedRun>> FindRun(const PullRequest& request) const;
  Status Insert(const std::shared_ptr<Pull>& pull);
  Status AddSteps(Pull& pull, const run::DeltaStore::Chain& deltas, PullPlan& plan);
  std::vector<Ticket> IssueTickets(Pull& pull, uint32_t lanes) const;

  const run::VersionCatalog* const catalog_;
  const PullLimits limits_;
  ReceiverReports reports_;
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Pull>> pulls_ LS_GUARDED_BY(mutex_);
  uint64_t next_payload_id_ LS_GUARDED_BY(mutex_) = 1;
};

}  // namespace lockstep::serve
