#include "trainer_agent/serve/receiver_reports.h"

#include <algorithm>
#include <set>

#include "common/base/text.h"
#include "common/model/model_name.h"
#include "common/telemetry/log.h"

namespace lockstep::serve {
namespace {

constexpr size_t kMaxReports = 16'384;
constexpr size_t kMaxName = 256;
constexpr size_t kMaxText = 1024;
constexpr std::chrono::hours kForget{1};

Status CheckKey(const ReceiverKey& receiver) {
  LS_RETURN_IF_ERROR(model::CheckModelName(receiver.model));
  LS_RETURN_IF_ERROR(CheckReceiverName(receiver.name));
  if (receiver.instance.size() == sizeof(RunId)) return OkStatus();
  return {ErrorCode::kBadData,
          Cat("a receiver's instance has ", sizeof(RunId), " bytes, not ", receiver.instance.size())};
}

}  // namespace

Status CheckReceiverName(const std::string& name) {
  if (CleanText(name, kMaxName) == name && name.find('\n') == std::string::npos) return OkStatus();
  return {ErrorCode::kBadData, Cat("a receiver's name has at most ", kMaxName, " bytes and no control characters")};
}

ReceiverReports::Entry* ReceiverReports::Find(const ReceiverKey& receiver) {
  if (const auto at = entries_.find(receiver); at != entries_.end()) return &at->second;
  if (entries_.size() >= kMaxReports && !MakeRoom()) return nullptr;
  Entry& entry = entries_[receiver];
  entry.report.receiver = receiver;
  return &entry;
}

bool ReceiverReports::MakeRoom() {
  const auto stalest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.streams > 0, a.second.report.at) < std::pair(b.second.streams > 0, b.second.report.at);
  });
  if (stalest->second.streams > 0) return false;
  entries_.erase(stalest);
  return true;
}

std::pair<ReceiverReports::Entries::iterator, ReceiverReports::Entries::iterator> ReceiverReports::Namesakes(
    const ReceiverKey& receiver) {
  const auto first = entries_.lower_bound({receiver.model, receiver.name, ""});
  const auto last = std::find_if(first, entries_.end(), [&](const auto& item) {
    return item.first.model != receiver.model || item.first.name != receiver.name;
  });
  return {first, last};
}

size_t ReceiverReports::ConnectedNamesakes(const ReceiverKey& receiver) {
  const auto [first, last] = Namesakes(receiver);
  return static_cast<size_t>(std::count_if(first, last, [](const auto& item) { return item.second.streams > 0; }));
}

void ReceiverReports::DropReplaced(const ReceiverKey& receiver) {
  if (ConnectedNamesakes(receiver) == 0) return;
  auto [at, last] = Namesakes(receiver);
  while (at != last) at = at->second.streams > 0 ? std::next(at) : entries_.erase(at);
}

void ReceiverReports::OfPull(const std::string& model, const std::string& name, const Held& held, std::string outcome) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = Namesakes({model, name, ""});
  if (first != last && std::next(first) != last) return;
  Entry* const entry = first != last ? &first->second : Find({model, name, ""});
  if (entry == nullptr) return;
  entry->report.held = held;
  entry->report.at = Clock::now();
  if (!outcome.empty()) entry->report.outcome = CleanText(outcome, kMaxText);
}

Status ReceiverReports::Report(const ReceiverKey& receiver, const Held& held, Version served, std::string last_error) {
  LS_RETURN_IF_ERROR(CheckKey(receiver));
  std::lock_guard lock(mutex_);
  Entry* const entry = Find(receiver);
  if (entry == nullptr) return OkStatus();
  entry->report.held = held;
  entry->report.served = served;
  entry->report.last_error = CleanText(last_error, kMaxText);
  entry->report.at = Clock::now();
  return OkStatus();
}

Result<std::unique_ptr<ReceiverReports::Connection>> ReceiverReports::Connect(const ReceiverKey& receiver) {
  LS_RETURN_IF_ERROR(CheckKey(receiver));
  size_t connected = 0;
  {
    std::lock_guard lock(mutex_);
    Entry* const entry = Find(receiver);
    if (entry != nullptr) {
      ++entry->streams;
      entry->report.at = Clock::now();
    }
    connected = ConnectedNamesakes(receiver);
    DropReplaced(receiver);
  }
  if (connected > 1 && shared_names_.Due(Cat(receiver.model, " ", receiver.name))) {
    telemetry::Log(telemetry::LogLevel::kWarn, "receiver_name_shared",
                   {{"model", receiver.model},
                    {"receiver", receiver.name},
                    {"processes", connected},
                    {"message", "give each receiver a --name of its own"}});
  }
  return std::make_unique<Connection>(this, receiver);
}

void ReceiverReports::Disconnect(const ReceiverKey& receiver) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(receiver);
  if (at == entries_.end() || at->second.streams == 0) return;
  if (--at->second.streams > 0) return;
  at->second.report.presence = Presence::kGone;
  at->second.report.gone_at = Clock::now();
  DropReplaced(receiver);
}

std::vector<ReceiverReport> ReceiverReports::Of(const std::string& model, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& item) {
    const auto& [report, streams] = item.second;
    return streams == 0 && report.presence == Presence::kGone && now - report.gone_at >= kForget;
  });
  std::vector<ReceiverReport> reports;
  for (auto at = entries_.lower_bound({model, "", ""}); at != entries_.end() && at->first.model == model;) {
    const auto last = Namesakes(at->first).second;
    const bool shared = ConnectedNamesakes(at->first) > 1;
    for (; at != last; ++at) {
      ReceiverReport& report = reports.emplace_back(at->second.report);
      if (at->second.streams == 0) continue;
      report.presence = Presence::kConnected;
      report.name_shared = shared;
    }
  }
  return reports;
}

std::vector<std::string> ReceiverReports::Models() const {
  std::lock_guard lock(mutex_);
  std::set<std::string> models;
  for (const auto& [receiver, entry] : entries_) models.insert(receiver.model);
  return {models.begin(), models.end()};
}

}  // namespace lockstep::serve
