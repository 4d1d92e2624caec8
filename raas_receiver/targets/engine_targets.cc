#include "raas_receiver/targets/engine_targets.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/placement/description/description.h"
#include "raas_receiver/targets/engine_group.h"

namespace lockstep::targets {
namespace {

using std::chrono_literals::operator""ms;

bool Gone(const std::shared_ptr<RankConnection>& rank) {
  return rank->gone();
}

// Waits until one of `ranks` has hung up, `wake` is written to, or `timeout` is over; -1: never.
void AwaitHangup(const std::vector<std::shared_ptr<RankConnection>>& ranks, int wake,
                 std::chrono::milliseconds timeout) {
  std::vector<pollfd> polled{{wake, POLLIN, 0}};
  for (const auto& rank : ranks) polled.push_back({rank->fd(), POLLRDHUP, 0});
  (void)::poll(polled.data(), polled.size(), static_cast<int>(timeout.count()));
  eventfd_t count = 0;
  if (polled[0].revents != 0) ::eventfd_read(wake, &count);
}

}  // namespace

EngineTargets::EngineTargets(EngineTargetsOptions options)
    : options_(std::move(options)),
      empty_since_unix_ns_(telemetry::UnixNanos()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

EngineTargets::~EngineTargets() = default;

void EngineTargets::Wake() const {
  ::eventfd_write(wake_.get(), 1);
}

void EngineTargets::Attach(std::shared_ptr<RankConnection> rank) {
  rank->SetAnswerTimeout(options_.pause_timeout);
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    if (waiting_.size() >= placement::kMaxEngineRanks) {
      return rank->SendRefused({ErrorCode::kResourceExhausted, "too many engine ranks wait already"});
    }
    waiting_.push_back(std::move(rank));
    changed = changed_;
  }
  if (changed) changed();
  Wake();
}

void EngineTargets::SetChanged(std::function<void()> changed) {
  MutexLock lock(mutex_);
  changed_ = std::move(changed);
}

std::vector<EngineReport> EngineTargets::Describe() const {
  MutexLock lock(mutex_);
  std::vector<EngineReport> views = views_;
  for (EngineReport& view : views) {
    if (Lacks(view)) view.at = {};
  }
  return views;
}

// Whether a rank of `group` has gone that was not dropped yet.
bool EngineTargets::Lacks(const EngineReport& group) const {
  return std::ranges::any_of(members_,
                             [&](const auto& rank) { return rank->engine() == group.engine && rank->gone(); });
}

std::optional<EngineTargets::Absence> EngineTargets::absence() const {
  MutexLock lock(mutex_);
  const bool coming = !waiting_.empty() || admitting_ != 0;
  const auto view = std::ranges::find_if(views_, [](const auto& each) { return each.attached < each.world; });
  if (coming || (view == views_.end() && !views_.empty())) return std::nullopt;
  const int64_t since = views_.empty() ? empty_since_unix_ns_ : view->attached_since_unix_ns;
  if (std::chrono::nanoseconds(telemetry::UnixNanos() - since) < options_.comes_back) return std::nullopt;
  const std::string text = views_.empty()
                               ? Cat("engine ", options_.engine, ": no rank has been attached since ", UtcText(since))
                               : Cat("engine ", view->engine, ": only ", view->attached, " of its ", view->world,
                                     " ranks are attached since ", UtcText(since));
  return Absence{text, since};
}

bool EngineTargets::empty() const {
  MutexLock lock(mutex_);
  return views_.empty() && waiting_.empty() && admitting_ == 0;
}

bool EngineTargets::Behind(const VersionRef& held) const {
  MutexLock lock(mutex_);
  return !waiting_.empty() ||
         std::any_of(views_.begin(), views_.end(), [&](const EngineReport& view) LS_REQUIRES(mutex_) {
           return view.attached == view.world && view.asleep == 0 && view.at != held && !Lacks(view);
         });
}

bool EngineTargets::AllRead() const {
  MutexLock lock(mutex_);
  const auto reads = [](const auto& rank) { return !rank->reads().nothing(); };
  return !(views_.empty() && waiting_.empty()) && std::ranges::all_of(waiting_, reads) &&
         std::ranges::all_of(views_, [](const EngineReport& view) { return view.waiting == 0; });
}

bool EngineTargets::Reads(const VersionRef& held) const {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  const auto lost = back_by_.find(held);
  if (now < started_ + options_.comes_back || (lost != back_by_.end() && now < lost->second)) return true;
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& rank) { return rank->reads() == held; }) ||
         std::any_of(views_.begin(), views_.end(), [&](const EngineReport& view) {
           return std::find(view.reads.begin(), view.reads.end(), held) != view.reads.end();
         });
}

