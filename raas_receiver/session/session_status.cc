// What a session says of itself: whether it is ready and alive, and what status and the origin are told.
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/origin/version_ref_proto.h"
#include "raas_receiver/session/session.h"

namespace lockstep::session {
namespace {

constexpr int kMostReportedEngines = 256;  // that an agent takes

}  // namespace

bool Session::HoldsVersion() const {
  const replica::PublishedVersion current = replicas_->current();
  return !current.held.nothing() && !current.damaged;
}

// The writer's clock is compared with this host's. A reader of logs that has read no head counts from its start.
std::string Session::StaleLog() const {
  if (options_.log_max_age.count() == 0) return "";
  int64_t written = follower_.head().written_unix_ns;
  if (written == 0 && !origin_->can().report) written = made_unix_ns_;
  const auto age = std::chrono::nanoseconds(telemetry::UnixNanos() - written);
  if (written == 0 || age <= options_.log_max_age) return "";
  using std::chrono::seconds;
  return Cat("the log's writer has been silent for ", std::chrono::duration_cast<seconds>(age).count(),
             " s, more than --log-max-age: it does not run, what it writes does not arrive, or the clocks differ");
}

bool Session::Ready() {
  const bool fresh = freshness_.Update(replicas_->current().held, Behind());
  const std::string stale = StaleLog();
  if (std::exchange(stale_, !stale.empty()) != stale_ && stale_) {
    telemetry::LogWarn("log_stale", {ErrorCode::kDeadline, stale}, {{"model", options_.model}});
  }
  const std::string late = engines_.LateAttempt();
  if (std::exchange(late_, !late.empty()) != late_ && late_) {
    telemetry::LogWarn("engine_late", {ErrorCode::kDeadline, late}, {{"model", options_.model}});
  }
  return fresh && !stale_ && !late_ && HoldsVersion() && engines_.Serve();
}

v1::SessionState Session::State(const VersionRef& held, const VersionRef& newest) const {
  const v1::SessionState state = state_;
  const bool resting = state == v1::SESSION_STATE_WAITING || state == v1::SESSION_STATE_HELD;
  if (resting && engines_.under_way()) return v1::SESSION_STATE_NOTIFYING;
  const bool current = state == v1::SESSION_STATE_WAITING && HoldsVersion() && held == newest;
  return current ? v1::SESSION_STATE_CURRENT : state;
}

v1::ReceiverModel Session::Describe() const {
  const replica::PublishedVersion current = replicas_->current();
  const std::shared_ptr<const model::ModelLayout> layout = follower_.layout();
  v1::ReceiverModel model;
  model.set_name(options_.model);
  model.set_source(origin_->name());
  model.set_share(origin_->share());
  if (archiver_ != nullptr) *model.mutable_archive() = archiver_->Describe();
  *model.mutable_held() = origin::ToProto(current.held);
  *model.mutable_previous() = origin::ToProto(replicas_->previous().held);
  if (!current.held.nothing()) {
    model.set_held_digest(ToBytes(current.digest));
    model.set_current_path(current.path);
    model.set_held_committed_unix_ns(current.committed_unix_ns);
    model.set_held_label(current.label);
  }
  model.set_replicas_replaced(replicas_->replaced());
  if (const replica::Rollback rollback = replicas_->rollback(); rollback.skip) {
    model.set_skipped_version(rollback.version.version);
  }
  const origin::Head head = follower_.head();
  model.set_state(State(current.held, head.held));
  model.set_newest_version(head.held.version);
  model.set_newest_committed_unix_ns(head.committed_unix_ns);
  model.set_model_bytes(layout ? layout->data_bytes() : 0);
  model.set_scrubbed_bytes(scrubber_.bytes());
  engines_.Describe(model);
  // What failed was asked for, or is not needed any more, where the origin answers and nothing is to be pulled.
  history_.Describe(model, options_.follow && !Behind() ? follower_.met_unix_ns() : 0);
  const Reporter::Refusal refusal = reporter_.refusal();
  if (model.last_error().empty() && follower_.error_unix_ns() > refusal.unix_ns) {
    model.set_last_error(follower_.error());
    if (!model.last_error().empty()) model.set_last_error_unix_ns(follower_.error_unix_ns());
  }
  model.set_log_written_unix_ns(head.written_unix_ns);
  if (const std::string stale = StaleLog(); !stale.empty()) {
    model.set_log_stale(true);
    if (model.last_error().empty()) model.set_last_error(stale);
  }
  if (model.last_error().empty() && !refusal.text.empty()) {
    model.set_last_error(refusal.text);
    model.set_last_error_unix_ns(refusal.unix_ns);
  }
  if (const std::string late = engines_.LateAttempt(); !late.empty()) {
    model.set_last_error(late);
    model.set_last_error_unix_ns(telemetry::UnixNanos());
  }
  if (!head.withdrawn.empty()) {
    model.set_last_error(head.withdrawn);
    model.set_last_error_unix_ns(follower_.withdrawn_unix_ns());
  }
  return model;
}

v1::ReportRequest Session::Report() const {
  const v1::ReceiverModel model = Describe();
  v1::ReportRequest report;
  report.set_model(options_.model);
  *report.mutable_held() = model.held();
  report.set_served_version(model.served_version());
  report.set_served_run(model.served_run());
  report.set_last_error(model.last_error());
  for (const v1::Engine& engine : model.engines()) {
    if (model.engines_size() == 1 || report.engines_size() == kMostReportedEngines) break;
    if (engine.kind() == "none" && !engine.in_place()) continue;  // no engine is notified
    v1::EngineServed& served = *report.add_engines();
    served.set_name(engine.name());
    *served.mutable_served() = engine.served();
    served.set_last_error(engine.last_error());
  }
  return report;
}

}  // namespace lockstep::session
