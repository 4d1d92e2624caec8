#include "raas_receiver/session/engines.h"

#include <algorithm>
#include <ranges>
#include <set>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/telemetry/log.h"
#include "raas_receiver/engines/driver_kind.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/targets/rank_link.h"

namespace lockstep::session {
namespace {

constexpr size_t kMostMade = 64;              // engines that ranks made
constexpr std::chrono::hours kRemembered{1};  // one of them without ranks

}  // namespace

Engines::Engines(const EngineContext& context, std::vector<EngineEntry> table, EngineAdmission admission)
    : context_(context), admission_(std::move(admission)), in_table_(table.size()) {
  for (EngineEntry& entry : table) {
    engines_.push_back(std::make_shared<Engine>(context_, std::move(entry.config), std::move(entry.driver)));
  }
}

Engines::All Engines::all() const {
  std::lock_guard lock(mutex_);
  return engines_;
}

// Those that say something of whether versions are served. One that ranks made does while it has some. Where ranks make
// engines by themselves, one that nobody is notified of says nothing beside them.
Engines::All Engines::counted() const {
  const All engines = all();
  All counted;
  for (size_t i = 0; i < engines.size(); ++i) {
    const bool counts = i < in_table_ && !admission_.open && engines[i]->notifies();
    if (counts || !engines[i]->targets().empty()) counted.push_back(engines[i]);
  }
  if (counted.empty()) return {engines.front()};
  return counted;
}

bool Engines::Any(bool (Engine::*is)() const) const {
  return std::ranges::any_of(all(), [&](const auto& engine) { return (*engine.*is)(); });
}

Result<targets::EngineTargets*> Engines::Find(const targets::RankLink& link) {
  std::lock_guard lock(mutex_);
  const std::string& name = link.engine();
  Engine* nearest = nullptr;
  std::vector<Engine*> fitting;  // of the table: by how ranks are used there
  for (const auto& engine : engines_) {
    if (engine->name() == name) {
      const bool moved = !link.server().empty() && engine->url() != link.server();
      if (!moved || !engine->made()) return &engine->targets();
      if (!engine->targets().empty()) {
        return Status(ErrorCode::kState, Cat(link.Label(), ": an engine of that name is at ", engine->url()));
      }
      LS_RETURN_IF_ERROR(CheckServer(link));
      engine->Cancel();
      retired_.push_back(engine);
      std::erase(engines_, retired_.back());
      return Make(link);
    }
    const bool longer = nearest == nullptr || engine->name().size() > nearest->name().size();
    if (name.starts_with(Cat(engine->name(), "-")) && longer) nearest = engine.get();
    if (engine->in_place() != link.compares()) fitting.push_back(engine.get());
  }
  const bool others = !link.server().empty() || admission_.open;  // it may make its own
  if (nearest != nullptr && !others) return &nearest->targets();
  if (in_table_ == 1 && !others) return &engines_.front()->targets();
  if (fitting.size() == 1 && !others) return &fitting.front()->targets();
  if (others) return Make(link);
  std::string names;
  for (const auto& engine : engines_) names += Cat(names.empty() ? "" : ", ", engine->name());
  return Status(ErrorCode::kNotFound, Cat(link.Label(), ": this receiver's engines are ", names,
                                          "; set LOCKSTEP_ENGINE_NAME of its server to the one that it is"));
}

// A server that is not configured may come by itself, from a port that is admitted.
Status Engines::CheckServer(const targets::RankLink& link) const {
  const std::string& url = link.server();
  const std::string_view scheme = "http://";
  const auto at = net::ParseHostPort(url.starts_with(scheme) ? url.substr(scheme.size()) : url);
  if (!at.ok() || !url.starts_with(scheme)) {
    return {ErrorCode::kBadData, Cat(link.Label(), ": its server is ", url, "; it must be http://HOST:PORT")};
  }
  const bool admitted = at->IsLoopback() && std::ranges::any_of(admission_.ports, [&](const auto& range) {
                          return range.first <= at->port && at->port <= range.second;
                        });
  if (admitted) return OkStatus();
  return {ErrorCode::kPermission,
          Cat(link.Label(), ": its server ", url, " is none of this receiver's, and not one of ",
              "those that may come by themselves (--allow-engines)")};
}

Result<targets::EngineTargets*> Engines::Make(const targets::RankLink& link) {
  engines::EngineOptions options;
  if (!link.server().empty()) {
    LS_RETURN_IF_ERROR(CheckServer(link));
    options = admission_.driver;
    options.url = link.server();
  }
  if (engines_.size() + retired_.size() >= in_table_ + kMostMade) {
    return Status(ErrorCode::kResourceExhausted, Cat(link.Label(), ": there are ", kMostMade, " engines already"));
  }
  LS_ASSIGN_OR_RETURN(auto driver, engines::NewEngineDriver(std::move(options)));
  EngineConfig config = admission_.config;
  config.name = link.engine();
  config.in_place = true;
  config.made = true;
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_joined",
                 {{"model", context_.model}, {"engine", config.name}, {"server", link.server()}});
  engines_.push_back(std::make_shared<Engine>(context_, std::move(config), std::move(driver)));
  return &engines_.back()->targets();
}

