#include "raas_receiver/session/reporter.h"

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// How long the origin is told nothing when nothing changes.
constexpr milliseconds kRefresh{30'000};
constexpr milliseconds kFirstRetry{1'000};
// Between two reports, however much changes.
constexpr milliseconds kPause{100};

}  // namespace

Reporter::Reporter(origin::Origin& origin, ChangeSignal& changed, Snapshot snapshot, Meetings meetings)
    : origin_(origin), changed_(changed), snapshot_(std::move(snapshot)), meetings_(std::move(meetings)) {}

void Reporter::Start(std::stop_token stop) {
  if (origin_.can().report) thread_ = std::thread([this, stop = std::move(stop)] { Loop(stop); });
}

void Reporter::Join() {
  if (thread_.joinable()) thread_.join();
}

void Reporter::Loop(const std::stop_token& stop) {
  Backoff backoff(kRefresh, kFirstRetry);
  while (!stop.stop_requested()) {
    const uint64_t met = meetings_();
    const v1::ReportRequest report = snapshot_();
    const bool sent = Send(report, stop);
    if (sent) backoff.Reset();
    const std::string said = report.SerializeAsString();
    if (changed_.WaitFor(kPause, [&] { return stop.stop_requested(); })) return;
    changed_.WaitFor(sent ? kRefresh : backoff.Next(), [&] {
      return stop.stop_requested() || meetings_() != met || snapshot_().SerializeAsString() != said;
    });
  }
}

bool Reporter::Send(const v1::ReportRequest& report, const std::stop_token& stop) {
  const Result<std::string> answer = origin_.Report(report, stop);
  const std::string error = answer.ok() ? *answer : "";
  if (SetError(error) && !error.empty()) {
    telemetry::Log(telemetry::LogLevel::kInfo, "model_not_open", {{"model", report.model()}, {"message", error}});
  }
  return answer.ok();
}

bool Reporter::SetError(const std::string& error) {
  {
    std::lock_guard lock(mutex_);
    if (error == error_) return false;
    error_ = error;
  }
  changed_.Notify();
  return true;
}

std::string Reporter::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace lockstep::session
