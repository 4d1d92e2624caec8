#include "raas_receiver/origin/parted_origin.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/model/parts.h"
#include "raas_receiver/origin/heads.h"
#include "raas_receiver/origin/joined_plan.h"

namespace lockstep::origin {
namespace {

using std::chrono::milliseconds;

// For parts that were asked at different moments to be at one version. Agents commit within moments of each other.
constexpr std::chrono::seconds kPatience{20};
constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{500};
constexpr std::chrono::seconds kTouch{10};  // an agent forgets a pull after two minutes

// The parts of one layout of the whole, in their order.
struct Whole {
  Layout layout;              // joined
  std::vector<Layout> parts;  // of each part, alone
  std::vector<size_t> from;   // of each part: which origin has it

  BlockIndex first_block(size_t part) const { return layout->parts()[part].first_block; }
  BlockIndex end_block(size_t part) const {
    return part + 1 < parts.size() ? layout->parts()[part + 1].first_block : layout->block_count();
  }
};
using WholePtr = std::shared_ptr<const Whole>;

// Calls `what` for each part, all at once. Returns the first error by time. `failed` is called after it, so that the
// others end.
Status ForEach(size_t parts, const std::function<Status(size_t)>& what, const std::function<void()>& failed) {
  Mutex mutex;
  Status first;
  const auto run = [&](size_t part) {
    const Status status = what(part);
    if (status.ok()) return;
    MutexLock lock(mutex);
    if (!first.ok()) return;
    first = status;
    failed();
  };
  {
    std::vector<std::jthread> threads;
    for (size_t part = 1; part < parts; ++part) threads.emplace_back([&run, part] { run(part); });
    run(0);
  }
  return first;
}

std::string Versions(const std::vector<Plan>& plans) {
  std::string text;
  for (const Plan& plan : plans) text += Cat(text.empty() ? "" : ", ", plan.target.version);
  return text;
}

// At once: an agent that is away takes its time.
void CloseAll(const std::vector<std::unique_ptr<Pull>>& pulls, const VersionRef& held, const Status& outcome) {
  const auto close = [&](size_t part) {
    if (pulls[part] != nullptr) pulls[part]->Close(held, outcome);
    return OkStatus();
  };
  (void)ForEach(pulls.size(), close, [] {});
}

class PartedPull final : public Pull {
 public:
  PartedPull(WholePtr whole, std::vector<std::unique_ptr<Pull>> pulls, JoinedPlan joined, std::stop_source cancel,
             const std::stop_token& stop)
      : whole_(std::move(whole)),
        pulls_(std::move(pulls)),
        joined_(std::move(joined)),
        opened_(joined_.plan),
        cancel_(std::move(cancel)),
        stop_(stop),
        on_stop_(stop, [this] { cancel_.request_stop(); }) {}

  const Plan& plan() const override { return opened_; }

  Status FetchBlocks(pull::FullRequest request, FullStaging& staging) override {
    staging.Expect(request.blocks);
    return ForEachPart([&](size_t part) -> Status {
      const BlockIndex first = whole_->first_block(part);
      pull::FullRequest own{.blocks = {}, .version = request.version, .exact = request.exact};
      for (const BlockIndex block : request.blocks) {
        if (block >= first && block < whole_->end_block(part)) own.blocks.push_back(block - first);
      }
      if (own.blocks.empty()) return OkStatus();
      FullStaging of_part(*whole_->parts[part], [&](BlockIndex block) { return staging.Place(first + block); });
      const Status status = pulls_[part]->FetchBlocks(std::move(own), of_part);
      staging.Take(first, of_part);
      return status;
    });
  }

  Status FetchDeltas(DeltaStaging& staging) override {
    const pull::DeltaRequest request = staging.TakeMissing();
    fetched_.resize(pulls_.size());
    return ForEachPart([&](size_t part) -> Status {
      const std::vector<pull::DeltaStep>& steps = joined_.steps[part];
      if (steps.empty()) return OkStatus();
      DeltaStaging of_part(*whole_->parts[part], request.run, steps);
      LS_RETURN_IF_ERROR(pulls_[part]->FetchDeltas(of_part));
      LS_ASSIGN_OR_RETURN(fetched_[part], of_part.Assemble({}, joined_.plan.committed_unix_ns));
      for (const auto& payload : fetched_[part]) {
        const auto step = std::ranges::find(request.steps, payload->target().version, &pull::DeltaStep::target);
        if (step == request.steps.end()) continue;  // it is here already
        LS_RETURN_IF_ERROR(Put(*payload, whole_->first_block(part), step->payload_id, staging));
      }
      return OkStatus();
    });
  }