bool Engines::Serve() const {
  return std::ranges::all_of(counted(),
                             [](const auto& engine) { return !engine->notifies() || !engine->served().nothing(); });
}

Held Engines::served() const {
  const All engines = counted();
  Held oldest = engines.front()->served();
  for (const auto& engine : engines) {
    const Held served = engine->served();
    if (served.nothing() || served.run != oldest.run) return {};
    if (served.version < oldest.version) oldest = served;
  }
  return oldest;
}

std::string Engines::Late() const {
  for (const auto& engine : all()) {
    if (std::string late = engine->Late(); !late.empty()) return late;
  }
  return {};
}

void Engines::Describe(v1::ReceiverModel& model) const {
  std::set<std::string> kinds;
  for (const auto& engine : all()) engine->Describe(model);
  for (const v1::Engine& engine : model.engine_table()) kinds.insert(engine.kind());
  for (const std::string& kind : kinds) model.set_engine(Cat(model.engine(), model.engine().empty() ? "" : ", ", kind));
  const Held served = this->served();
  model.set_served_version(served.version);
  if (!served.nothing()) model.set_served_run(ToBytes(served.run));
}

void Engines::Cancel() {
  for (const auto& engine : all()) engine->Cancel();
}

bool Engines::HaveRanks() const {
  return std::ranges::any_of(all(), [](const auto& engine) { return !engine->targets().empty(); });
}

bool Engines::Behind() const {
  return Any(&Engine::Behind);
}

bool Engines::OweVersion() const {
  return std::ranges::any_of(all(), [](const auto& engine) { return engine->notifies() && engine->Behind(); });
}

bool Engines::Due() const {
  return Any(&Engine::Due);
}

std::chrono::milliseconds Engines::UntilDue() const {
  auto idle = std::chrono::milliseconds::max();
  for (const auto& engine : all()) idle = std::min(idle, engine->UntilDue());
  return idle;
}

void Engines::Check() {
  for (const auto& engine : all()) engine->Check();
  Forget();
}

// Engines that ranks made, an hour after they went.
void Engines::Forget() {
  const auto now = std::chrono::steady_clock::now();
  All gone;  // they end without the lock
  std::lock_guard lock(mutex_);
  const auto take = [&](All& from, const auto& over) {
    std::erase_if(from, [&](const auto& engine) {
      if (!over(*engine)) return false;
      gone.push_back(engine);
      left_.erase(engine.get());
      return true;
    });
  };
  take(retired_, [](const Engine& engine) { return !engine.under_way() || engine.ended(); });
  take(engines_, [&](const Engine& engine) {
    if (!engine.made()) return false;
    if (!engine.targets().empty()) left_.erase(&engine);
    if (!engine.targets().empty() || engine.under_way()) return false;
    return now - left_.try_emplace(&engine, now).first->second > kRemembered;
  });
}

void Engines::Begin(const std::string& mode, uint64_t transfer, const Begun& which) {
  for (const auto& engine : all()) {
    if (engine->under_way()) continue;
    const bool due = engine->Due() || (which.all && engine->notifies() && engine->Behind() && !engine->late());
    if (due) engine->Begin(mode, transfer, which.may_return);
  }
}

bool Engines::under_way() const {
  return Any(&Engine::under_way);
}

bool Engines::ended() const {
  return Any(&Engine::ended);
}

bool Engines::ReadPrevious() const {
  return Any(&Engine::ReadsPrevious);
}

void Engines::GiveWay() {
  for (const auto& engine : all()) {
    if (engine->ReadsPrevious()) engine->GiveWay();
  }
}

void Engines::Interrupt() {
  for (const auto& engine : all()) engine->Interrupt();
}

void Engines::Take(const std::function<void(const Engine& engine, const EngineOutcome& outcome)>& use) {
  for (const auto& engine : all()) {
    if (engine->ended()) use(*engine, engine->Take());
  }
}

void Engines::AwaitOne(ChangeSignal& changed) const {
  while (under_way() && !changed.WaitFor(std::chrono::hours(1), [this] { return ended(); })) {
  }
}

Result<size_t> Engines::Verify() {
  size_t groups = 0;
  Status first;
  for (const auto& engine : all()) {
    if (engine->targets().empty()) continue;
    const Result<size_t> verified = engine->Verify();
    if (verified.ok()) groups += *verified;
    if (first.ok()) first = ToStatus(verified);
  }
  if (!first.ok()) return first;
  return groups;
}

void Engines::Distrust() {
  for (const auto& engine : all()) engine->Distrust();
}

std::vector<std::shared_ptr<const Engine>> Engines::Waiting() const {
  std::vector<std::shared_ptr<const Engine>> waiting;
  for (const auto& engine : all()) {
    if (engine->notifies() && engine->Behind() && !engine->late()) waiting.push_back(engine);
  }
  return waiting;
}

}  // namespace lockstep::session
