#include "raas_receiver/session/caretaker.h"

#include <algorithm>
#include <optional>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::session {

using std::chrono::milliseconds;

void Caretaker::Scrub() {
  if (engines_.under_way()) return;
  DropDamaged();
  const std::optional<replica::Scrubber::Damage> damage = scrubber_.Step(replicas_);
  if (!damage) return;
  const bool current = damage->side == replica::ReplicaPair::Side::kCurrent;
  const Status what{ErrorCode::kCorrupt, Cat("the bytes of block ", damage->blocks[0], " of version ",
                                             damage->held.version, " have changed in memory")};
  telemetry::LogError("scrub_found_damage", what,
                      {{"model", model_}, {"blocks", damage->blocks.size()}, {"current", current}});
  history_.AddDamage(what, damage->blocks.size());
  if (!current) return DropOther();
  if (!damaged_.exchange(true)) mend_at_ = Clock::now();
}

bool Caretaker::MendDue() const {
  return damaged_ && Clock::now() >= mend_at_ && !engines_.under_way();
}

milliseconds Caretaker::UntilDue() const {
  if (engines_.under_way()) return milliseconds::max();
  const milliseconds scrub = scrubber_.UntilDue();
  if (!damaged_) return scrub;
  return std::clamp(std::chrono::ceil<milliseconds>(mend_at_ - Clock::now()), milliseconds(0), scrub);
}

void Caretaker::MendFailed() {
  mend_at_ = Clock::now() + backoff_.Next();
}

void Caretaker::Switched() {
  other_damaged_ = damaged_.exchange(false);
  if (!other_damaged_) return;
  backoff_.Reset();
  engines_.Distrust();
  if (!engines_.under_way()) DropOther();
}

void Caretaker::DropDamaged() {
  if (other_damaged_) DropOther();
}

void Caretaker::DropOther() {
  const Status dropped = replicas_.DropOther();
  other_damaged_ = !dropped.ok();
  if (other_damaged_ && !drop_failed_) telemetry::LogWarn("replica_drop_failed", dropped, {{"model", model_}});
  drop_failed_ = other_damaged_;
  if (!other_damaged_ && !damaged_) history_.EndDamage();
}

}  // namespace lockstep::session
