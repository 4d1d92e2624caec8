#include "raas_receiver/origin/parted_origin.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/model/parts.h"
#include "raas_receiver/origin/heads.h"
#include "raas_receiver/origin/joined_plan.h"
#include "raas_receiver/origin/parted_pull.h"

namespace lockstep::origin {
namespace {

class PartedOrigin final : public Origin {
 public:
  PartedOrigin(std::vector<std::unique_ptr<Origin>> agents, bool some_parts)
      : agents_(std::move(agents)), some_parts_(some_parts) {}

  std::string name() const override {
    std::string names;
    for (const auto& agent : agents_) names += Cat(names.empty() ? "" : "+", agent->name());
    return names;
  }
  std::string share() const override {
    const WholePtr whole = Known();
    return whole == nullptr ? std::string() : whole->share;
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
    const auto until = std::chrono::steady_clock::now() + kPartsPatience;
    Backoff pause(kLongestPartsPause, kFirstPartsPause);
    std::stop_source cancel;
    const std::stop_callback on_stop(stop, [&cancel] { cancel.request_stop(); });
    while (true) {
      std::vector<std::unique_ptr<Pull>> pulls;
      LS_ASSIGN_OR_RETURN(pulls, OpenParts(*whole, want, cancel));
      std::vector<Plan> plans;
      for (const auto& pull : pulls) plans.push_back(pull->plan());
      const auto of_one_run = [&](const Plan& plan) { return plan.target.run == plans[0].target.run; };
      std::optional<JoinedPlan> joined;
      if (std::ranges::all_of(plans, of_one_run)) {
        joined = JoinPlans(*whole->layout, plans, PartDigests(*whole, want), want.held);
      }
      if (joined) {
        return NewPartedPull(whole, std::move(pulls), *std::move(joined), {want.held, want.hashes, want.data}, cancel,
                             stop);
      }
      const Status apart = Apart(plans);
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
    std::map<uint32_t, size_t> by_part;  // which agent has it
    uint32_t parts = 0;
    for (size_t agent = 0; agent < agents_.size(); ++agent) {
      LS_ASSIGN_OR_RETURN(const auto number, model::PartOf(*layouts[agent]));
      const std::string name = agents_[agent]->name();
      if (!number) return Status(ErrorCode::kBadData, Cat("agent ", name, " has all of the model, and not a part"));
      const std::string has = Cat("agent ", name, " has part ", number->part, " of ", number->parts);
      if (number->parts != agents_.size() && !some_parts_) {
        return Status(ErrorCode::kBadData, Cat(has, ", and --source names ", agents_.size(),
                                               " agents; name those of all, or give --some-parts"));
      }
      if (agent > 0 && number->parts != parts) {
        return Status(ErrorCode::kBadData, Cat(has, ", and another agent one of ", parts));
      }
      parts = number->parts;
      const auto [first, added] = by_part.emplace(number->part, agent);
      if (!added) {
        return Status(ErrorCode::kBadData, Cat("agents ", agents_[first->second]->name(), " and ", name,
                                               " both have part ", number->part, " of ", number->parts));
      }
    }
    auto whole = std::make_shared<Whole>();
    for (const auto& [part, agent] : by_part) {
      whole->parts.push_back(layouts[agent]);
      whole->from.push_back(agent);
      whole->share += Cat(!whole->share.empty() ? ", " : by_part.size() == 1 ? "part " : "parts ", part);
    }
    whole->share = by_part.size() == parts ? std::string() : Cat(whole->share, " of ", parts);
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

  Result<std::vector<std::unique_ptr<Pull>>> OpenParts(const Whole& whole, const Want& want,
                                                       const std::stop_source& cancel) {
    std::vector<std::unique_ptr<Pull>> pulls(agents_.size());
    std::vector<Want> wants = OfParts(whole, want);
    const Status status = ForEach(
        agents_.size(),
        [&](size_t part) -> Status {
          LS_ASSIGN_OR_RETURN(pulls[part], agents_[whole.from[part]]->Open(wants[part], cancel.get_token()));
          return OkStatus();
        },
        [] {});
    if (status.ok()) return pulls;
    CloseAll(pulls, want.held, status);
    return status;
  }

  const std::vector<std::unique_ptr<Origin>> agents_;
  const bool some_parts_;
  std::unique_ptr<Heads> heads_;  // of Watch; ends before the agents do
  mutable Mutex mutex_;
  WholePtr whole_ LS_GUARDED_BY(mutex_);  // as it was learned last; null: not yet
};

}  // namespace

std::unique_ptr<Origin> NewPartedOrigin(std::vector<std::unique_ptr<Origin>> agents, bool some_parts) {
  return std::make_unique<PartedOrigin>(std::move(agents), some_parts);
}

}  // namespace lockstep::origin
