#include "raas_receiver/engine/engines.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <system_error>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/telemetry/log.h"
#include "raas_receiver/engine/drivers/driver_kind.h"
#include "raas_receiver/engine/ranks/rank_connection.h"

namespace lockstep::engine {
namespace {

constexpr size_t kMostMade = 64;              // engines that ranks made
constexpr std::chrono::hours kRemembered{1};  // one of them without ranks

std::shared_ptr<EngineRanks> RanksOf(const std::shared_ptr<Engine>& engine) {
  return {engine, &engine->ranks()};  // which it keeps
}

// Where a server of this host listens; 0: `url` is none.
uint16_t LoopbackPort(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return 0;
  url.remove_prefix(kScheme.size());
  if (url.ends_with("/")) url.remove_suffix(1);
  const auto at = net::ParseHostPort(url);
  return at.ok() && at->IsLoopback() ? at->port : 0;
}

// Whether the rank names a server that pauses it. That server may be one that is not configured.
bool BringsServer(const RankConnection& link) {
  return !link.server().empty() && !link.gated() && !link.compares();
}

}  // namespace

Engines::Engines(const EngineContext& context, std::vector<EngineEntry> table, EngineAdmission admission)
    : context_(context), admission_(std::move(admission)), in_table_(table.size()) {
  for (EngineEntry& entry : table) {
    engines_.push_back(std::make_shared<Engine>(context_, std::move(entry.config), std::move(entry.driver)));
  }
}

Engines::All Engines::all() const {
  MutexLock lock(mutex_);
  return engines_;
}

// Those that say something of whether versions are served. One that ranks made does while it has some. Where ranks make
// engines by themselves, one that is not notified says nothing beside them.
Engines::All Engines::counted() const {
  const All engines = all();
  All counted;
  for (size_t i = 0; i < engines.size(); ++i) {
    const bool counts = i < in_table_ && !admission_.open && engines[i]->notifies();
    if (engines[i]->retired()) continue;
    if (counts || !engines[i]->ranks().empty()) counted.push_back(engines[i]);
  }
  if (counted.empty()) return {engines.front()};
  return counted;
}

// One server has one engine, whatever its ranks call themselves: two would resume it under each other's writes.
std::shared_ptr<Engine> Engines::EngineAt(const std::string& url) const {
  const uint16_t port = LoopbackPort(url);
  for (const auto& engine : engines_) {
    if (!engine->retired() && port != 0 && LoopbackPort(engine->url()) == port) return engine;
  }
  return nullptr;
}

Result<std::shared_ptr<EngineRanks>> Engines::Find(const RankConnection& link) {
  MutexLock lock(mutex_);
  const auto named = std::ranges::find_if(
      engines_, [&](const auto& engine) { return !engine->retired() && engine->name() == link.engine(); });
  const std::shared_ptr<Engine> same = named == engines_.end() ? nullptr : *named;
  if (BringsServer(link) && (same == nullptr || same->made())) return Join(link, same);
  if (same != nullptr) return RanksOf(same);
  if (admission_.open && link.gated() && !link.compares()) return Make(link);
  if (in_table_ == 1) return RanksOf(engines_.front());
  std::string names;
  for (const auto& engine : engines_) {
    if (!engine->retired()) names += Cat(names.empty() ? "" : ", ", engine->name());
  }
  return Status(ErrorCode::kNotFound, Cat(link.Label(), ": this receiver's engines are ", names,
                                          "; set LOCKSTEP_ENGINE_NAME of its server to the one that it is"));
}

// Of a rank that brings its server. `same`, if not null, is the engine that ranks of that name made before.
Result<std::shared_ptr<EngineRanks>> Engines::Join(const RankConnection& link, const std::shared_ptr<Engine>& same) {
  const std::shared_ptr<Engine> there = EngineAt(link.server());
  if (there != nullptr && there == same) return RanksOf(same);
  if (there != nullptr) {
    return Status(ErrorCode::kState, Cat(link.Label(), ": its server is that of engine ", there->name()));
  }
  LS_RETURN_IF_ERROR(CheckServer(link));
  if (same == nullptr) return Make(link);
  // The server was started again, at another port.
  if (!same->ranks().empty() || same->under_way()) {
    return Status(ErrorCode::kState, Cat(link.Label(), ": an engine of that name is at ", same->url(), " still"));
  }
  same->Retire();
  return Make(link);
}

// A server that is not configured may come by itself, from a port that is admitted.
Status Engines::CheckServer(const RankConnection& link) const {
  const uint16_t port = LoopbackPort(link.server());
  const bool admitted = port != 0 && std::ranges::any_of(admission_.ports, [&](const auto& range) {
                          return range.first <= port && port <= range.second;
                        });
  if (admitted) return OkStatus();
  return {ErrorCode::kPermission,
          Cat(link.Label(), ": its server ", WithoutPasswords(link.server()), " is none of this receiver's, and not ",
              "one of those that may come by themselves (--allow-engines)")};
}

// Of those that ranks made, the one that has had none for the longest goes.
bool Engines::MakeRoom() {
  if (engines_.size() < in_table_ + kMostMade) return true;
  auto oldest = engines_.end();
  for (auto at = engines_.begin() + static_cast<ptrdiff_t>(in_table_); at != engines_.end(); ++at) {
    const bool idle = (*at)->ranks().empty() && !(*at)->under_way() && left_.contains(at->get());
    if (idle && (oldest == engines_.end() || left_[at->get()] < left_[oldest->get()])) oldest = at;
  }
  if (oldest == engines_.end()) return false;
  (*oldest)->Retire();
  return engines_.size() < in_table_ + 2 * kMostMade;
}

Result<std::shared_ptr<EngineRanks>> Engines::Make(const RankConnection& link) {
  const auto full = [&](std::string_view why) {
    return Status(ErrorCode::kResourceExhausted, Cat(link.Label(), ": ", why));
  };
  if (!MakeRoom()) return full(Cat("there are ", kMostMade, " engines already"));
  EngineOptions options;
  if (BringsServer(link)) {
    options = admission_.driver;
    options.url = link.server();
  }
  LS_ASSIGN_OR_RETURN(auto driver, NewEngineDriver(std::move(options)));
  EngineConfig config = admission_.config;
  config.name = link.engine();
  config.in_place = true;
  config.made = true;
  try {
    engines_.push_back(std::make_shared<Engine>(context_, std::move(config), std::move(driver)));
  } catch (const std::system_error& error) {
    return full(Cat("no thread for it: ", error.what()));
  }
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_joined",
                 {{"model", context_.model}, {"engine", link.engine()}, {"server", engines_.back()->url()}});
  return RanksOf(engines_.back());
}

