#include "raas_receiver/session/reporter.h"

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// How long the origin is told nothing when nothing changes.
constexpr milliseconds kRefresh{30'000};
// Of reports that fail.
constexpr milliseconds kFirstRetry{1'000};
constexpr milliseconds kLastRetry{5'000};
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
  Backoff backoff(kLastRetry, kFirstRetry);
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
  if (SetRefusal(error) && !error.empty()) {
    telemetry::Log(telemetry::LogLevel::kInfo, "model_not_open", {{"model", report.model()}, {"message", error}});
  }
  return answer.ok();
}

bool Reporter::SetRefusal(const std::string& text) {
  {
    MutexLock lock(mutex_);
    const bool same = text == refusal_.text;
    refusal_ = {text, text.empty() ? 0 : telemetry::UnixNanos()};
    if (same) return false;
  }
  changed_.Notify();
  return true;
}

Reporter::Refusal Reporter::refusal() const {
  MutexLock lock(mutex_);
  return refusal_;
}

}  // namespace lockstep::session
