#include "trainer_agent/serve/receiver_reports.h"

#include <algorithm>

namespace lockstep::serve {
namespace {

constexpr size_t kMaxReports = 4096;

}  // namespace

void ReceiverReports::Add(const std::string& model, ReceiverReport report) {
  std::lock_guard lock(mutex_);
  auto& receivers = reports_[model];
  if (receivers.size() >= kMaxReports && receivers.count(report.receiver) == 0) {
    receivers.erase(std::min_element(receivers.begin(), receivers.end(),
                                     [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  if (report.outcome.empty()) report.outcome = receivers[report.receiver].outcome;
  receivers[report.receiver] = std::move(report);
}

std::vector<ReceiverReport> ReceiverReports::Of(const std::string& model) const {
  std::lock_guard lock(mutex_);
  std::vector<ReceiverReport> reports;
  if (const auto at = reports_.find(model); at != reports_.end()) {
    for (const auto& [receiver, report] : at->second) reports.push_back(report);
  }
  return reports;
}

}  // namespace lockstep::serve
