#include "trainer_agent/serve/pull.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::serve {

void Pull::AddPayload(uint64_t payload_id, std::shared_ptr<const payload::Payload> payload) {
  MutexLock lock(mutex_);
  payloads_[payload_id] = std::move(payload);
}

void Pull::DropPayloads() {
  MutexLock lock(mutex_);
  payloads_.clear();
}

Result<std::shared_ptr<const payload::Payload>> Pull::FindPayload(uint64_t payload_id) const {
  MutexLock lock(mutex_);
  const auto at = payloads_.find(payload_id);
  if (at == payloads_.end()) return Status(ErrorCode::kNotFound, Cat("payload ", payload_id, " is not of this pull"));
  if (at->second != nullptr) return at->second;
  return Status(
      ErrorCode::kState,
      Cat("payload ", payload_id, " was taken back: the pull held it for too long after newer versions; pull again"));
}

void Pull::TakeBack(const payload::DeltaChain& payloads) {
  MutexLock lock(mutex_);
  for (auto& [id, payload] : payloads_) {
    if (std::ranges::find(payloads, payload) != payloads.end()) payload = nullptr;
  }
}

void Pull::PinDeltas() {
  MutexLock lock(mutex_);
  pin_ = run->deltas().PinFrom(target);
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