  Result<Plan> CatchUp(std::span<const Version> by_block) override {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    Backoff pause(kLongestPause, kFirstPause);
    while (true) {
      std::vector<Plan> plans(pulls_.size());
      LS_RETURN_IF_ERROR(ForEachPart([&](size_t part) -> Status {
        const BlockIndex first = whole_->first_block(part);
        LS_ASSIGN_OR_RETURN(plans[part],
                            pulls_[part]->CatchUp(by_block.subspan(first, whole_->end_block(part) - first)));
        return OkStatus();
      }));
      auto joined = JoinPlans(*whole_->layout, plans, std::vector<ManifestDigest>(plans.size()), {});
      const Version newest = *std::max_element(by_block.begin(), by_block.end());
      if (joined && joined->plan.target.version >= newest) {
        joined_ = *std::move(joined);
        return joined_.plan;
      }
      if (std::chrono::steady_clock::now() > until) return Apart(plans);
      if (WaitForStop(pause.Next(), stop_)) return Status(ErrorCode::kCancelled, "the pull was cancelled");
    }
  }

  void Close(const VersionRef& held, const Status& outcome) override { CloseAll(pulls_, held, outcome); }

  pull::SourceCounters counters() const override {
    pull::SourceCounters sum;
    for (const auto& pull : pulls_) {
      const pull::SourceCounters one = pull->counters();
      sum.payload_bytes += one.payload_bytes;
      sum.local_bytes += one.local_bytes;
      sum.plain_bytes += one.plain_bytes;
      sum.streamed_bytes += one.streamed_bytes;
      sum.retries += one.retries;
      sum.bytes_per_s += one.bytes_per_s;
    }
    return sum;
  }

  static Status Apart(const std::vector<Plan>& plans) {
    return {ErrorCode::kUnavailable,
            Cat("the parts, in order, are at versions ", Versions(plans), " and reach none in common")};
  }

 private:
  Status ForEachPart(const std::function<Status(size_t)>& what) {
    Mutex mutex;
    std::condition_variable_any changed;
    size_t busy = pulls_.size();
    const std::stop_token ended = cancel_.get_token();
    // A part that is done waits for the others, and keeps its pull open meanwhile.
    const auto wait = [&](size_t part) {
      LS_RETURN_IF_ERROR(what(part));
      MutexLock lock(mutex);
      if (--busy == 0) changed.notify_all();
      const auto none_busy = [&]() LS_REQUIRES(mutex) { return busy == 0; };
      while (!changed.wait_for(lock, ended, kTouch, none_busy) && !ended.stop_requested()) {
        lock.unlock();
        pulls_[part]->Touch();
        lock.lock();
      }
      return OkStatus();
    };
    const Status status = ForEach(pulls_.size(), wait, [this] { cancel_.request_stop(); });
    return stop_.stop_requested() ? Status(ErrorCode::kCancelled, "the pull was cancelled") : status;
  }

  // `payload`, of a part that begins at block `first`, as entries of a step of the whole.
  static Status Put(const payload::Payload& payload, BlockIndex first, uint64_t step, DeltaStaging& staging) {
    for (const payload::PayloadEntry& entry : payload.entries()) {
      LS_RETURN_IF_ERROR(staging.PutEntry(step, {.block = first + entry.block,
                                                 .codec = static_cast<payload::Codec>(entry.codec),
                                                 .changes = entry.changes,
                                                 .target_hash = entry.target_hash,
                                                 .data_hash = entry.data_hash,
                                                 .data = {},
                                                 .lent = payload.data(entry)}));
    }
    return OkStatus();
  }

  const WholePtr whole_;
  const std::vector<std::unique_ptr<Pull>> pulls_;
  JoinedPlan joined_;
  const Plan opened_;
  std::stop_source cancel_;  // of the parts' pulls
  const std::stop_token stop_;
  std::vector<payload::DeltaChain> fetched_;  // of each part; staging has lent their bytes
  const std::stop_callback<std::function<void()>> on_stop_;
};

class PartedOrigin final : public Origin {
 public:
  explicit PartedOrigin(std::vector<std::unique_ptr<Origin>> agents) : agents_(std::move(agents)) {}

