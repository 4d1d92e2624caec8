#include "raas_receiver/engine/ranks/engine_ranks.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/engine/placement/description/description.h"
#include "raas_receiver/engine/ranks/rank_group.h"

namespace lockstep::engine {
namespace {

using std::chrono_literals::operator""ms;

bool Gone(const std::shared_ptr<RankConnection>& rank) {
  return rank->gone();
}

// Waits until one of `ranks` has hung up, `wake` is written to, or `timeout` is over; -1: never.
void AwaitHangup(const Ranks& ranks, int wake, std::chrono::milliseconds timeout) {
  std::vector<pollfd> polled{{wake, POLLIN, 0}};
  for (const auto& rank : ranks) polled.push_back({rank->fd(), POLLRDHUP, 0});
  (void)::poll(polled.data(), polled.size(), static_cast<int>(timeout.count()));
  eventfd_t count = 0;
  if (polled[0].revents != 0) ::eventfd_read(wake, &count);
}

}  // namespace

EngineRanks::EngineRanks(EngineRanksOptions options)
    : options_(std::move(options)),
      empty_since_unix_ns_(telemetry::UnixNanos()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

EngineRanks::~EngineRanks() = default;

void EngineRanks::Wake() const {
  ::eventfd_write(wake_.get(), 1);
}

void EngineRanks::Attach(std::shared_ptr<RankConnection> rank) {
  rank->SetAnswerTimeout(options_.pause_timeout);
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    if (waiting_.size() >= kMaxEngineRanks) {
      return rank->SendRefused({ErrorCode::kResourceExhausted, "too many engine ranks wait already"});
    }
    waiting_.push_back(std::move(rank));
    changed = changed_;
  }
  if (changed) changed();
  Wake();
}

void EngineRanks::SetChanged(std::function<void()> changed) {
  MutexLock lock(mutex_);
  changed_ = std::move(changed);
}

std::vector<RankGroupReport> EngineRanks::Describe() const {
  MutexLock lock(mutex_);
  std::vector<RankGroupReport> views = views_;
  for (RankGroupReport& view : views) {
    if (Lacks(view)) view.at = {};
  }
  return views;
}

// Whether a rank of `group` has gone that was not dropped yet.
bool EngineRanks::Lacks(const RankGroupReport& group) const {
  return std::ranges::any_of(members_, [&](const auto& rank) { return rank->group() == group.name && rank->gone(); });
}

std::optional<EngineRanks::Absence> EngineRanks::absence() const {
  MutexLock lock(mutex_);
  const auto view = std::ranges::find_if(views_, [](const auto& each) { return each.attached < each.world; });
  if (!waiting_.empty() || admitting_ != 0 || (view == views_.end() && !views_.empty())) return std::nullopt;
  const int64_t since = views_.empty() ? empty_since_unix_ns_ : view->attached_since_unix_ns;
  if (std::chrono::nanoseconds(telemetry::UnixNanos() - since) < options_.comes_back) return std::nullopt;
  const std::string text = views_.empty()
                               ? Cat("engine ", options_.engine, ": no rank has been attached since ", UtcText(since))
                               : Cat("engine ", view->name, ": only ", view->attached, " of its ", view->world,
                                     " ranks are attached since ", UtcText(since));
  return Absence{text, since};
}

bool EngineRanks::empty() const {
  MutexLock lock(mutex_);
  return views_.empty() && waiting_.empty() && admitting_ == 0;
}

bool EngineRanks::Behind(const VersionRef& held) const {
  MutexLock lock(mutex_);
  return !waiting_.empty() ||
         std::any_of(views_.begin(), views_.end(), [&](const RankGroupReport& view) LS_REQUIRES(mutex_) {
           return view.attached == view.world && view.asleep == 0 && view.at != held && !Lacks(view);
         });
}

bool EngineRanks::AllRead() const {
  MutexLock lock(mutex_);
  const auto reads = [](const auto& rank) { return !rank->reads().nothing(); };
  return !(views_.empty() && waiting_.empty()) && std::ranges::all_of(waiting_, reads) &&
         std::ranges::all_of(views_, [](const RankGroupReport& view) { return view.waiting == 0; });
}

bool EngineRanks::Reads(const VersionRef& held) const {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  const auto lost = back_by_.find(held);
  if (now < started_ + options_.comes_back || (lost != back_by_.end() && now < lost->second)) return true;
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& rank) { return rank->reads() == held; }) ||
         std::any_of(views_.begin(), views_.end(), [&](const RankGroupReport& view) {
           return std::find(view.reads.begin(), view.reads.end(), held) != view.reads.end();
         });
}

