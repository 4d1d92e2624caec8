// The calls of Session that other threads make.

#include "common/base/text.h"
#include "raas_receiver/session/session.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// How often a waiting call looks whether its caller has gone.
constexpr milliseconds kCallerPoll{100};

void Fill(const EngineReport& report, v1::EngineTargets& proto) {
  proto.set_name(report.engine);
  proto.set_world(report.world);
  proto.set_attached(report.attached);
  *proto.mutable_serving() = ToProto(report.serving);
  proto.set_mixed(report.mixed);
  proto.set_parameters(report.parameters);
  proto.set_target_bytes(report.target_bytes);
  proto.set_last_prepare_us(static_cast<uint64_t>(report.last_prepare.count()));
  proto.set_last_pause_us(static_cast<uint64_t>(report.last_pause.count()));
  proto.set_last_written_bytes(report.last_written_bytes);
  proto.set_commits(report.commits);
  proto.set_failures(report.failures);
  proto.set_last_error(report.last_error);
}

}  // namespace

v1::ReceiverModel Session::Describe() const {
  const PublishedVersion current = replicas_->current();
  const PublishedVersion previous = replicas_->previous();
  v1::ReceiverModel model;
  model.set_name(options_.model);
  model.set_agent(options_.agent.ToString());
  *model.mutable_held() = ToProto(current.held);
  *model.mutable_previous() = ToProto(previous.held);
  if (!current.held.nothing()) {
    model.set_held_digest(ToBytes(current.digest));
    model.set_current_path(current.path);
  }
  model.set_engine(std::string(engine_.kind()));
  model.set_engine_failures(engine_.failures());
  for (const EngineReport& report : engine_.Describe()) Fill(report, *model.add_engines());
  model.set_replicas_replaced(replicas_->replaced());

  const Held in_place = engine_.ServedInPlace();

  std::lock_guard lock(mutex_);
  const Held by_directory = engine_.told() ? served_ : current.held;
  const Held served = engine_.in_place() ? in_place : by_directory;
  model.set_state(state_);
  model.set_served_version(served.version);
  model.set_newest_version(newest_.version);
  model.set_model_bytes(layout_ ? layout_->data_bytes() : 0);
  model.set_repaired_blocks(repaired_blocks_);
  model.set_syncs(syncs_);
  model.set_failures(failures_);
  model.set_lane_retries(lane_retries_);
  model.set_last_error(last_error_.empty() ? watch_error_ : last_error_);
  return model;
}

template <typename Done>
Status Session::Await(std::unique_lock<std::mutex>& lock, milliseconds timeout, const std::function<bool()>& given_up,
                      Done done) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (stopping_) return {ErrorCode::kCancelled, Cat("model ", options_.model, ": the receiver stops")};
    if (given_up()) return {ErrorCode::kCancelled, "the caller has gone"};
    if (std::chrono::steady_clock::now() >= until) {
      return {ErrorCode::kDeadline, Cat("model ", options_.model, ": not done within ", timeout.count(),
                                        " ms; it goes on in the background")};
    }
    changed_.wait_for(lock, kCallerPoll);
  }
  return OkStatus();
}

Result<v1::SyncRecord> Session::Pull(bool force_full, milliseconds timeout, const std::function<bool()>& given_up) {
  std::unique_lock lock(mutex_);
  const uint64_t mine = ++wanted_.pulls;
  wanted_.force_full |= force_full;
  changed_.notify_all();
  LS_RETURN_IF_ERROR(Await(lock, timeout, given_up, [&] { return done_.pulls >= mine; }));
  if (!pull_outcome_.ok()) return pull_outcome_;
  return last_record_;
}

Result<v1::ReceiverModel> Session::Rollback(const std::function<bool()>& given_up) {
  std::unique_lock lock(mutex_);
  const uint64_t mine = ++wanted_.rollbacks;
  changed_.notify_all();
  LS_RETURN_IF_ERROR(Await(lock, std::chrono::minutes(10), given_up, [&] { return done_.rollbacks >= mine; }));
  if (!rollback_outcome_.ok()) return rollback_outcome_;
  lock.unlock();
  return Describe();
}

Status Session::VerifyEngines(const std::function<bool()>& given_up) {
  if (!engine_.in_place()) return OkStatus();
  std::unique_lock lock(mutex_);
  const uint64_t mine = ++wanted_.verifies;
  changed_.notify_all();
  LS_RETURN_IF_ERROR(Await(lock, std::chrono::minutes(10), given_up, [&] { return done_.verifies >= mine; }));
  return verify_outcome_;
}

Result<std::shared_ptr<const ModelLayout>> Session::layout() const {
  std::lock_guard lock(mutex_);
  if (layout_ == nullptr) {
    return Status(ErrorCode::kNotFound, Cat("the agent has not told the layout of model ", options_.model, " yet"));
  }
  return layout_;
}

}  // namespace lockstep
