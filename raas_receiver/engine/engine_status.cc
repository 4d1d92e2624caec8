// What an engine says of itself: its state, its errors, and what a status shows.
#include <algorithm>

#include "common/base/text.h"
#include "kernels/hash.h"
#include "raas_receiver/engine/engine.h"
#include "raas_receiver/origin/version_ref_proto.h"

namespace lockstep::engine {
namespace {

constexpr int kMostUnusedNamed = 16;

void Fill(const RankGroupReport& report, v1::RankGroup& proto) {
  proto.set_name(report.name);
  proto.set_world(report.world);
  proto.set_attached(report.attached);
  *proto.mutable_serving() = origin::ToProto(report.serving());
  proto.set_waiting(report.waiting);
  proto.set_asleep(report.asleep);
  proto.set_comparing(report.comparing);
  proto.set_parameters(report.parameters);
  proto.set_target_bytes(report.target_bytes);
  proto.set_last_prepare_us(static_cast<uint64_t>(report.last_prepare.count()));
  proto.set_last_pause_us(static_cast<uint64_t>(report.last_pause.count()));
  proto.set_last_written_bytes(report.last_written_bytes);
  proto.set_commits(report.commits);
  proto.set_failures(report.failures);
  proto.set_last_error(report.last_error);
  proto.set_plan_digest(report.plan_digest);
  proto.set_unused(static_cast<uint32_t>(report.unused.size()));
  for (const std::string& name : report.unused) {
    if (proto.unused_tensors_size() == kMostUnusedNamed) break;
    proto.add_unused_tensors(name);
  }
}

// Of several groups it is the hash of theirs, by name.
std::string PlanDigest(const std::vector<RankGroupReport>& groups) {
  std::string all;
  for (const RankGroupReport& group : groups) all += group.plan_digest;
  if (groups.size() == 1) return all;
  const auto hash = Hash128(AsBytes(std::string_view(all)));
  return {hash.begin(), hash.end()};
}

}  // namespace

std::string Engine::LateAttempt() const {
  MutexLock lock(mutex_);
  if (!attempt_ || config_.late_after.count() == 0) return {};
  const auto lasts = Clock::now() - attempt_->begun;
  if (lasts < config_.late_after) return {};
  const std::string engine = in_place() && !over_http() ? "ranks in place" : "engine " + driver_->label();
  return Cat(engine, ": version ", attempt_->with.current.version.held.version, " is not served after ",
             std::chrono::floor<std::chrono::seconds>(lasts).count(), " s");
}

// Of an engine that a hook tells of versions nobody knows what it serves.
void Engine::NoteServing() {
  if (context_.ledger == nullptr || retired_ || (!in_place() && !over_http())) return;
  MutexLock lock(ledger_mutex_);
  if (!pausing_) context_.ledger->Note(name(), WhatIsServed());
}

void Engine::EndServing() {
  if (context_.ledger == nullptr) return;
  MutexLock lock(ledger_mutex_);
  pausing_ = true;
  context_.ledger->End(name());
}

// Nothing also of a version that is not held any more, where it was not noted while it was, and of ranks that are not
// all there.
std::optional<v1::Receipt> Engine::WhatIsServed() const {
  const VersionRef served = in_place() && owes_resume_ ? VersionRef() : this->served();
  if (served.nothing() || (in_place() && (ranks_.lost() || !ranks_.AllAt(served)))) return std::nullopt;
  const std::string plan = in_place() ? PlanDigest(ranks_.Describe()) : "";
  if (auto open = context_.ledger->Open(name());
      open && open->version() == served.version && open->run() == ToBytes(served.run)) {
    open->set_plan_digest(plan);
    return open;
  }
  for (const replica::PublishedVersion& version : {context_.replicas.current(), context_.replicas.previous()}) {
    if (version.held != served || version.damaged) continue;
    v1::Receipt receipt;
    receipt.set_model(context_.model);
    receipt.set_receiver(context_.receiver);
    receipt.set_run(ToBytes(served.run));
    receipt.set_version(served.version);
    receipt.set_label(version.label);
    receipt.set_manifest_digest(ToBytes(version.digest));
    receipt.set_layout_digest(ToBytes(version.layout->digest()));
    receipt.set_plan_digest(plan);
    return receipt;
  }
  return std::nullopt;
}

v1::EngineState Engine::Shown(const std::vector<RankGroupReport>& groups, const VersionRef& served,
                              bool failing) const {
  if (attempt_) {
    if (!in_place()) return v1::ENGINE_STATE_LOADING;
    return state_ == State::kPausing ? v1::ENGINE_STATE_WRITING : v1::ENGINE_STATE_PREPARING;
  }
  if (failing) return v1::ENGINE_STATE_FAILING;
  if (std::ranges::any_of(groups, [](const auto& group) { return group.asleep > 0; })) return v1::ENGINE_STATE_ASLEEP;
  return served.nothing() ? v1::ENGINE_STATE_WAITING : v1::ENGINE_STATE_SERVING;
}

std::string Engine::error() const {
  MutexLock lock(mutex_);
  return last_error_.empty() && !silence_.ok() ? silence_.ToString() : last_error_;
}

void Engine::Describe(v1::ReceiverModel& model, bool counts) const {
  const std::vector<RankGroupReport> groups = ranks_.Describe();
  for (const RankGroupReport& group : groups) {
    v1::RankGroup& proto = *model.add_rank_groups();
    Fill(group, proto);
    proto.set_engine(name());
  }
  const uint64_t failures = driver_->failures() + failures_;
  model.set_engine_failures(model.engine_failures() + failures);
  v1::Engine& engine = *model.add_engines();
  engine.set_name(name());
  engine.set_kind(std::string(driver_->kind()));
  engine.set_url(driver_->where());
  engine.set_in_place(in_place());
  engine.set_late(late());
  const VersionRef served = this->served();
  const bool lacks = in_place() && (counts || made()) && !context_.replicas.current().held.nothing();
  const auto absence = lacks ? ranks_.absence() : std::nullopt;
  const std::string error = this->error();
  const std::string last_error = !absence ? error : error.empty() ? absence->text : Cat(error, "; ", absence->text);
  *engine.mutable_served() = origin::ToProto(served);
  engine.set_failures(failures);
  MutexLock lock(mutex_);
  const int64_t since = absence ? absence->since_unix_ns : silent_since_unix_ns_;
  const int64_t last_error_unix_ns = last_error_.empty() ? since : last_error_unix_ns_;
  engine.set_state(Shown(groups, served, !error.empty()));
  engine.set_served_since_unix_ns(served_since_unix_ns_);
  engine.set_last_pause_us(last_pause_us_);
  engine.set_last_written_bytes(last_written_bytes_);
  engine.set_last_error(last_error);
  engine.set_last_error_unix_ns(last_error_unix_ns);
  const bool ended = absence && !counts;  // it may have ended for good
  if (!last_error.empty() && !ended && last_error_unix_ns > model.last_error_unix_ns()) {
    model.set_last_error(last_error);
    model.set_last_error_unix_ns(last_error_unix_ns);
  }
}

}  // namespace lockstep::engine