EngineRanks::Clock::time_point EngineRanks::ranks_back_by() const {
  MutexLock lock(mutex_);
  Clock::time_point last = started_ + options_.comes_back;
  for (const auto& [held, by] : back_by_) last = std::max(last, by);
  return last;
}

std::optional<Agreement> EngineRanks::apart() const {
  MutexLock lock(mutex_);
  std::optional<Agreement> apart;
  for (const RankGroupReport& view : views_) apart = std::max(apart, view.apart);
  return apart;
}

bool EngineRanks::lost() const {
  MutexLock lock(mutex_);
  return lost_ || MemberGone();
}

bool EngineRanks::MemberGone() const {
  return std::ranges::any_of(members_, Gone);
}

Ranks EngineRanks::members() const {
  MutexLock lock(mutex_);
  return members_;
}

bool EngineRanks::AllAt(const VersionRef& held) const {
  MutexLock lock(mutex_);
  return !held.nothing() && waiting_.empty() && !views_.empty() &&
         std::all_of(views_.begin(), views_.end(),
                     [&](const RankGroupReport& view) LS_REQUIRES(mutex_) { return view.at == held && !Lacks(view); });
}

bool EngineRanks::prepared() const {
  return std::ranges::any_of(groups_, [](const auto& entry) { return entry.second->prepared(); });
}

// --- the engine's thread ---

void EngineRanks::Rest(std::chrono::milliseconds timeout) {
  Ranks ranks;
  {
    MutexLock lock(mutex_);
    ranks = Connections();
    if (!left_.empty()) timeout = std::min(timeout, options_.comes_back / 2 + 1ms);
  }
  AwaitHangup(ranks, wake_.get(), timeout);
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    LogLost();
    if (!DropGone()) return;
    UpdateViews(/*settled=*/true);
    changed = changed_;
  }
  if (changed) changed();
}

Ranks EngineRanks::Connections() const {
  Ranks ranks = members_;
  ranks.insert(ranks.end(), waiting_.begin(), waiting_.end());
  return ranks;
}

bool EngineRanks::DropGone() {
  bool any = std::erase_if(waiting_, Gone) != 0;
  for (const auto& [name, group] : groups_) any = group->DropGone() || any;
  SettleLosses();
  return any;
}

// Of the ranks that were dropped since the last time.
void EngineRanks::SettleLosses() {
  const auto now = Clock::now();
  std::erase_if(back_by_, [&](const auto& entry) { return entry.second < now; });
  for (const auto& [name, group] : groups_) {
    for (LostRank& lost : group->TakeLost()) {
      lost_ = true;
      if (!lost.read.nothing()) back_by_[lost.read] = now + options_.comes_back;
      if (lost.left) left_.emplace_back(std::move(lost), now + options_.comes_back);
    }
  }
  std::erase_if(groups_, [](const auto& entry) { return entry.second->empty(); });
}

// One that is there again, as after it fell asleep or woke, was not lost.
void EngineRanks::LogLost() {
  const Ranks ranks = Connections();
  std::erase_if(left_, [&](const auto& entry) {
    const LostRank& lost = entry.first;
    if (Clock::now() < entry.second) return false;
    const bool back = std::ranges::any_of(ranks, [&](const auto& rank) {
      return rank->pid() == lost.pid && rank->rank() == lost.rank && rank->group() == lost.group;
    });
    if (back) return true;
    telemetry::LogWarn("engine_rank_lost", {ErrorCode::kUnavailable, "its connection ended"},
                       {{"model", options_.model}, {"engine", lost.group}, {"rank", lost.rank}, {"pid", lost.pid}});
    return true;
  });
}

