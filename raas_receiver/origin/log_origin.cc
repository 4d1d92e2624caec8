#include "raas_receiver/origin/log_origin.h"

#include <algorithm>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "common/versionlog/log_reader.h"

namespace lockstep::origin {
namespace {

VersionRef RefTo(const v1::LogHistory& history, Version version) {
  return {{*Bytes16(history.run())}, version};
}

ManifestDigest DigestOf(const v1::LogVersion& version) {
  return {*Bytes16(version.manifest_digest())};
}

Head ReadHead(const v1::LogHead& head) {
  if (!head.has_history()) return {.written_unix_ns = head.written_unix_ns()};  // the first one is being written
  const v1::LogHistory& history = head.history();
  const v1::LogVersion& offered = versionlog::Offered(history);
  return {.held = RefTo(history, offered.version()),
          .digest = DigestOf(offered),
          .layout = {*Bytes16(history.layout_digest())},
          .committed_unix_ns = offered.committed_unix_ns(),
          .written_unix_ns = head.written_unix_ns()};
}

void SetTarget(Plan& plan, const v1::LogHistory& history, const v1::LogVersion& version) {
  plan.target = RefTo(history, version.version());
  plan.target_digest = DigestOf(version);
  plan.committed_unix_ns = version.committed_unix_ns();
  plan.label = version.label();
}

// A delta goes by the version that it leads to.
pull::DeltaStep ReadStep(const v1::LogStep& step) {
  return {.payload_id = step.target().version(),
          .base = step.base(),
          .target = step.target().version(),
          .target_digest = DigestOf(step.target()),
          .entries = step.entries(),
          .data_bytes = step.data_bytes(),
          .changed_elements = step.changed_elements()};
}

class LogPull final : public Pull {
 public:
  LogPull(versionlog::LogReader& reader, bool in_plaintext, versionlog::Head head, Layout layout, Plan plan,
          std::stop_token stop)
      : reader_(reader),
        in_plaintext_(in_plaintext),
        head_(std::move(head)),
        layout_(std::move(layout)),
        plan_(std::move(plan)),
        stop_(std::move(stop)),
        begun_(reader_.bytes_read()) {}

  const Plan& plan() const override { return plan_; }

  Status FetchBlocks(pull::FullRequest request, FullStaging& staging) override {
    staging.Expect(request.blocks);
    // A version that the writer was rolled back to is made as it is, and never brought forward.
    const bool newest = !request.exact && !head_->history().has_current();
    const Version version = request.exact ? request.version : plan_.target.version;
    const auto frame_of = [&](BlockIndex block) {
      return wire::FrameHeader{.block = block,
                               .version = newest ? head_->history().newest().version() : version,
                               .payload_bytes = static_cast<uint32_t>(layout_->block_range(block).bytes)};
    };
    const versionlog::BlocksToMake wanted{
        .blocks = std::move(request.blocks),
        .place_of = [&](BlockIndex block) { return staging.Destination({.block = block}); },
        .on_made =
            [&](BlockIndex block, uint64_t hash) {
              wire::FrameHeader frame = frame_of(block);
              frame.block_hash = frame.payload_hash = hash;
              return staging.Put(frame, staging.Destination(frame));
            }};
    if (newest) return reader_.MakeNewest(head_, *layout_, wanted, stop_);
    const v1::LogHistory& history = head_->history();
    if (version < history.oldest() || !versionlog::FindDigest(history, version)) {
      return {ErrorCode::kNotFound, Cat(reader_.url(), " has versions ", history.oldest(), " to ",
                                        history.newest().version(), ", and not ", version)};
    }
    made_newest_ = false;
    return reader_.MakeBlocks(history, *layout_, version, wanted, stop_);
  }

