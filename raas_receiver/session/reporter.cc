#include "raas_receiver/session/reporter.h"

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// How long the agent is told nothing when nothing changes.
constexpr milliseconds kRefresh{30'000};
constexpr milliseconds kFirstRetry{1'000};
// Between two reports, however much changes.
constexpr milliseconds kPause{100};

// Of a model that the agent does not have.
std::string NotOpen(const net::ControlAddress& agent, const std::string& model, const v1::ReportResponse& answer) {
  std::string others;
  for (const std::string& other : answer.models()) others += Cat(others.empty() ? "" : ", ", CleanText(other, 128));
  if (others.empty()) return Cat("agent ", agent.text, " has no ", model, "; no trainer has opened it");
  return Cat("agent ", agent.text, " has no ", model, "; it has ", others);
}

}  // namespace

Reporter::Reporter(AgentClient& agent, ChangeSignal& changed, Snapshot snapshot, Meetings meetings)
    : agent_(agent), changed_(changed), snapshot_(std::move(snapshot)), meetings_(std::move(meetings)) {}

void Reporter::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Reporter::RequestStop() {
  stopping_ = true;
  changed_.Notify();
}

void Reporter::Join() {
  if (thread_.joinable()) thread_.join();
}

void Reporter::Loop() {
  Backoff backoff(kRefresh, kFirstRetry);
  while (!stopping_) {
    const uint64_t met = meetings_();
    const v1::ReportRequest report = snapshot_();
    const bool sent = Send(report);
    if (sent) backoff.Reset();
    const std::string said = report.SerializeAsString();
    const auto stopping = [this] { return stopping_.load(); };
    if (changed_.WaitFor(kPause, stopping)) return;
    changed_.WaitFor(sent ? kRefresh : backoff.Next(),
                     [&] { return stopping() || meetings_() != met || snapshot_().SerializeAsString() != said; });
  }
}

bool Reporter::Send(const v1::ReportRequest& report) {
  const Result<v1::ReportResponse> answer = agent_.Report(report);
  if (!answer.ok()) {
    SetError("", report.model());
    return false;
  }
  SetError(answer->open() ? "" : NotOpen(agent_.address(), report.model(), *answer), report.model());
  return true;
}

void Reporter::SetError(std::string error, const std::string& model) {
  {
    std::lock_guard lock(mutex_);
    if (error == error_) return;
    error_ = error;
  }
  if (!error.empty()) telemetry::LogWarn("model_not_open", {ErrorCode::kNotFound, error}, {{"model", model}});
  changed_.Notify();
}

std::string Reporter::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace lockstep::session
