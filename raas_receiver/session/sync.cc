#include "raas_receiver/session/sync.h"

#include <algorithm>
#include <array>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/origin/version_ref_proto.h"
#include "raas_receiver/session/config_check.h"

namespace lockstep::session {
namespace {

constexpr char kCancelled[] = "the sync was ended by a rollback, or the receiver stops";

// Microseconds since the trainer committed, by the clock of this machine; 0 when its clock is ahead of ours.
uint64_t MicrosSince(int64_t unix_ns) {
  return static_cast<uint64_t>(std::max<int64_t>(0, telemetry::UnixNanos() - unix_ns) / 1000);
}

// The blocks that no chain brings to the target: they are not of its version, and no step starts from theirs.
std::vector<BlockIndex> Stranded(const std::vector<Version>& versions, const origin::Plan& plan) {
  std::vector<BlockIndex> stranded;
  for (BlockIndex block = 0; block < versions.size(); ++block) {
    const bool reachable = versions[block] == plan.target.version ||
                           std::any_of(plan.steps.begin(), plan.steps.end(),
                                       [&](const pull::DeltaStep& step) { return step.base == versions[block]; });
    if (!reachable) stranded.push_back(block);
  }
  return stranded;
}

}  // namespace

Sync::Sync(const SyncContext& context, SyncRequest request, std::atomic<v1::SessionState>& shown)
    : context_(context), request_(std::move(request)), shown_(shown), base_(context.replicas.current()) {
  record_.set_model(context_.model);
  *record_.mutable_from() = origin::ToProto(base_.held);
  *record_.mutable_to() = origin::ToProto(base_.held);
}

// What each state is called in logs, what it does, what its time counts to: a span and a duration of the record, and
// what status shows meanwhile:
// unspecified, what it showed.
struct Sync::StateRow {
  std::string_view name;
  Result<State> (Sync::*run)();
  std::string_view span;
  v1::SessionState shown;
  uint64_t (v1::SyncRecord::*spent_us)() const;
  void (v1::SyncRecord::*set_spent_us)(uint64_t);
};

const Sync::StateRow& Sync::RowOf(State state) {
  using Record = v1::SyncRecord;
  static constexpr std::array<StateRow, static_cast<size_t>(State::kDone)> kRows = {{
      {"negotiate", &Sync::Negotiate, "negotiate", v1::SESSION_STATE_NEGOTIATING, &Record::negotiate_us,
       &Record::set_negotiate_us},
      {"pull_delta", &Sync::PullDelta, "pull", v1::SESSION_STATE_PULLING, &Record::pull_us, &Record::set_pull_us},
      {"pull_full", &Sync::PullFull, "pull", v1::SESSION_STATE_PULLING, &Record::pull_us, &Record::set_pull_us},
      {"catch_up", &Sync::CatchUp, "pull", v1::SESSION_STATE_UNSPECIFIED, &Record::pull_us, &Record::set_pull_us},
      {"verify", &Sync::Verify, "verify", v1::SESSION_STATE_VERIFYING, &Record::apply_us, &Record::set_apply_us},
      {"apply", &Sync::Apply, "apply", v1::SESSION_STATE_APPLYING, &Record::apply_us, &Record::set_apply_us},
      {"repair", &Sync::Repair, "repair", v1::SESSION_STATE_UNSPECIFIED, &Record::apply_us, &Record::set_apply_us},
      {"commit", &Sync::Commit, "commit", v1::SESSION_STATE_COMMITTING, &Record::commit_us, &Record::set_commit_us},
      {"switch", &Sync::Switch, "commit", v1::SESSION_STATE_COMMITTING, &Record::commit_us, &Record::set_commit_us},
  }};
  return kRows.at(static_cast<size_t>(state));
}

Status Sync::Run() {
  Status status = RunStates();
  if (!status.ok()) {
    if (request_.stop.stop_requested()) status = {ErrorCode::kCancelled, kCancelled};
    context_.replicas.Abandon();
    status = status.WithContext(Cat("model ", context_.model));
    record_.set_error(status.ToString());
  }
  if (pull_ != nullptr) pull_->Close(context_.replicas.current().held, status);
  return status;
}

Status Sync::RunStates() {
  State state = request_.repair ? State::kApply : State::kNegotiate;
  if (request_.repair) TargetHeld();
  while (state != State::kDone) {
    if (request_.stop.stop_requested()) return {ErrorCode::kCancelled, kCancelled};
    const telemetry::Moment begun;
    const uint64_t bytes_before = PulledBytes();
    const StateRow& row = RowOf(state);
    telemetry::Log(telemetry::LogLevel::kDebug, "sync_state_entered", {{"model", context_.model}, {"state", row.name}});
    if (row.shown != v1::SESSION_STATE_UNSPECIFIED) shown_ = row.shown;
    Result<State> next = (this->*row.run)();
    (record_.*row.set_spent_us)((record_.*row.spent_us)() + begun.MicrosSince());
    CountBytes();
    AddSpanOf(row.span, begun, bytes_before);
    LS_ASSIGN_OR_RETURN(state, std::move(next));
  }
  return OkStatus();
}

void Sync::AddSpanOf(std::string_view name, const telemetry::Moment& begun, uint64_t bytes_before) {
  if (record_.mode() == "up_to_date") return;  // a question that found nothing new is on no version's way
  telemetry::Span span = SpanOf(name);
  if (span.name == "pull") span.bytes = PulledBytes() - bytes_before;
  if (span.name == "apply") span.bytes = record_.payload_bytes();
  telemetry::AddSpan(context_.timeline, std::move(span), begun);
}

telemetry::Span Sync::SpanOf(std::string_view name) const {
  return {.name = name,
          .model = context_.model,
          .run = plan_.target.run,
          .version = plan_.target.version,
          .transfer = plan_.transfer};
}

Status Sync::OpenPull() {
  const bool fits = base_.layout != nullptr && base_.layout->digest() == request_.layout->digest();
  auto opened = context_.origin.Open({.held = base_.held,
                                      .digest = base_.digest,
                                      .layout = request_.layout,
                                      .hashes = fits ? context_.replicas.current_hashes() : std::span<const uint64_t>(),
                                      .data = fits ? context_.replicas.current_data() : std::span<const std::byte>(),
                                      .whole = request_.force_full || request_.repair,
                                      .skipped = request_.skipped},
                                     request_.stop);
  // The trainer may have come back with another layout: ask for it again next time.
  if (opened.status().code() == ErrorCode::kState) request_.layout.reset();
  if (!opened.ok()) return opened.status();
  pull_ = *std::move(opened);
  plan_ = pull_->plan();
  record_.set_transfer(plan_.transfer);
  return CheckWanted();
}

// What is pulled may be newer than what was announced.
Status Sync::CheckWanted() const {
  if (plan_.target.nothing() || plan_.target != request_.skipped) return OkStatus();
  return {ErrorCode::kState,
          Cat("version ", plan_.target.version, " is skipped since a rollback; a newer one is waited for")};
}

// First state. After: PullDelta, PullFull, Switch, or done when there is nothing newer.
Result<Sync::State> Sync::Negotiate() {
  LS_RETURN_IF_ERROR(LearnLayout());
  LS_RETURN_IF_ERROR(OpenPull());
  record_.set_mode(std::string(plan_.mode()));
  RecordTarget();
  if (!plan_.full && plan_.target == base_.held) {
    if (plan_.target_digest != base_.digest) {
      return Status(ErrorCode::kProtocol, Cat(context_.origin.name(), " calls version ", plan_.target.version,
                                              " up to date and names another digest for it than what is held"));
    }
    record_.set_verified(!base_.damaged);
    return State::kDone;
  }
  const replica::PublishedVersion other = context_.replicas.previous();
  const bool held_already = other.held == plan_.target && other.digest == plan_.target_digest && !other.damaged;
  if (held_already && !request_.force_full) return State::kSwitch;
  return plan_.full ? State::kPullFull : State::kPullDelta;
}

Status Sync::LearnLayout() {
  const bool known =
      request_.layout != nullptr && (request_.announced.IsZero() || request_.announced == request_.layout->digest());
  if (!known) {
    LS_ASSIGN_OR_RETURN(request_.layout, context_.origin.GetLayout(request_.stop));
  }
  record_.set_model_bytes(request_.layout->data_bytes());
  return context_.replicas.Allocate(request_.layout);
}

void Sync::RecordTarget() {
  *record_.mutable_to() = origin::ToProto(plan_.target);
  record_.set_manifest_digest(ToHex(plan_.target_digest));
  if (plan_.full) return;
  record_.set_changed_elements(plan_.changed_elements);
}

// Before: Negotiate. After: Verify.
Result<Sync::State> Sync::PullDelta() {
  LS_RETURN_IF_ERROR(FetchDeltas(base_.digest));
  return State::kVerify;
}

// Before: Negotiate. After: CatchUp when the trainer moved on meanwhile, else Verify.
Result<Sync::State> Sync::PullFull() {
  LS_RETURN_IF_ERROR(context_.replicas.BeginFull(request_.layout, request_.stop));
  StageBlocks();
  LS_RETURN_IF_ERROR(pull_->FetchBlocks({request_.layout->AllBlocks(), plan_.target.version, /*exact=*/false}, *full_));
  const auto moved_on = [&](Version version) { return version != plan_.target.version; };
  return std::any_of(full_->versions().begin(), full_->versions().end(), moved_on) ? State::kCatchUp : State::kVerify;
}

// Before: PullFull, with blocks of several versions. After: Verify, with the steps that bring all to one version.
Result<Sync::State> Sync::CatchUp() {
  LS_ASSIGN_OR_RETURN(plan_, pull_->CatchUp(full_->versions()));
  RecordTarget();
  LS_RETURN_IF_ERROR(CheckWanted());
  const pull::FullRequest stranded{Stranded(full_->versions(), plan_), plan_.target.version, /*exact=*/true};
  LS_RETURN_IF_ERROR(pull_->FetchBlocks(stranded, *full_));
  LS_RETURN_IF_ERROR(FetchDeltas({}));
  return State::kVerify;
}

// Before: PullDelta, PullFull, CatchUp. After: Apply. Nothing that was held has been touched when this fails.
Result<Sync::State> Sync::Verify() {
  const model::ModelLayout& layout = *request_.layout;
  if (full_) {
    expected_ = replica::HashesAfter(chain_, full_->versions(), full_->hashes());
  } else {
    const std::vector<uint64_t>& hashes = context_.replicas.current_hashes();
    LS_RETURN_IF_ERROR(origin::VerifyChain(layout, chain_, hashes));
    expected_ = replica::HashesAfter(chain_, std::vector<Version>(hashes.size(), plan_.base.version), hashes);
  }
  if (model::ComputeManifestDigest(layout, expected_) != plan_.target_digest) {
    return Status(ErrorCode::kCorrupt, Cat("the blocks received for version ", plan_.target.version,
                                           " do not give the digest of its manifest"));
  }
  return State::kApply;
}

// Before: Verify; the first state of a repair. After: Repair when blocks did not come out as promised, else Commit.
Result<Sync::State> Sync::Apply() {
  if (full_) {
    damaged_ = context_.replicas.CatchUp(chain_, full_->versions());
  } else {
    LS_ASSIGN_OR_RETURN(damaged_, context_.replicas.BringForward(chain_, request_.stop));
  }
  return damaged_.empty() ? State::kCommit : State::kRepair;
}

// The origin is asked for blocks that neither replica has whole, and for nothing else. A version of another run has the
// number, and not the bytes.
Status Sync::OpenForLost() {
  LS_RETURN_IF_ERROR(OpenPull());
  if (plan_.target.run != base_.held.run) {
    return {ErrorCode::kState, Cat("block ", damaged_[0], " of version ", base_.held.version, " is damaged, and ",
                                   context_.origin.name(), " has another run by now; pull that")};
  }
  TargetHeld();
  return OkStatus();
}

// What is held is what is wanted.
void Sync::TargetHeld() {
  record_.set_mode("repair");
  record_.set_model_bytes(request_.layout->data_bytes());
  expected_ = context_.replicas.current_hashes();
  plan_.target = base_.held;
  plan_.target_digest = base_.digest;
  plan_.committed_unix_ns = base_.committed_unix_ns;
  plan_.label = base_.label;
  RecordTarget();
}

// Before: Apply. After: Commit; an error refuses the version.
Result<Sync::State> Sync::Repair() {
  telemetry::Log(telemetry::LogLevel::kWarn, "blocks_damaged",
                 {{"model", context_.model},
                  {"version", plan_.target.version},
                  {"blocks", damaged_.size()},
                  {"first", damaged_[0]}});
  if (pull_ == nullptr) LS_RETURN_IF_ERROR(OpenForLost());
  if (!full_) StageBlocks();
  LS_RETURN_IF_ERROR(pull_->FetchBlocks({damaged_, plan_.target.version, /*exact=*/true}, *full_));
  for (const BlockIndex block : damaged_) {
    if (full_->hashes()[block] == expected_[block]) continue;
    return Status(ErrorCode::kCorrupt,
                  Cat("block ", block, " of version ", plan_.target.version,
                      " differs from the manifest even when fetched in full; the version is refused"));
  }
  record_.set_repaired_blocks(damaged_.size());
  return State::kCommit;
}

// Before: Apply, Repair. After: done.
Result<Sync::State> Sync::Commit() {
  const bool delta = !plan_.full;
  model::Manifest manifest{plan_.target, std::move(expected_), plan_.target_digest};
  if (context_.archiver != nullptr && delta) context_.archiver->Keep(chain_, plan_.label);
  // Where blocks did not come out of the deltas, these need not say what changed: engines are not written by them.
  const bool led = delta && damaged_.empty();
  LS_RETURN_IF_ERROR(context_.replicas.Commit(std::move(manifest), plan_.committed_unix_ns,
                                              led ? chain_ : payload::DeltaChain(), plan_.label));
  const bool first = base_.layout == nullptr || base_.layout->digest() != request_.layout->digest();
  if (first) WarnOfConfig(context_.model, context_.replicas.current().path, *request_.layout);
  if (!request_.repair) record_.set_publish_to_commit_us(MicrosSince(plan_.committed_unix_ns));
  record_.set_verified(true);
  return State::kDone;
}

// Before: Negotiate. After: done.
Result<Sync::State> Sync::Switch() {
  LS_RETURN_IF_ERROR(context_.replicas.SwitchToOther());
  record_.set_publish_to_commit_us(MicrosSince(plan_.committed_unix_ns));
  record_.set_verified(true);
  return State::kDone;
}

void Sync::StageBlocks() {
  const auto place_of = [this](BlockIndex block) { return context_.replicas.target_block(block); };
  full_ = std::make_unique<origin::FullStaging>(*request_.layout, place_of);
}

// The plan's steps into chain_; `base_digest` names what the first one applies to.
Status Sync::FetchDeltas(const ManifestDigest& base_digest) {
  origin::DeltaStaging deltas(*request_.layout, plan_.target.run, plan_.steps);
  LS_RETURN_IF_ERROR(pull_->FetchDeltas(deltas));
  const telemetry::SpanScope span(context_.timeline, SpanOf("stage"));
  LS_ASSIGN_OR_RETURN(chain_, deltas.Assemble(base_digest, plan_.committed_unix_ns));
  return OkStatus();
}

void Sync::CountBytes() {
  if (pull_ == nullptr) return;
  const pull::SourceCounters counters = pull_->counters();
  record_.set_payload_bytes(counters.payload_bytes);
  record_.set_local_bytes(counters.local_bytes);
  record_.set_plain_bytes(counters.plain_bytes);
  record_.set_streamed_bytes(counters.streamed_bytes);
  record_.set_link_bytes_per_s(counters.bytes_per_s);
  lane_retries_ = counters.retries;
}

}  // namespace lockstep::session