bool Engines::Serve() const {
  return std::ranges::all_of(counted(),
                             [](const auto& engine) { return !engine->notifies() || !engine->served().nothing(); });
}

VersionRef Engines::served() const {
  const All engines = counted();
  VersionRef oldest = engines.front()->served();
  for (const auto& engine : engines) {
    const VersionRef served = engine->served();
    if (served.nothing() || served.run != oldest.run) return {};
    if (served.version < oldest.version) oldest = served;
  }
  return oldest;
}

std::string Engines::LateAttempt() const {
  for (const auto& engine : all()) {
    if (std::string late = engine->LateAttempt(); !late.empty()) return late;
  }
  return {};
}

void Engines::Describe(v1::ReceiverModel& model) const {
  std::set<std::string> kinds;
  const All counted = this->counted();
  const bool none_has_ranks = !HaveRanks();
  for (const auto& engine : all()) {
    if (!engine->retired())
      engine->Describe(model, none_has_ranks || std::ranges::find(counted, engine) != counted.end());
  }
  for (const v1::Engine& engine : model.engines()) kinds.insert(engine.kind());
  std::string text;
  for (const std::string& kind : kinds) text += Cat(text.empty() ? "" : ", ", kind);
  model.set_engine_kinds(text);
  const VersionRef served = this->served();
  model.set_served_version(served.version);
  if (!served.nothing()) model.set_served_run(ToBytes(served.run));
}

