#include "trainer_agent/serve/receiver_reports.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "common/base/text.h"
#include "common/model/model_name.h"
#include "common/telemetry/log.h"

namespace lockstep::serve {
namespace {

constexpr size_t kMaxReports = 16'384;
constexpr size_t kMaxOfOwner = kMaxReports / 4;
constexpr size_t kMaxName = 256;
constexpr size_t kMaxText = 1024;
constexpr size_t kMostEngines = 256;
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
  const bool clean = CleanText(name, kMaxName) == name && name.find_first_of("\n\t") == std::string::npos;
  if (clean && name != kEveryReceiver) return OkStatus();
  return {ErrorCode::kBadData,
          Cat("a receiver's name has at most ", kMaxName, " bytes, no control characters, and is not \"*\"")};
}

ReceiverReports::Entry* ReceiverReports::Find(const ReceiverKey& receiver) {
  if (const auto at = entries_.find(receiver); at != entries_.end()) return &at->second;
  if (!receiver.owner.empty() && CountOf(receiver.owner) >= kMaxOfOwner && !MakeRoom(receiver.owner)) return nullptr;
  if (entries_.size() >= kMaxReports && !MakeRoom("")) return nullptr;
  Entry& entry = entries_[receiver];
  entry.report.receiver = receiver;
  return &entry;
}

size_t ReceiverReports::CountOf(const std::string& owner) const {
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [&](const auto& item) { return item.first.owner == owner; }));
}

bool ReceiverReports::MakeRoom(const std::string& owner) {
  auto stalest = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second.streams > 0 || (!owner.empty() && at->first.owner != owner)) continue;
    if (stalest == entries_.end() || at->second.report.at < stalest->second.report.at) stalest = at;
  }
  if (stalest == entries_.end()) return false;
  entries_.erase(stalest);
  return true;
}

size_t ReceiverReports::Range::connected() const {
  return static_cast<size_t>(std::count_if(begin, end, [](const auto& item) { return item.second.streams > 0; }));
}

ReceiverReports::Range ReceiverReports::OfName(const ReceiverKey& receiver) {
  const auto first = entries_.lower_bound({receiver.model, receiver.name, "", ""});
  const auto last = std::find_if(first, entries_.end(), [&](const auto& item) {
    return std::tie(item.first.model, item.first.name) != std::tie(receiver.model, receiver.name);
  });
  return {first, last};
}

ReceiverReports::Range ReceiverReports::Namesakes(const ReceiverKey& receiver) {
  const auto first = entries_.lower_bound({receiver.model, receiver.name, receiver.owner, ""});
  const auto last = std::find_if(first, entries_.end(), [&](const auto& item) {
    return std::tie(item.first.model, item.first.name, item.first.owner) !=
           std::tie(receiver.model, receiver.name, receiver.owner);
  });
  return {first, last};
}

void ReceiverReports::DropReplaced(const ReceiverKey& receiver) {
  auto [at, last] = Namesakes(receiver);
  if (Range{at, last}.connected() == 0) return;
  while (at != last) at = at->second.streams > 0 ? std::next(at) : entries_.erase(at);
}

ReceiverReports::Entry* ReceiverReports::FindPuller(const ReceiverKey& receiver) {
  const Range namesakes = Namesakes(receiver);
  const size_t connected = namesakes.connected();
  if (connected == 1) {
    return &std::find_if(namesakes.begin, namesakes.end, [](const auto& item) {
              return item.second.streams > 0;
            })->second;
  }
  if (connected > 1 || std::distance(namesakes.begin, namesakes.end) > 1) return nullptr;
  return namesakes.begin != namesakes.end ? &namesakes.begin->second : Find(receiver);
}

void ReceiverReports::OfPull(const ReceiverKey& receiver, const VersionRef& held, const std::string& outcome) {
  MutexLock lock(mutex_);
  Entry* const entry = FindPuller(receiver);
  if (entry == nullptr) return;
  entry->report.held = held;
  entry->report.at = Clock::now();
  if (!outcome.empty()) entry->report.outcome = CleanText(outcome, kMaxText);
}

Status ReceiverReports::Report(const ReceiverKey& receiver, const VersionRef& held, const VersionRef& served,
                               const std::string& last_error, std::vector<EngineReport> engines) {
  LS_RETURN_IF_ERROR(CheckKey(receiver));
  if (engines.size() > kMostEngines)
    return {ErrorCode::kBadData, Cat("a receiver reports ", engines.size(), " engines")};
  for (EngineReport& engine : engines) {
    engine.name = CleanText(engine.name, kMaxText);
    engine.last_error = CleanText(engine.last_error, kMaxText);
  }
  MutexLock lock(mutex_);
  Entry* const entry = Find(receiver);
  if (entry == nullptr) return OkStatus();
  entry->report.held = held;
  entry->report.served = served;
  entry->report.last_error = CleanText(last_error, kMaxText);
  entry->report.engines = std::move(engines);
  entry->report.at = Clock::now();
  return OkStatus();
}

Result<std::unique_ptr<ReceiverReports::Connection>> ReceiverReports::Connect(const ReceiverKey& receiver) {
  LS_RETURN_IF_ERROR(CheckKey(receiver));
  size_t connected = 0;
  bool listed = false;
  {
    MutexLock lock(mutex_);
    Entry* const entry = Find(receiver);
    listed = entry != nullptr;
    if (entry != nullptr) {
      ++entry->streams;
      entry->report.at = Clock::now();
    }
    connected = OfName(receiver).connected();
    DropReplaced(receiver);
  }
  const uint64_t times = connected > 1 ? shared_names_.Count(Cat(receiver.model, " ", receiver.name)) : 0;
  if (times > 0) {
    telemetry::Log(telemetry::LogLevel::kWarn, "receiver_name_shared",
                   {{"model", receiver.model},
                    {"receiver", receiver.name},
                    {"peer", receiver.owner},
                    {"processes", connected},
                    {"times", times},
                    {"message", "give each receiver a --name of its own"}});
  }
  return std::make_unique<Connection>(listed ? this : nullptr, receiver);
}

void ReceiverReports::Disconnect(const ReceiverKey& receiver) {
  MutexLock lock(mutex_);
  const auto at = entries_.find(receiver);
  if (at == entries_.end() || at->second.streams == 0) return;
  if (--at->second.streams > 0) return;
  at->second.report.presence = Presence::kGone;
  at->second.report.gone_at = Clock::now();
  DropReplaced(receiver);
}

std::vector<ReceiverReport> ReceiverReports::Of(const std::string& model, Clock::time_point now) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&](const auto& item) {
    const auto& [report, streams] = item.second;
    const auto since = report.presence == Presence::kGone ? report.gone_at : report.at;
    return streams == 0 && now - since >= kForget;
  });
  std::vector<ReceiverReport> reports;
  for (auto at = entries_.lower_bound({model, "", "", ""}); at != entries_.end() && at->first.model == model;) {
    const Range of_name = OfName(at->first);
    const bool shared = of_name.connected() > 1;
    for (; at != of_name.end; ++at) {
      ReceiverReport& report = reports.emplace_back(at->second.report);
      if (at->second.streams == 0) continue;
      report.presence = Presence::kConnected;
      report.name_shared = shared;
    }
  }
  return reports;
}

std::vector<std::string> ReceiverReports::Models() const {
  MutexLock lock(mutex_);
  std::set<std::string> models;
  for (const auto& [receiver, entry] : entries_) models.insert(receiver.model);
  return {models.begin(), models.end()};
}

}  // namespace lockstep::serve