  std::string name() const override {
    std::string names;
    for (const auto& agent : agents_) names += Cat(names.empty() ? "" : "+", agent->name());
    return names;
  }
  Abilities can() const override { return agents_[0]->can(); }

  Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) override {
    // The streams of the other agents outlive an error of one.
    if (heads_ == nullptr) heads_ = std::make_unique<Heads>(agents_);
    while (true) {
      LS_ASSIGN_OR_RETURN(const auto known, heads_->Next(stop));
      std::vector<Head> all;
      for (size_t i = 0; i < known.size(); ++i) {
        if (known[i].head) all.push_back(*known[i].head);
        if (!known[i].head && !known[i].lost.ok()) return known[i].lost;
      }
      if (all.size() < known.size()) continue;
      LS_ASSIGN_OR_RETURN(const Head head, Common(all, stop));
      on_head(head);
    }
  }

  Result<Layout> GetLayout(std::stop_token stop) override {
    LS_ASSIGN_OR_RETURN(const WholePtr whole, Learn(stop));
    return whole->layout;
  }

  Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) override {
    WholePtr whole = Known();
    if (whole == nullptr || whole->layout->digest() != want.layout->digest()) {
      LS_ASSIGN_OR_RETURN(whole, Learn(stop));
    }
    if (whole->layout->digest() != want.layout->digest()) {
      return Status(ErrorCode::kState, "the model has another layout by now");
    }
    const auto until = std::chrono::steady_clock::now() + kPatience;
    Backoff pause(kLongestPause, kFirstPause);
    bool all_whole = want.whole;
    std::stop_source cancel;
    const std::stop_callback on_stop(stop, [&cancel] { cancel.request_stop(); });
    while (true) {
      std::vector<std::unique_ptr<Pull>> pulls;
      LS_ASSIGN_OR_RETURN(pulls, OpenParts(*whole, want, all_whole, cancel));
      std::vector<Plan> plans;
      for (const auto& pull : pulls) plans.push_back(pull->plan());
      const auto of_one_run = [&](const Plan& plan) { return plan.target.run == plans[0].target.run; };
      const size_t full = std::ranges::count_if(plans, &Plan::full);
      std::optional<JoinedPlan> joined;
      if (std::ranges::all_of(plans, of_one_run) && (full == 0 || full == plans.size())) {
        joined = JoinPlans(*whole->layout, plans, PartDigests(*whole, want), want.held);
      }
      if (joined) {
        return std::unique_ptr<Pull>(
            std::make_unique<PartedPull>(whole, std::move(pulls), *std::move(joined), cancel, stop));
      }
      // A part without the deltas needs all its blocks, and then those of the others come with them.
      all_whole = all_whole || full > 0;
      const Status apart = PartedPull::Apart(plans);
      CloseAll(pulls, want.held, apart);
      if (std::chrono::steady_clock::now() > until) return apart;
      if (WaitForStop(pause.Next(), stop)) return Status(ErrorCode::kCancelled, "the pull was cancelled");
    }
  }

  void Follow(const Want& from, std::stop_token stop) override {
    const WholePtr whole = Known();
    if (whole == nullptr || from.layout == nullptr || whole->layout->digest() != from.layout->digest()) return;
    const std::vector<Want> wants = OfParts(*whole, from);
    for (size_t part = 0; part < wants.size(); ++part) agents_[whole->from[part]]->Follow(wants[part], stop);
  }

  Result<std::string> Report(v1::ReportRequest report, std::stop_token stop) override {
    std::string reason;
    Status failed;
    for (const auto& agent : agents_) {  // also after one that is away
      const auto its = agent->Report(report, stop);
      if (!its.ok() && failed.ok()) failed = its.status();
      if (its.ok() && reason.empty()) reason = *its;
    }
    LS_RETURN_IF_ERROR(failed);
    return reason;
  }

 private:
  WholePtr Known() const {
    MutexLock lock(mutex_);
    return whole_;
  }