void Engines::DescribeUncompared(v1::VerifyResult& result) const {
  const All engines = all();
  for (size_t i = 0; i < engines.size(); ++i) {
    const Engine& engine = *engines[i];
    if (engine.retired() || !engine.notifies() || !engine.ranks().empty()) continue;
    if (i < in_table_ && admission_.open && engine.url().empty()) continue;  // ranks make others
    if (!engine.in_place() && !engine.served().nothing()) {
      result.set_not_comparing(result.not_comparing() + 1);
      continue;
    }
    const std::string why = engine.in_place() ? "no rank of it is attached" : "it is not known to serve a version";
    const std::string error = engine.error();
    result.add_not_compared(Cat(engine.name(), ": ", why, error.empty() ? "" : "; ", error));
  }
}

void Engines::NoteServing() {
  for (const auto& engine : all()) engine->NoteServing();
}

void Engines::Cancel() {
  for (const auto& engine : all()) engine->Cancel();
}

bool Engines::HaveRanks() const {
  return std::ranges::any_of(all(), [](const auto& engine) { return !engine->ranks().empty(); });
}

bool Engines::under_way() const {
  return std::ranges::any_of(all(), [](const auto& engine) { return engine->under_way(); });
}

std::vector<std::future<Result<size_t>>> Engines::Verify() {
  std::vector<std::future<Result<size_t>>> answers;
  for (const auto& engine : all()) {
    if (!engine->ranks().empty()) answers.push_back(engine->Verify());
  }
  return answers;
}

// --- the session's thread ---

// Engines that ranks made, an hour after they went, and those that are retired.
void Engines::Tend() {
  const auto now = std::chrono::steady_clock::now();
  All gone;  // they end without the lock
  MutexLock lock(mutex_);
  std::erase_if(engines_, [&](const auto& engine) LS_REQUIRES(mutex_) {
    if (!engine->made()) return false;
    const bool empty = engine->ranks().empty() && !engine->under_way();
    if (!empty) left_.erase(engine.get());
    if (engine->under_way() || (!empty && !engine->retired())) return false;
    if (!engine->retired() && now - left_.try_emplace(engine.get(), now).first->second <= kRemembered) return false;
    gone.push_back(engine);
    left_.erase(engine.get());
    return true;
  });
}

void Engines::Give(uint64_t number, const std::string& mode, uint64_t transfer, bool at_once) {
  const std::optional<EngineAttempt> given = WhatToGive(context_, number, mode, transfer, at_once);
  for (const auto& engine : all()) engine->Give(given);
}

void Engines::GiveNothing() {
  for (const auto& engine : all()) engine->Give(std::nullopt);
}

bool Engines::TakeBack(bool late_give_way) {
  bool all_gave = true;
  for (const auto& engine : all()) {
    if (engine->TakeBack()) continue;
    if (late_give_way) engine->GiveWay();
    all_gave = false;
  }
  return all_gave;
}

void Engines::Doubt(const VersionRef& damaged) {
  for (const auto& engine : all()) engine->Doubt(damaged);
}

std::vector<std::shared_ptr<const Engine>> Engines::Waiting() const {
  std::vector<std::shared_ptr<const Engine>> waiting;
  for (const auto& engine : all()) {
    if ((engine->Behind() || engine->under_way()) && !engine->retired()) waiting.push_back(engine);
  }
  return waiting;
}

std::chrono::steady_clock::time_point Engines::NextChange() const {
  auto first = std::chrono::steady_clock::time_point::max();
  for (const auto& engine : all()) first = std::min(first, engine->NextChange());
  return first;
}

}  // namespace lockstep::engine