EngineTargets::Clock::time_point EngineTargets::ranks_back_by() const {
  MutexLock lock(mutex_);
  Clock::time_point last = started_ + options_.comes_back;
  for (const auto& [held, by] : back_by_) last = std::max(last, by);
  return last;
}

bool EngineTargets::lost() const {
  MutexLock lock(mutex_);
  return busy_ && (lost_ || MemberGone());
}

bool EngineTargets::MemberGone() const {
  return std::ranges::any_of(members_, Gone);
}

std::vector<std::shared_ptr<RankConnection>> EngineTargets::members() const {
  MutexLock lock(mutex_);
  return members_;
}

bool EngineTargets::AllAt(const VersionRef& held) const {
  MutexLock lock(mutex_);
  return waiting_.empty() && !views_.empty() &&
         std::all_of(views_.begin(), views_.end(),
                     [&](const EngineReport& view) LS_REQUIRES(mutex_) { return view.at == held && !Lacks(view); });
}

bool EngineTargets::prepared() const {
  MutexLock lock(mutex_);
  return busy_;
}

// --- the engine's thread ---

void EngineTargets::Rest(std::chrono::milliseconds timeout) {
  std::vector<std::shared_ptr<RankConnection>> ranks;
  {
    MutexLock lock(mutex_);
    if (!idle_.wait_for(lock, timeout, [this]() LS_REQUIRES(mutex_) { return !busy_; })) return;
    ranks = Connections();
    if (!left_.empty()) timeout = std::min(timeout, options_.comes_back / 2 + 1ms);
  }
  AwaitHangup(ranks, wake_.get(), timeout);
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    if (busy_) return;
    LogLost();
    if (!DropGone()) return;
    UpdateViews();
    changed = changed_;
  }
  if (changed) changed();
}

std::vector<std::shared_ptr<RankConnection>> EngineTargets::Connections() const {
  std::vector<std::shared_ptr<RankConnection>> ranks = members_;
  ranks.insert(ranks.end(), waiting_.begin(), waiting_.end());
  return ranks;
}

bool EngineTargets::DropGone() {
  bool any = std::erase_if(waiting_, Gone) != 0;
  for (const auto& [engine, group] : groups_) any = group->DropGone() || any;
  (void)SettleLosses();
  return any;
}

// Whether ranks were dropped since the last time.
bool EngineTargets::SettleLosses() {
  const auto now = Clock::now();
  bool any = false;
  std::erase_if(back_by_, [&](const auto& entry) { return entry.second < now; });
  for (const auto& [engine, group] : groups_) {
    for (LostRank& lost : group->TakeLost()) {
      any = true;
      if (!lost.read.nothing()) back_by_[lost.read] = now + options_.comes_back;
      if (lost.left) left_.emplace_back(std::move(lost), now + options_.comes_back);
    }
  }
  std::erase_if(groups_, [](const auto& entry) { return entry.second->empty(); });
  return any;
}

// One that is there again, as after it fell asleep or woke, was not lost.
void EngineTargets::LogLost() {
  const std::vector<std::shared_ptr<RankConnection>> ranks = Connections();
  std::erase_if(left_, [&](const auto& entry) {
    const LostRank& lost = entry.first;
    if (Clock::now() < entry.second) return false;
    const bool back = std::ranges::any_of(ranks, [&](const auto& rank) {
      return rank->pid() == lost.pid && rank->rank() == lost.rank && rank->engine() == lost.engine;
    });
    if (back) return true;
    telemetry::LogWarn("engine_rank_lost", {ErrorCode::kUnavailable, "its connection ended"},
                       {{"model", options_.model}, {"engine", lost.engine}, {"rank", lost.rank}, {"pid", lost.pid}});
    return true;
  });
}

void EngineTargets::UpdateViews() {
  const int64_t now = telemetry::UnixNanos();
  const std::vector<EngineReport> before = std::exchange(views_, {});
  members_.clear();
  for (const auto& [engine, group] : groups_) {
    EngineReport view = group->Describe();
    const auto same = std::ranges::find_if(
        before, [&](const EngineReport& each) { return each.engine == view.engine && each.attached == view.attached; });
    view.attached_since_unix_ns = same == before.end() ? now : same->attached_since_unix_ns;
    views_.push_back(std::move(view));
    const auto ranks = group->ranks();
    members_.insert(members_.end(), ranks.begin(), ranks.end());
  }
  if (views_.empty() && !before.empty()) empty_since_unix_ns_ = now;
}

void EngineTargets::BeginBusy() {
  MutexLock lock(mutex_);
  busy_ = true;
}

void EngineTargets::EndBusy() {
  {
    MutexLock lock(mutex_);
    const bool lost = SettleLosses() || MemberGone();
    admitting_ = 0;
    busy_ = std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) { return entry.second->prepared(); });
    lost_ = (lost_ || lost) && busy_;
    UpdateViews();
  }
  idle_.notify_all();
}