  // From all agents. kBadData: they have not all parts of one model, each once.
  Result<WholePtr> Learn(const std::stop_token& stop) {
    std::vector<Layout> layouts(agents_.size());
    LS_RETURN_IF_ERROR(ForEach(
        agents_.size(),
        [&](size_t agent) -> Status {
          LS_ASSIGN_OR_RETURN(layouts[agent], agents_[agent]->GetLayout(stop));
          return OkStatus();
        },
        [] {}));
    auto whole = std::make_shared<Whole>();
    whole->parts.resize(agents_.size());
    whole->from.resize(agents_.size());
    for (size_t agent = 0; agent < agents_.size(); ++agent) {
      LS_ASSIGN_OR_RETURN(const auto number, model::PartOf(*layouts[agent]));
      const std::string name = agents_[agent]->name();
      if (!number) return Status(ErrorCode::kBadData, Cat("agent ", name, " has all of the model, and not a part"));
      if (number->parts != agents_.size()) {
        return Status(ErrorCode::kBadData, Cat("agent ", name, " has part ", number->part, " of ", number->parts,
                                               ", and --source names ", agents_.size(), " agents; name those of all"));
      }
      if (whole->parts[number->part] != nullptr) {
        return Status(ErrorCode::kBadData, Cat("agents ", agents_[whole->from[number->part]]->name(), " and ", name,
                                               " both have part ", number->part, " of ", number->parts));
      }
      whole->parts[number->part] = layouts[agent];
      whole->from[number->part] = agent;
    }
    LS_ASSIGN_OR_RETURN(whole->layout, model::ModelLayout::Join(whole->parts));
    MutexLock lock(mutex_);
    whole_ = whole;
    return WholePtr(whole);
  }

  // What all agents announce together.
  Result<Head> Common(const std::vector<Head>& heads, const std::stop_token& stop) {
    Head common = heads[0];
    for (const Head& head : heads) {
      if (head.held.version < common.held.version) common = head;
    }
    for (const Head& head : heads) {
      if (head.held != common.held) continue;
      common.committed_unix_ns = std::max(common.committed_unix_ns, head.committed_unix_ns);
    }
    const bool one_run = std::ranges::all_of(heads, [&](const Head& head) { return head.held.run == common.held.run; });
    if (!one_run) common.held = {};
    WholePtr whole = Known();
    const auto is_known = [&](const Head& head, size_t agent) {
      const auto at = std::ranges::find(whole->from, agent);
      return whole->parts[at - whole->from.begin()]->digest() == head.layout;
    };
    bool current = whole != nullptr;
    for (size_t agent = 0; current && agent < heads.size(); ++agent) current = is_known(heads[agent], agent);
    if (!current) {
      LS_ASSIGN_OR_RETURN(whole, Learn(stop));
    }
    common.layout = whole->layout->digest();
    common.digest = {};
    const bool together = std::ranges::all_of(heads, [&](const Head& head) { return head.held == common.held; });
    if (!together || common.held.nothing()) return common;
    std::vector<ManifestDigest> digests;
    for (const size_t agent : whole->from) digests.push_back(heads[agent].digest);
    common.digest = model::JoinedDigest(*whole->layout, digests);
    return common;
  }

  // Of what is held; zero where it has another layout.
  static std::vector<ManifestDigest> PartDigests(const Whole& whole, const Want& want) {
    const bool fits = !want.held.nothing() && want.hashes.size() == whole.layout->block_count();
    return fits ? model::PartDigests(*whole.layout, want.hashes) : std::vector<ManifestDigest>(whole.parts.size());
  }
  // What is wanted of each part.
  static std::vector<Want> OfParts(const Whole& whole, const Want& want) {
    const std::vector<ManifestDigest> digests = PartDigests(whole, want);
    std::vector<Want> wants(whole.parts.size(), want);
    for (size_t part = 0; part < wants.size(); ++part) {
      wants[part].layout = whole.parts[part];
      wants[part].digest = digests[part];
    }
    return wants;
  }

  Result<std::vector<std::unique_ptr<Pull>>> OpenParts(const Whole& whole, const Want& want, bool all_whole,
                                                       const std::stop_source& cancel) {
    std::vector<std::unique_ptr<Pull>> pulls(agents_.size());
    std::vector<Want> wants = OfParts(whole, want);
    const Status status = ForEach(
        agents_.size(),
        [&](size_t part) -> Status {
          wants[part].whole = all_whole;
          LS_ASSIGN_OR_RETURN(pulls[part], agents_[whole.from[part]]->Open(wants[part], cancel.get_token()));
          return OkStatus();
        },
        [] {});
    if (status.ok()) return pulls;
    CloseAll(pulls, want.held, status);
    return status;
  }

  const std::vector<std::unique_ptr<Origin>> agents_;
  std::unique_ptr<Heads> heads_;  // of Watch; ends before the agents do
  mutable Mutex mutex_;
  WholePtr whole_ LS_GUARDED_BY(mutex_);  // as it was learned last; null: not yet
};

}  // namespace

std::unique_ptr<Origin> NewPartedOrigin(std::vector<std::unique_ptr<Origin>> agents) {
  return std::make_unique<PartedOrigin>(std::move(agents));
}

}  // namespace lockstep::origin
