#include "raas_receiver/session/engines.h"

#include <algorithm>
#include <ranges>
#include <set>

#include "common/base/text.h"
#include "raas_receiver/engines/driver_kind.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/targets/rank_link.h"

namespace lockstep::session {
namespace {

constexpr size_t kMostMade = 64;  // engines that ranks made

}  // namespace

Engines::Engines(const EngineContext& context, std::vector<EngineEntry> table, bool open)
    : context_(context), open_(open), in_table_(table.size()) {
  for (EngineEntry& entry : table) {
    engines_.push_back(std::make_shared<Engine>(context_, std::move(entry.config), std::move(entry.driver)));
  }
}

Engines::All Engines::all() const {
  std::lock_guard lock(mutex_);
  return engines_;
}

// Those that say something of whether versions are served: where ranks make engines, those that have ranks, if any has.
Engines::All Engines::counted() const {
  All engines = all();
  if (!open_) return engines;
  All with_ranks;
  std::ranges::copy_if(engines, std::back_inserter(with_ranks),
                       [](const auto& engine) { return !engine->targets().empty(); });
  if (with_ranks.empty()) return {engines.front()};
  return with_ranks;
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
    if (engine->name() == name) return &engine->targets();
    const bool longer = nearest == nullptr || engine->name().size() > nearest->name().size();
    if (name.starts_with(Cat(engine->name(), "-")) && longer) nearest = engine.get();
    if (engine->in_place() != link.compares()) fitting.push_back(engine.get());
  }
  if (!open_ && nearest != nullptr) return &nearest->targets();
  if (!open_ && in_table_ == 1) return &engines_.front()->targets();
  if (!open_ && fitting.size() == 1) return &fitting.front()->targets();
  if (open_ && engines_.size() < kMostMade) {
    LS_ASSIGN_OR_RETURN(auto driver, engines::NewEngineDriver({}));
    EngineConfig config = engines_.front()->config();
    config.name = name;
    engines_.push_back(std::make_shared<Engine>(context_, std::move(config), std::move(driver)));
    return &engines_.back()->targets();
  }
  std::string names;
  for (const auto& engine : engines_) names += Cat(names.empty() ? "" : ", ", engine->name());
  return Status(ErrorCode::kNotFound, Cat(link.Label(), ": this receiver's engines are ", names,
                                          "; set LOCKSTEP_ENGINE_NAME of its server to the one that it is"));
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

std::vector<const Engine*> Engines::Waiting() const {
  std::vector<const Engine*> waiting;
  for (const auto& engine : all()) {
    if (engine->notifies() && engine->Behind() && !engine->late()) waiting.push_back(engine.get());
  }
  return waiting;
}

}  // namespace lockstep::session