Status EngineTargets::CheckPurpose(const RankConnection& rank) const {
  if (options_.compare_only && !rank.compares() && !rank.asleep()) {
    return {ErrorCode::kState,
            Cat(rank.Label(), " is to be written, and this receiver's engines load the directory: start the receiver ",
                "with --engine-load in-place, or set LOCKSTEP_ENGINE_COMPARE=1 for the engine")};
  }
  if (!options_.compare_only && rank.compares()) {
    return {ErrorCode::kState, Cat(rank.Label(), " compares only, and this receiver writes engines in place: what it ",
                                   "writes is compared without that")};
  }
  if (rank.gated() || options_.compare_only || options_.paused_server) return OkStatus();
  return {ErrorCode::kState, Cat(rank.Label(), " can be written only while its server is paused, which this receiver ",
                                 "does not do; name the kind of the server with --engine")};
}

Status EngineTargets::CheckServer(const RankConnection& rank, const std::vector<std::string>& incarnations) const {
  if (std::ranges::find(incarnations, rank.incarnation()) != incarnations.end()) return OkStatus();
  return {ErrorCode::kState, Cat(rank.Label(), " is not of the server that is paused for engine ", options_.engine,
                                 "; set ", "LOCKSTEP_ENGINE_NAME of its own server to the engine that it is")};
}

Status EngineTargets::AdmitWaiting(const model::ModelLayout& layout, Status* refused) {
  std::vector<std::shared_ptr<RankConnection>> waiting;
  {
    MutexLock lock(mutex_);
    (void)DropGone();
    waiting.swap(waiting_);
    admitting_ = waiting.size();
  }
  std::optional<Result<std::vector<std::string>>> server;
  for (const auto& rank : waiting) {
    Status joined = CheckPurpose(*rank);
    if (joined.ok() && !rank->gated() && options_.paused_server) {
      if (!server) server = options_.paused_server();
      if (!server->ok()) {
        MutexLock lock(mutex_);
        waiting_.push_back(rank);
        continue;
      }
      joined = CheckServer(*rank, **server);
    }
    if (joined.ok()) {
      std::unique_ptr<EngineGroup>& group = groups_[rank->engine()];
      if (!group || group->empty()) group = std::make_unique<EngineGroup>(options_, *rank);
      joined = group->Join(rank, layout);
    }
    if (joined.ok()) continue;
    LogRefused(options_.model, *rank, joined);
    rank->SendRefused(joined);
    if (refused != nullptr && refused->ok()) *refused = joined;
  }
  if (!server || server->ok()) return OkStatus();
  return server->status().WithContext("ranks wait until their server says that they are its own");
}

// Calls every group, also after an error, and returns the first.
template <typename Call>
Status EngineTargets::CallGroups(const Call& call) {
  Status first;
  for (const auto& [engine, group] : groups_) {
    const Status status = call(*group);
    if (first.ok()) first = status;
  }
  return first;
}

Status EngineTargets::Prepare(const TargetVersion& version, const std::optional<TargetVersion>& before,
                              DeltasBetween deltas) {
  BeginBusy();
  Status refused;
  Status status = AdmitWaiting(*version.layout, &refused);
  const CommitRequest request{version, before, std::move(deltas)};
  const Status prepared = CallGroups([&](EngineGroup& group) { return group.Prepare(request); });
  EndBusy();
  if (status.ok()) status = prepared;
  return status.ok() && !this->prepared() && !AllAt(version.held) ? refused : status;
}

Status EngineTargets::Commit() {
  BeginBusy();
  const Status status = CallGroups([](EngineGroup& group) { return group.prepared() ? group.Commit() : OkStatus(); });
  EndBusy();
  return status;
}

void EngineTargets::Abandon() {
  BeginBusy();
  for (const auto& [engine, group] : groups_) group->Abandon();
  EndBusy();
}

Result<size_t> EngineTargets::Verify(const TargetVersion& version) {
  BeginBusy();
  Status status = AdmitWaiting(*version.layout);
  if (status.ok()) status = CallGroups([&](EngineGroup& group) { return group.Verify(version); });
  const size_t groups = groups_.size();
  EndBusy();
  if (!status.ok()) return status;
  return groups;
}

Status EngineTargets::Admit(const model::ModelLayout& layout) {
  BeginBusy();
  Status status = AdmitWaiting(layout);
  EndBusy();
  return status;
}

void EngineTargets::Doubt() {
  BeginBusy();
  for (const auto& [engine, group] : groups_) group->Doubt();
  EndBusy();
}

}  // namespace lockstep::targets
