#include "trainer_agent/serve/pull_table.h"

#include <algorithm>
#include <cstring>

#include "common/base/text.h"
#include "trainer_agent/store/level_choice.h"

namespace lockstep {
namespace {

// Status is a table people read, not a database: a fleet's worth of receivers, then the stalest give way.
constexpr size_t kMaxReports = 4096;
constexpr size_t kMaxReceiverName = 256;

// Not guessable, so that nobody closes or renews a pull that is not theirs by counting.
uint64_t RandomPullId() {
  const auto bytes = RandomBytes16();
  uint64_t id = 0;
  std::memcpy(&id, bytes.data(), sizeof id);
  return std::max<uint64_t>(id, 1);
}

DeltaRoute RouteFor(const PullWish& wish, ServedRun& run) {
  if (wish.force_full || wish.held.nothing() || wish.held.run != run.run()) return {};
  const CodecLevel level = ChooseLevel(wish.link_bytes_per_s, run.deltas().NewestDensity());
  DeltaRoute route = run.deltas().RouteFrom(wish.held.version, run.layout().data_bytes(), level);
  // A receiver whose bytes are not what that version was must not get steps made for it.
  if (!route.steps.empty() && route.steps.front()->header().base_digest != wish.held_digest) return {};
  return route;
}

}  // namespace

std::shared_ptr<const Payload> Pull::FindPayload(uint64_t payload_id) const {
  std::lock_guard lock(mutex_);
  const auto at = payloads_.find(payload_id);
  return at == payloads_.end() ? nullptr : at->second;
}

void Pull::Touch() {
  std::lock_guard lock(mutex_);
  touched_ = Clock::now();
}

void PullTable::Expire() {
  std::vector<std::shared_ptr<Pull>> expired;  // released outside the lock: their holds take the store's
  std::lock_guard lock(mutex_);
  const auto now = Pull::Clock::now();
  for (auto at = pulls_.begin(); at != pulls_.end();) {
    std::lock_guard pull_lock(at->second->mutex_);
    const bool followed = at->second->live() && at->second->lanes_ > 0;
    if (followed || (!at->second->closed() && now - at->second->touched_ <= limits_.idle_timeout)) {
      ++at;
      continue;
    }
    at->second->closed_ = true;
    expired.push_back(at->second);
    at = pulls_.erase(at);
  }
}

size_t PullTable::ActivePulls(std::chrono::milliseconds recent) const {
  std::lock_guard lock(mutex_);
  const auto now = Pull::Clock::now();
  return static_cast<size_t>(std::count_if(pulls_.begin(), pulls_.end(), [&](const auto& item) {
    std::lock_guard pull_lock(item.second->mutex_);
    return now - item.second->touched_ <= recent;
  }));
}

Result<std::shared_ptr<ServedRun>> PullTable::FindRun(const std::string& model, const std::string& receiver,
                                                      const LayoutDigest& layout) const {
  if (CleanText(receiver, kMaxReceiverName) != receiver || receiver.find('\n') != std::string::npos) {
    return Status(ErrorCode::kBadData,
                  Cat("a receiver's name has at most ", kMaxReceiverName, " bytes and no control characters"));
  }
  auto run = catalog_->Find(model);
  if (run == nullptr) {
    return Status(ErrorCode::kNotFound,
                  Cat("model \"", model.substr(0, kMaxReceiverName), "\" is not open here; start its trainer first"));
  }
  if (layout == run->layout().digest()) return run;
  return Status(ErrorCode::kState, Cat("model ", model, ": the receiver's layout ", ToHex(layout), " is not ",
                                       ToHex(run->layout().digest()), "; fetch the layout anew"));
}

Status PullTable::Insert(const std::shared_ptr<Pull>& pull) {
  Expire();
  std::lock_guard lock(mutex_);
  const auto alike = static_cast<size_t>(std::count_if(
      pulls_.begin(), pulls_.end(), [&](const auto& item) { return item.second->live() == pull->live(); }));
  if (alike >= limits_.max_pulls) {
    return {ErrorCode::kResourceExhausted, Cat(alike, pull->live() ? " subscriptions" : " pulls",
                                               " are open, the limit; try again later or raise --max-pulls")};
  }
  pulls_[pull->id] = pull;
  return OkStatus();
}

std::vector<Ticket> PullTable::IssueTickets(Pull& pull, uint32_t lanes) {
  std::vector<Ticket> tickets(std::clamp<uint32_t>(lanes, 1, limits_.max_lanes));
  std::lock_guard lock(pull.mutex_);
  for (Ticket& ticket : tickets) {
    ticket = RandomId<Ticket>();
    if (pull.tickets_.size() >= 2 * limits_.max_lanes) pull.tickets_.erase(pull.tickets_.begin());
    pull.tickets_.insert(ticket);
  }
  return tickets;
}

void PullTable::AddSteps(Pull& pull, const std::vector<std::shared_ptr<const Payload>>& payloads, Plan& plan) {
  std::lock_guard lock(mutex_);
  std::lock_guard pull_lock(pull.mutex_);
  for (const auto& payload : payloads) {
    const uint64_t id = next_payload_id_++;
    pull.payloads_[id] = payload;
    plan.steps.push_back({id, payload});
    plan.payload_bytes += payload->header().data_bytes;
  }
  if (payloads.empty()) return;
  const PayloadHeader& last = payloads.back()->header();
  plan.target = payloads.back()->target();
  plan.target_digest = last.target_digest;
  plan.committed_unix_ns = last.committed_unix_ns;
}

Result<Plan> PullTable::Open(const PullWish& wish) {
  LS_ASSIGN_OR_RETURN(const auto run, FindRun(wish.model, wish.receiver, wish.layout));
  const auto newest = run->Newest();
  if (!newest) return Status(ErrorCode::kState, Cat("model ", wish.model, ": no version is committed yet"));
  Report(wish.model, {.receiver = wish.receiver, .held = wish.held, .outcome = "", .at = Pull::Clock::now()});
  Plan plan{.base = wish.held,
            .target = newest->manifest->held,
            .target_digest = newest->manifest->digest,
            .committed_unix_ns = newest->committed_unix_ns};
  if (wish.held == plan.target && wish.held_digest == plan.target_digest && !wish.force_full) return plan;

  const DeltaRoute route = RouteFor(wish, *run);
  const auto pull = std::make_shared<Pull>(RandomPullId(), wish.receiver, run, plan.target.version);
  LS_RETURN_IF_ERROR(Insert(pull));
  plan.pull_id = pull->id;
  plan.tickets = IssueTickets(*pull, wish.lanes);
  plan.local_ticket = IssueTickets(*pull, 1)[0];
  if (route.steps.empty()) {
    plan.mode = PlanMode::kFull;
    plan.base = {};
    plan.payload_bytes = run->layout().data_bytes();
    std::lock_guard lock(pull->mutex_);
    pull->hold_ = run->deltas().HoldFrom(plan.target.version);
    return plan;
  }
  plan.mode = route.folded ? PlanMode::kFolded : route.steps.size() > 1 ? PlanMode::kChain : PlanMode::kDelta;
  plan.level = route.level;
  AddSteps(*pull, route.steps, plan);
  return plan;
}

Result<LivePlan> PullTable::OpenLive(const LiveWish& wish) {
  LS_ASSIGN_OR_RETURN(const auto run, FindRun(wish.model, wish.receiver, wish.layout));
  const auto pull = std::make_shared<Pull>(RandomPullId(), wish.receiver, run, 0);
  pull->follower_ = std::make_unique<LiveFeed::Follower>(
      &run->live(), ChooseLevel(wish.link_bytes_per_s, run->deltas().NewestDensity()));
  LS_RETURN_IF_ERROR(Insert(pull));
  return LivePlan{pull->id, IssueTickets(*pull, wish.lanes)};
}

Result<std::shared_ptr<Pull>> PullTable::Find(uint64_t pull_id) {
  std::lock_guard lock(mutex_);
  const auto at = pulls_.find(pull_id);
  if (at == pulls_.end() || at->second->closed())
    return Status(ErrorCode::kNotFound, Cat("pull ", pull_id, " is not open; it may have expired"));
  at->second->Touch();
  return at->second;
}

Result<Plan> PullTable::CatchUp(uint64_t pull_id, Version oldest) {
  LS_ASSIGN_OR_RETURN(const auto pull, Find(pull_id));
  {
    // What an earlier catch-up promised is not wanted any more.
    std::lock_guard lock(pull->mutex_);
    pull->payloads_.clear();
  }
  const auto newest = pull->run->Newest();
  if (!newest) return Status(ErrorCode::kState, Cat("model ", pull->run->model(), ": the run has ended; pull anew"));
  std::vector<std::shared_ptr<const Payload>> chain;
  if (oldest != newest->manifest->held.version) {
    LS_ASSIGN_OR_RETURN(chain, pull->run->deltas().ChainFrom(oldest));
  }
  Plan plan{.pull_id = pull_id,
            .mode = PlanMode::kChain,
            .base = {pull->run->run(), oldest},
            .target = newest->manifest->held,
            .target_digest = newest->manifest->digest,
            .committed_unix_ns = newest->committed_unix_ns};
  AddSteps(*pull, chain, plan);
  return plan;
}

Result<std::vector<Ticket>> PullTable::RenewTickets(uint64_t pull_id, uint32_t lanes) {
  LS_ASSIGN_OR_RETURN(const auto pull, Find(pull_id));
  return IssueTickets(*pull, lanes);
}

void PullTable::Close(uint64_t pull_id, const Held& held, const std::string& outcome) {
  std::shared_ptr<Pull> pull;  // released outside the lock: its hold takes the store's
  {
    std::lock_guard lock(mutex_);
    const auto at = pulls_.find(pull_id);
    if (at == pulls_.end()) return;
    pull = at->second;
    pull->closed_ = true;
    // The lanes of a subscription may be slow to end, and count until they have.
    if (!pull->live() || pull->lanes_ == 0) pulls_.erase(at);
  }
  if (pull->live()) return;
  Report(pull->run->model(),
         {.receiver = pull->receiver, .held = held, .outcome = CleanText(outcome, 1024), .at = Pull::Clock::now()});
}

Result<Pull::LaneLease> PullTable::Admit(uint64_t pull_id, const Ticket& ticket) {
  auto pull = Find(pull_id);
  const Status refused{ErrorCode::kPermission, "the lane's ticket is unknown, used up or expired; ask for a new one"};
  if (!pull.ok()) return refused;
  std::lock_guard lock((*pull)->mutex_);
  if ((*pull)->tickets_.erase(ticket) == 0) return refused;
  if ((*pull)->lanes_ >= 2 * limits_.max_lanes) {
    return Status(ErrorCode::kResourceExhausted, Cat("the pull has ", (*pull)->lanes_, " lanes, twice --max-lanes"));
  }
  return Pull::LaneLease(*pull, (*pull)->lanes_++);
}

size_t PullTable::open_pulls(const std::string& model) const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(pulls_.begin(), pulls_.end(), [&](const auto& item) {
    return item.second->run->model() == model && !item.second->live();
  }));
}

void PullTable::Report(const std::string& model, ReceiverReport report) {
  std::lock_guard lock(mutex_);
  auto& receivers = reports_[model];
  if (receivers.size() >= kMaxReports && receivers.count(report.receiver) == 0) {
    receivers.erase(std::min_element(receivers.begin(), receivers.end(),
                                     [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  // Opening a pull tells what is held; how the last one went stays as it was told.
  if (report.outcome.empty()) report.outcome = receivers[report.receiver].outcome;
  receivers[report.receiver] = std::move(report);
}

std::vector<ReceiverReport> PullTable::Reports(const std::string& model) const {
  std::lock_guard lock(mutex_);
  std::vector<ReceiverReport> reports;
  if (const auto at = reports_.find(model); at != reports_.end()) {
    for (const auto& [receiver, report] : at->second) reports.push_back(report);
  }
  return reports;
}

}  // namespace lockstep