// Ranks that were admitted and may be refused yet are shown, and change no time since when.
void EngineRanks::UpdateViews(bool settled) {
  const int64_t now = telemetry::UnixNanos();
  views_.clear();
  members_.clear();
  for (const auto& [name, group] : groups_) {
    RankGroupReport view = group->Describe();
    const auto same = std::ranges::find_if(settled_, [&](const RankGroupReport& each) {
      return each.name == view.name && each.attached == view.attached;
    });
    view.attached_since_unix_ns = same == settled_.end() ? now : same->attached_since_unix_ns;
    views_.push_back(std::move(view));
    const Ranks ranks = group->present();
    members_.insert(members_.end(), ranks.begin(), ranks.end());
  }
  if (!settled) return;
  if (views_.empty() && !settled_.empty()) empty_since_unix_ns_ = now;
  settled_ = views_;
}

void EngineRanks::Update() {
  MutexLock lock(mutex_);
  SettleLosses();
  UpdateViews(/*settled=*/true);
}

Status EngineRanks::CheckPurpose(const RankConnection& rank) const {
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

Status EngineRanks::CheckServer(const RankConnection& rank, const std::vector<std::string>& incarnations) const {
  if (std::ranges::find(incarnations, rank.incarnation()) != incarnations.end()) return OkStatus();
  return {ErrorCode::kState, Cat(rank.Label(), " is not of the server that is paused for engine ", options_.engine,
                                 "; set ", "LOCKSTEP_ENGINE_NAME of its own server to the engine that it is")};
}

Status EngineRanks::AdmitWaiting(const model::ModelLayout& layout, Status* refused) {
  Ranks waiting;
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
      std::unique_ptr<RankGroup>& group = groups_[rank->group()];
      if (!group || group->empty()) group = std::make_unique<RankGroup>(options_, *rank);
      joined = group->Join(rank, layout);
    }
    if (joined.ok()) continue;
    LogRefused(options_.model, *rank, joined);
    rank->SendRefused(joined);
    if (refused != nullptr && refused->ok()) *refused = joined;
  }
  {
    MutexLock lock(mutex_);
    SettleLosses();
    UpdateViews(/*settled=*/false);
    admitting_ = 0;
  }
  if (!server || server->ok()) return OkStatus();
  return server->status().WithContext("ranks wait until their server says that they are its own");
}

// Calls every group, also after an error, and returns the first.
template <typename Call>
Status EngineRanks::CallGroups(const Call& call) {
  Status first;
  for (const auto& [name, group] : groups_) {
    const Status status = call(*group);
    if (first.ok()) first = status;
  }
  return first;
}

Status EngineRanks::Prepare(const CommitRequest& request) {
  Status refused;
  Status status = AdmitWaiting(*request.version.layout, &refused);
  {
    MutexLock lock(mutex_);
    lost_ = false;
  }
  const Status prepared = CallGroups([&](RankGroup& group) { return group.Prepare(request); });
  Update();
  if (status.ok()) status = prepared;
  return status.ok() && !this->prepared() && !AllAt(request.version.held) ? refused : status;
}

Status EngineRanks::Commit() {
  const Status status = CallGroups([](RankGroup& group) { return group.prepared() ? group.Commit() : OkStatus(); });
  Update();
  return status;
}

Status EngineRanks::AgreeServed(const VersionRef& held) {
  const Status status = CallGroups([&](RankGroup& group) { return group.Agree(AgreeStep::kServed, held); });
  Update();
  return status;
}

void EngineRanks::Abandon() {
  for (const auto& [name, group] : groups_) group->Abandon();
  Update();
}

Result<size_t> EngineRanks::Verify(const VersionData& version) {
  Status status = AdmitWaiting(*version.layout);
  if (status.ok()) status = CallGroups([&](RankGroup& group) { return group.Verify(version); });
  const size_t groups = groups_.size();
  Update();
  if (!status.ok()) return status;
  return groups;
}

Status EngineRanks::Admit(const model::ModelLayout& layout) {
  const Status status = AdmitWaiting(layout);
  Update();
  return status;
}

void EngineRanks::Doubt() {
  for (const auto& [name, group] : groups_) group->Doubt();
  Update();
}

}  // namespace lockstep::engine
