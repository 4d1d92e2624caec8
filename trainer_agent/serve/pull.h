// Pull: one pull in progress as its lanes see it, and the tickets that let them in.
//
// A pull keeps alive what its plan promised: its deltas, and for a full pull the store's from its target on. A standing
// pull has no target, and lasts as long as its lanes.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/wire/lane_identity.h"
#include "trainer_agent/run/version_catalog.h"

namespace lockstep::serve {

// Thread-safe.
class Pull {
 public:
  using Clock = std::chrono::steady_clock;

  // `owner`: the identity of the peer that opened it; `target`: 0 makes the pull a standing one; `keeps`: lives until
  // the pull is closed; `allowed`: why the owner may not have the model any more (null: it may).
  Pull(uint64_t id, std::string receiver, std::string owner, std::shared_ptr<run::ServedRun> run, Version target,
       std::shared_ptr<const void> keeps, std::function<Status()> allowed)
      : id(id),
        receiver(std::move(receiver)),
        owner(std::move(owner)),
        run(std::move(run)),
        target(target),
        allowed_(std::move(allowed)),
        keeps_(std::move(keeps)),
        touched_(Clock::now()) {}

  const uint64_t id;
  const std::string receiver;
  const std::string owner;
  const std::shared_ptr<run::ServedRun> run;
  const Version target;  // as planned first; CatchUp moves on from it

  void AddDelta(uint64_t payload_id, std::shared_ptr<const run::StoredDelta> delta);
  void DropDeltas();
  // kNotFound: the payload is not of this pull. kState: it was taken back; the receiver must pull again.
  Result<std::shared_ptr<const payload::Payload>> FindPayload(uint64_t payload_id) const;

  void Touch();
  bool TouchedSince(Clock::time_point time) const;
  bool standing() const { return target == 0; }
  // From now on no lane is let in; those that are there end, at the latest with the next version. Returns what the pull
  // kept: its end may wait for the run's store.
  std::shared_ptr<const void> Close();
  bool closed() const { return closed_; }
  bool revoked() const { return allowed_ && !allowed_().ok(); }
  // Whether it is to be forgotten: closed, or not touched since `time`, and in both cases no standing one with lanes.
  bool Expired(Clock::time_point time) const;
  bool has_lanes() const { return lanes_ > 0; }

  // At most `max_unused` tickets stay valid until they are used.
  std::vector<Ticket> IssueTickets(uint32_t count, size_t max_unused);
  std::optional<Ticket> FindTicket(const wire::TicketName& name) const;
  bool UseTicket(const Ticket& ticket);  // false: there is no such ticket

  // One admitted lane. The lane counts against `max_lanes` until its lease ends.
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

  // kResourceExhausted: `max_lanes` are there already.
  static Result<LaneLease> AddLane(const std::shared_ptr<Pull>& pull, uint32_t max_lanes);

 private:
  const std::function<Status()> allowed_;
  mutable Mutex mutex_;
  std::shared_ptr<const void> keeps_ LS_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<const run::StoredDelta>> deltas_ LS_GUARDED_BY(mutex_);  // by payload id
  std::map<wire::TicketName, Ticket> tickets_ LS_GUARDED_BY(mutex_);
  Clock::time_point touched_ LS_GUARDED_BY(mutex_);
  std::atomic<uint32_t> lanes_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace lockstep::serve
