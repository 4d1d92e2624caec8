#include "raas_receiver/receiver/engine_health.h"

#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "common/base/ids.h"
#include "raas_receiver/origin/version_ref_proto.h"

namespace lockstep::receiver {
namespace {

constexpr std::chrono::milliseconds kNever{0};
const std::string kNotified = "raas-receiver-engine/actor";
const std::string kAttached = "raas-receiver-engine/actor/rollout 0";
const RunId kRun{{1}};
const RunId kOtherRun{{2}};

v1::ReceiverModel Model(VersionRef held, uint64_t newest) {
  v1::ReceiverModel model;
  model.set_name("actor");
  model.set_engine_kinds("none");
  *model.mutable_held() = origin::ToProto(held);
  model.set_newest_version(newest);
  return model;
}

v1::ReceiverModel Notified(VersionRef held, uint64_t newest, VersionRef served) {
  v1::ReceiverModel model = Model(held, newest);
  model.set_engine_kinds("vllm");
  model.set_served_version(served.version);
  model.set_served_run(ToBytes(served.run));
  v1::Engine& engine = *model.add_engines();
  engine.set_name("default");
  engine.set_kind("vllm");
  *engine.mutable_served() = origin::ToProto(served);
  return model;
}

v1::RankGroup& Attach(v1::ReceiverModel& model, VersionRef serving) {
  v1::RankGroup& group = *model.add_rank_groups();
  group.set_name("rollout 0");
  group.set_world(2);
  group.set_attached(2);
  *group.mutable_serving() = origin::ToProto(serving);
  return group;
}

}  // namespace

TEST_CASE("A receiver without an engine tells of none") {
  EngineHealth health(true, kNever);
  CHECK(health.Update(Model({kRun, 3}, 3)).empty());
}

TEST_CASE("An engine serves from its first version of the run on") {
  EngineHealth health(true, kNever);
  CHECK(!health.Update(Notified({}, 0, {}))[kNotified]);
  CHECK(!health.Update(Notified({kRun, 3}, 3, {}))[kNotified]);
  CHECK(!health.Update(Notified({kRun, 3}, 3, {kOtherRun, 3}))[kNotified]);
  CHECK(health.Update(Notified({kRun, 3}, 3, {kRun, 2}))[kNotified]);
  CHECK(health.Update(Notified({kRun, 3}, 9, {kRun, 2}))[kNotified]);
}

TEST_CASE("Each engine has a name, and one for all serves when all do") {
  EngineHealth health(true, kNever);
  v1::ReceiverModel model = Notified({kRun, 3}, 3, {kRun, 3});
  v1::Engine& second = *model.add_engines();
  second.set_name("second");
  second.set_kind("hook");
  model.set_served_version(0);
  CHECK(health.Update(model) ==
        EngineHealth::Serving{{kNotified, false}, {kNotified + "/default", true}, {kNotified + "/second", false}});
  *second.mutable_served() = origin::ToProto({kRun, 3});
  model.set_served_version(3);
  CHECK(health.Update(model) ==
        EngineHealth::Serving{{kNotified, true}, {kNotified + "/default", true}, {kNotified + "/second", true}});
}

TEST_CASE("An engine that stays behind for too long does not serve, unless it was rolled back or is not to follow") {
  constexpr std::chrono::milliseconds kSoon{20};
  const auto after = [&](bool follows, const v1::ReceiverModel& model) {
    EngineHealth health(follows, kSoon);
    CHECK(health.Update(model)[kNotified]);
    std::this_thread::sleep_for(2 * kSoon);
    return health.Update(model)[kNotified];
  };
  v1::ReceiverModel behind = Notified({kRun, 3}, 3, {kRun, 2});
  CHECK(!after(true, behind));
  CHECK(after(false, behind));
  CHECK(after(true, Notified({kRun, 3}, 3, {kRun, 3})));
  behind.set_skipped_version(3);
  CHECK(after(true, behind));
  behind.set_newest_version(4);
  CHECK(!after(true, behind));
  behind.set_state(v1::SESSION_STATE_HELD);
  CHECK(after(true, behind));
}

TEST_CASE("An attached engine serves while all its ranks are there and awake, and not once they are gone") {
  EngineHealth health(true, kNever);
  v1::ReceiverModel model = Model({kRun, 3}, 3);
  v1::RankGroup& group = Attach(model, {kRun, 3});
  CHECK(health.Update(model) == EngineHealth::Serving{{kAttached, true}});
  group.set_asleep(1);
  CHECK(!health.Update(model)[kAttached]);
  group.set_asleep(0);
  group.set_waiting(1);
  CHECK(!health.Update(model)[kAttached]);
  group.set_waiting(0);
  group.set_attached(1);
  CHECK(!health.Update(model)[kAttached]);
  group.set_attached(2);
  CHECK(health.Update(model)[kAttached]);
  model.clear_rank_groups();
  CHECK(health.Update(model) == EngineHealth::Serving{{kAttached, false}});
  Attach(model, {kRun, 3}).set_comparing(2);
  CHECK(health.Update(model) == EngineHealth::Serving{{kAttached, false}});
}

TEST_CASE("Engines that join under ever new names get so many health services, and then count for their model alone") {
  EngineHealth health(true, kNever);
  std::set<std::string> services;
  v1::ReceiverModel model = Notified({kRun, 3}, 3, {kRun, 3});
  v1::Engine& joined = *model.add_engines();
  joined = model.engines(0);
  for (int start = 0; start < 2'000; ++start) {
    joined.set_name("start-" + std::to_string(start));
    for (const auto& [service, serves] : health.Update(model)) services.insert(service);
  }
  CHECK(services.size() == 1'024);
  CHECK(services.contains(kNotified + "/start-0"));
  CHECK(health.Update(model).at(kNotified + "/default"));
  CHECK(health.Update(model).at(kNotified));
  model.set_served_version(2);
  model.set_served_run(ToBytes(kOtherRun));
  CHECK_FALSE(health.Update(model).at(kNotified));
}

}  // namespace lockstep::receiver
