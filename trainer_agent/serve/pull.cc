#include "trainer_agent/serve/pull.h"

#include <utility>

#include "common/base/text.h"

namespace lockstep::serve {

void Pull::AddDelta(uint64_t payload_id, std::shared_ptr<const run::StoredDelta> delta) {
  MutexLock lock(mutex_);
  deltas_[payload_id] = std::move(delta);
}

void Pull::DropDeltas() {
  MutexLock lock(mutex_);
  deltas_.clear();
}

Result<std::shared_ptr<const payload::Payload>> Pull::FindPayload(uint64_t payload_id) const {
  MutexLock lock(mutex_);
  const auto at = deltas_.find(payload_id);
  if (at == deltas_.end()) return Status(ErrorCode::kNotFound, Cat("payload ", payload_id, " is not of this pull"));
  if (auto payload = at->second->payload()) return payload;
  return Status(
      ErrorCode::kState,
      Cat("payload ", payload_id, " was taken back: the pull held it for too long after newer versions; pull again"));
}

std::shared_ptr<const void> Pull::Close() {
  closed_ = true;
  MutexLock lock(mutex_);
  return std::exchange(keeps_, nullptr);
}

void Pull::Touch() {
  MutexLock lock(mutex_);
  touched_ = Clock::now();
}

bool Pull::TouchedSince(Clock::time_point time) const {
  MutexLock lock(mutex_);
  return touched_ >= time;
}

bool Pull::Expired(Clock::time_point time) const {
  if (standing() && has_lanes()) return false;
  return closed() || !TouchedSince(time);
}

std::vector<Ticket> Pull::IssueTickets(uint32_t count, size_t max_unused) {
  std::vector<Ticket> tickets(count);
  MutexLock lock(mutex_);
  for (Ticket& ticket : tickets) {
    ticket = RandomId<Ticket>();
    if (tickets_.size() >= max_unused) tickets_.erase(tickets_.begin());
    tickets_[wire::NameOf(ticket)] = ticket;
  }
  return tickets;
}

std::optional<Ticket> Pull::FindTicket(const wire::TicketName& name) const {
  MutexLock lock(mutex_);
  const auto at = tickets_.find(name);
  return at == tickets_.end() ? std::nullopt : std::optional(at->second);
}

bool Pull::UseTicket(const Ticket& ticket) {
  MutexLock lock(mutex_);
  return tickets_.erase(wire::NameOf(ticket)) > 0;
}

Result<Pull::LaneLease> Pull::AddLane(const std::shared_ptr<Pull>& pull, uint32_t max_lanes) {
  MutexLock lock(pull->mutex_);
  if (pull->lanes_ >= max_lanes) {
    return Status(ErrorCode::kResourceExhausted, Cat("the pull has ", pull->lanes_, " lanes, twice --max-lanes"));
  }
  return LaneLease(pull, pull->lanes_++);
}

}  // namespace lockstep::serve