  Status FetchDeltas(DeltaStaging& staging) override {
    std::vector<const v1::LogStep*> steps;
    for (const pull::DeltaStep& missing : staging.TakeMissing().steps) {
      const auto& known = head_->history().steps();
      const auto step = std::ranges::find_if(
          known, [&](const v1::LogStep& each) { return each.target().version() == missing.payload_id; });
      if (step == known.end()) {
        return {ErrorCode::kNotFound, Cat(reader_.url(), " has no delta to version ", missing.payload_id)};
      }
      steps.push_back(&*step);
    }
    LS_ASSIGN_OR_RETURN(const payload::DeltaChain chain, reader_.ReadSteps(head_->history(), *layout_, steps, stop_));
    for (const auto& payload : chain) {
      LS_RETURN_IF_ERROR(staging.PutPayload(payload->target().version, payload));
    }
    return OkStatus();
  }

  // All blocks are of one version: the newest when they were made, or the plan's.
  Result<Plan> CatchUp(std::span<const Version>) override {
    if (!made_newest_) return plan_;
    Plan plan{.transfer = plan_.transfer, .full = true};
    SetTarget(plan, head_->history(), head_->history().newest());
    return plan;
  }

  void Close(const VersionRef&, const Status&) override {}

  pull::SourceCounters counters() const override {
    const uint64_t bytes = reader_.bytes_read() - begun_;
    return {.payload_bytes = bytes, .plain_bytes = in_plaintext_ ? bytes : 0};
  }

 private:
  versionlog::LogReader& reader_;
  const bool in_plaintext_;
  versionlog::Head head_;
  const Layout layout_;
  const Plan plan_;
  const std::stop_token stop_;
  const uint64_t begun_;
  bool made_newest_ = true;
};

class LogOrigin final : public Origin {
 public:
  LogOrigin(LogOriginOptions options, WorkerPool& workers)
      : options_(std::move(options)),
        transfers_(options_.connections),
        reader_(options_.store, options_.model, options_.trusted, transfers_, workers, options_.memory_bytes) {
    if (options_.remembered_path.empty()) return;
    auto head = versionlog::ReadRemembered(options_.remembered_path);
    if (!head.ok()) {
      telemetry::LogWarn("log_head_not_noted", head.status(), {{"model", options_.model}});
    } else if (!head->id().empty()) {
      reader_.Remember(*std::move(head));
      remembered_ = true;
    }
  }

  std::string name() const override { return reader_.url(); }
  Abilities can() const override { return {}; }

  Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) override {
    ForgetIfRemoved();
    versionlog::Head seen;
    bool told = false;
    while (true) {
      Result<versionlog::Head> head = reader_.AwaitHead(seen, options_.poll, stop);
      const bool none = head.status().code() == ErrorCode::kNotFound;
      if (!head.ok() && !none) return Explain(head.status());
      if (none && !std::exchange(told, true)) on_head({});
      if (none || *head == nullptr) continue;
      seen = *head;
      told = true;
      Note(seen);
      on_head(ReadHead(*seen));
    }
  }

  Result<Layout> GetLayout(std::stop_token stop) override {
    LS_ASSIGN_OR_RETURN(const versionlog::Head head, ReadWhole(stop));
    return reader_.ReadLayout(head->history(), /*whole=*/true, std::move(stop));
  }

  Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) override {
    LS_ASSIGN_OR_RETURN(versionlog::Head head, ReadWhole(stop));
    const v1::LogHistory& history = head->history();
    if (history.layout_digest() != ToBytes(want.layout->digest())) {
      return Status(ErrorCode::kState, Cat("model ", options_.model, " has another layout in ", name()));
    }
    LS_RETURN_IF_ERROR(versionlog::CheckLayout(history, *want.layout, /*whole=*/true).WithContext(name()));
    LS_ASSIGN_OR_RETURN(Plan plan, PlanFor(history, want));
    plan.transfer = ++opened_;
    telemetry::Log(telemetry::LogLevel::kDebug, "pull_planned",
                   {{"model", options_.model},
                    {"pull", plan.transfer},
                    {"mode", plan.mode()},
                    {"held", want.held.version},
                    {"version", plan.target.version},
                    {"steps", plan.steps.size()}});
    return std::unique_ptr<Pull>(std::make_unique<LogPull>(reader_, !options_.store->plain_host().empty(),
                                                           std::move(head), want.layout, std::move(plan),
                                                           std::move(stop)));
  }

  void Follow(const Want&, std::stop_token) override {}
  Result<std::string> Report(v1::ReportRequest, std::stop_token) override { return std::string(); }

