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
    (void)SetError("");
    return false;
  }
  const std::string error = answer->open() ? "" : NotOpen(agent_.address(), report.model(), *answer);
  if (!SetError(error) || error.empty()) return true;
  // Where nothing is open yet, it is too early to wonder.
  telemetry::Log(answer->models().empty() ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarn, "model_not_open",
                 {{"model", report.model()}, {"message", error}});
  return true;
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
