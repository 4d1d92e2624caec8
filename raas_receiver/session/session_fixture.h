// A session on a directory of its own, following a TestAgent. For tests.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "raas_receiver/origin/agent_origin.h"
#include "raas_receiver/origin/test_agent.h"
#include "raas_receiver/replica/replica_fixture.h"
#include "raas_receiver/session/session.h"

namespace lockstep::session {

inline constexpr std::chrono::milliseconds kForEver = std::chrono::minutes(1);  // more than a busy machine needs

struct SessionFixture {
  replica::ReplicaFixture replicas;
  SyncFeed feed;
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  origin::TestAgent agent{replicas.model};
  origin::AgentOriginOptions origin{.model = "actor", .receiver = "test", .agent = agent.address(), .lanes = 2};
  SessionOptions options{.model = "actor"};
  engine::EngineConfig entry;
  engine::EngineOptions engine;
  std::unique_ptr<engine::EngineDriver> driver;   // null: as `engine` says
  std::vector<engine::EngineEntry> others;        // engines beside that one
  std::shared_ptr<objects::ObjectStore> archive;  // null: versions go to no log
  std::unique_ptr<Session> session;
  replica::ReplicaPair* pair = nullptr;

  void Start() {
    replicas.Open();
    pair = replicas.opened.get();
    std::unique_ptr<archive::Archiver> archiver;
    if (archive != nullptr) {
      auto made = archive::Archiver::Create({.store = archive, .model = "actor", .receiver = "test"}, *pair);
      REQUIRE(made.ok());
      archiver = *std::move(made);
    }
    if (!driver) {
      auto made = engine::NewEngineDriver(engine);
      REQUIRE(made.ok());
      driver = *std::move(made);
    }
    std::vector<engine::EngineEntry> table;
    table.push_back({entry, std::move(driver)});
    for (engine::EngineEntry& other : others) table.push_back(std::move(other));
    others.clear();
    session = std::make_unique<Session>(options, origin::NewAgentOrigin(origin, io, replicas.pool),
                                        std::move(replicas.opened), std::move(archiver), std::move(table), feed);
    session->Start();
  }
  void Stop() {
    session->RequestStop();
    session->Join(std::chrono::seconds(5));
    session.reset();
  }
  template <typename Condition>
  void WaitFor(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + kForEver;
    while (!condition()) {
      INFO(session->Describe().ShortDebugString());
      REQUIRE(std::chrono::steady_clock::now() < until);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  bool Resting() const {
    const v1::SessionState state = session->Describe().state();
    return state == v1::SESSION_STATE_WAITING || state == v1::SESSION_STATE_CURRENT;
  }
  void WaitHeld(Version version) {
    WaitFor([&] { return pair->current().held.version == version && Resting(); });
    Check(version);
  }
  // The published file and its hashes are those of `version`.
  void Check(Version version) {
    CHECK(pair->current().held == replicas.model.held(version));
    CHECK(replica::ReplicaFixture::FileBytes(replicas.ModelPath("current/model.safetensors")) ==
          replica::ReplicaFixture::Image(replicas.model, version));
    CHECK(session->Verify()->bad_blocks.empty());
  }
  v1::ReceiverModel Describe() const { return session->Describe(); }
  Result<v1::SyncRecord> Pull(bool force_full = false) {
    return session->Pull(force_full, kForEver, [] { return false; });
  }
  Result<v1::ReceiverModel> Rollback(Version to = 0, Version skip = 0) {
    v1::RollbackRequest request;
    request.set_to_version(to);
    request.set_not_version(skip);
    return session->Rollback(request, [] { return false; });
  }
  // Damages the replica that the next delta will bring forward, in the first block that it changes.
  void DamageTarget(Version base) {
    const BlockIndex block = replicas.model.DeltaBlocks(base, base + 1)[0].block;
    pair->target_block(block)[1] ^= std::byte{1};
  }
};

}  // namespace lockstep::session