 private:
  // A head with a history that can be read, remembered across restarts.
  Result<versionlog::Head> ReadWhole(const std::stop_token& stop) {
    Result<versionlog::Head> head = reader_.ReadHead(stop);
    const bool none = head.status().code() == ErrorCode::kNotFound;
    if (none || (head.ok() && !(*head)->has_history())) {
      return Status(ErrorCode::kNotFound, Cat(name(), " has no version of model ", options_.model, " yet"));
    }
    if (!head.ok()) return Explain(head.status());
    Note(*head);
    return head;
  }

  // A head that does not follow the one that is remembered is refused until an operator says otherwise.
  Status Explain(Status refused) const {
    if (refused.code() != ErrorCode::kState || options_.remembered_path.empty()) return refused;
    return {ErrorCode::kState,
            Cat(refused.message(), "; it is not read; if it is the right one, remove ", options_.remembered_path)};
  }

  void ForgetIfRemoved() {
    MutexLock lock(note_mutex_);
    if (!remembered_) return;
    const auto there = versionlog::ReadRemembered(options_.remembered_path);
    if (!there.ok() || !there->id().empty()) return;
    remembered_ = false;
    noted_ = nullptr;
    reader_.Remember(std::nullopt);
  }

  // What is needed to see that a later head follows it.
  void Note(const versionlog::Head& head) {
    MutexLock lock(note_mutex_);
    if (options_.remembered_path.empty() || noted_ == head || !head->has_history()) return;
    noted_ = head;
    const Status noted = versionlog::WriteRemembered(options_.remembered_path, *head);
    remembered_ = remembered_ || noted.ok();
    if (!noted.ok()) telemetry::LogWarn("log_head_not_noted", noted, {{"model", options_.model}});
  }

  Result<Plan> PlanFor(const v1::LogHistory& history, const Want& want) const {
    const VersionRef newest = RefTo(history, history.newest().version());
    const bool same_run = want.held.run == newest.run && !want.held.nothing();
    // Whoever has a newer version than the writer was rolled back to keeps it, as the writer's other replica does.
    const bool beyond = same_run && want.held.version > versionlog::Offered(history).version();
    const v1::LogVersion& target = beyond ? history.newest() : versionlog::Offered(history);
    Plan plan;
    SetTarget(plan, history, target);
    if (same_run && want.held.version > newest.version) {
      if (want.whole) {
        return Status(ErrorCode::kState, Cat(name(), " has version ", newest.version, " of model ", options_.model,
                                             " so far, and ", want.held.version, " is held"));
      }
      plan.target = want.held;  // the log is late, as after another origin
      plan.target_digest = want.digest;
      return plan;
    }
    // More deltas than a model are not worth it.
    const bool long_way = versionlog::StepBytes(history, want.held.version) > want.layout->data_bytes();
    if (!same_run || want.whole || long_way || versionlog::FindDigest(history, want.held.version) != want.digest) {
      plan.full = true;
      return plan;
    }
    plan.base = want.held;
    uint64_t bytes = 0;
    for (const v1::LogStep& step : history.steps()) {
      if (step.base() < want.held.version || step.target().version() > target.version()) continue;
      bytes += step.payload().bytes();
      if (bytes > options_.memory_bytes && !plan.steps.empty() && plan.target != want.skipped) {
        plan.goes_on = true;
        break;
      }
      plan.steps.push_back(ReadStep(step));
      plan.changed_elements += step.changed_elements();
      SetTarget(plan, history, step.target());
    }
    return plan;
  }

  const LogOriginOptions options_;
  WorkerPool transfers_;
  versionlog::LogReader reader_;
  Mutex note_mutex_;
  versionlog::Head noted_ LS_GUARDED_BY(note_mutex_);   // at remembered_path
  bool remembered_ LS_GUARDED_BY(note_mutex_) = false;  // a head was there, once
  uint64_t opened_ = 0;                                 // pulls
};

}  // namespace

std::unique_ptr<Origin> NewLogOrigin(LogOriginOptions options, WorkerPool& workers) {
  return std::make_unique<LogOrigin>(std::move(options), workers);
}

}  // namespace lockstep::origin
