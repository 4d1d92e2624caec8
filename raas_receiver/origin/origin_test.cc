// What every origin must do, over each of them and its real other end.
#include "raas_receiver/origin/origin.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "common/access/access.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/payload/block_apply.h"
#include "common/rpc/rpc_server.h"
#include "raas_receiver/archive/log_fixture.h"
#include "raas_receiver/origin/agent_origin.h"
#include "raas_receiver/origin/log_origin.h"
#include "raas_receiver/origin/ordered_origin.h"
#include "trainer_agent/serve/agent_service.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/local_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::origin {
namespace {

using serve::kBlock;
using serve::kBlocks;

// The other end of an origin, which begins with version 1 of `layout`, and the origin that a receiver has of it.
struct Host {
  std::shared_ptr<const model::ModelLayout> layout = serve::Layout();
  RunId run;
  std::unique_ptr<Origin> origin;

  virtual ~Host() = default;
  virtual void Publish(Version version) = 0;
  virtual Bytes BlockOf(Version version, BlockIndex block) const = 0;
  virtual std::vector<uint64_t> Hashes(Version version) const = 0;
  virtual std::unique_ptr<Origin> Of(const std::string& model) = 0;
  // One block of version 1 comes damaged from here on.
  virtual void Damage(BlockIndex block) = 0;
  virtual size_t OpenPulls() const { return 0; }
  // Whether what it reads is counted as what was asked for: a log is read in chunks.
  virtual bool CountsBlocks() const { return true; }
  virtual bool OnThisHost() const { return false; }
  // Whether its deltas lead to its blocks: those of an agent in this process are made up.
  virtual bool IsConsistent() const { return true; }

  ManifestDigest Digest(Version version) const {
    return model::ComputeManifestDigest(layout->digest(), Hashes(version));
  }
  VersionRef At(Version version) const { return {run, version}; }
  Want Holding(Version version) const {
    Want want{.layout = layout};
    if (version != 0) want.held = At(version);
    if (version != 0) want.digest = Digest(version);
    return want;
  }
  std::unique_ptr<Pull> Open(Version held, std::stop_token stop = {}) {
    auto pull = origin->Open(Holding(held), std::move(stop));
    INFO(pull.status().ToString());
    REQUIRE(pull.ok());
    return *std::move(pull);
  }
};

enum class Kind { kAgentByLanes, kAgentByEncryptedLanes, kAgentByMemory };

std::vector<v1::AgentModel> OpenModels() {
  std::vector<v1::AgentModel> models(1);
  models[0].set_name("actor");
  return models;
}

// An agent that serves a run, in this process.
struct AgentHost : Host {
  const Kind kind;
  serve::Served served;
  os::TempDir dir;
  const std::string socket = dir.File("pull.sock");
  std::unique_ptr<os::UnixServer> local_server = *serve::StartLocalServer({.path = socket}, &served.pulls);
  const bool encrypted = kind == Kind::kAgentByEncryptedLanes;
  std::unique_ptr<serve::LaneServer> lane_server =
      *serve::LaneServer::Start({.address = {"127.0.0.1", 0}, .encrypted = encrypted}, &served.pulls);
  telemetry::Timeline timeline;
  run::Scrubber scrubber{&served.catalog, std::chrono::milliseconds(0)};
  std::unique_ptr<access::AccessControl> access = *access::AccessControl::Create("");
  serve::AgentService service{access.get(),
                              &served.catalog,
                              &scrubber,
                              &served.pulls,
                              {.models = OpenModels, .drop = {}},
                              v1::BuildInfo(),
                              {.address = Cat(":", lane_server->port()), .encrypted = encrypted},
                              kind == Kind::kAgentByMemory ? socket : "",
                              &timeline};
  std::unique_ptr<rpc::RpcServer> rpc =
      *rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {&service}, .health_services = {}});
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};

  explicit AgentHost(uint64_t retain_bytes = 2ull << 30)
      : AgentHost(GENERATE(Kind::kAgentByLanes, Kind::kAgentByEncryptedLanes, Kind::kAgentByMemory), retain_bytes) {}
  AgentHost(Kind of_kind, uint64_t retain_bytes) : kind(of_kind), served(retain_bytes) {
    UNSCOPED_INFO("agent " << static_cast<int>(kind));
    run = served.run->run();
    origin = Of("actor");
  }
  ~AgentHost() override {
    origin.reset();
    served.catalog.Close();  // ends streams
    rpc->Drain(std::chrono::milliseconds(500));
  }

  void Publish(Version version) override { served.Publish(version); }
  Bytes BlockOf(Version version, BlockIndex block) const override { return serve::BlockOf(version, block); }
  std::vector<uint64_t> Hashes(Version version) const override { return served.ManifestOf(version)->block_hashes; }
  std::unique_ptr<Origin> Of(const std::string& model) override {
    const net::HostPort address{"127.0.0.1", static_cast<uint16_t>(rpc->bound_port())};
    return NewAgentOrigin(
        {.model = model, .receiver = "r", .instance = std::string(16, 'i'), .agent = address, .lanes = 2}, io,
        served.pool);
  }
  void Damage(BlockIndex block) override { served.ByteOf(1, block) ^= std::byte{1}; }
  size_t OpenPulls() const override { return served.pulls.open_pulls("actor"); }
  bool OnThisHost() const override { return kind == Kind::kAgentByMemory; }
  bool IsConsistent() const override { return false; }
  // The version is not to be had any more, as when a trainer writes over it.
  void Forget(Version version) { run::Forget(*served.buffer, version); }
};

// A log in a directory that a receiver writes, in this process.
struct LogHost : Host {
  archive::LogFixture log;

  explicit LogHost(uint64_t keep_bytes) {
    log.model = replica::TestModel(layout, 1);
    log.archiving.keep_bytes = keep_bytes;
    log.Open();
    log.StartArchiver();
    run = log.model.run();
    LogHost::Publish(1);
    origin = LogHost::Of("actor");
  }

  void Publish(Version version) override { log.Publish(version); }
  Bytes BlockOf(Version version, BlockIndex block) const override {
    const ByteView bytes = log.model.block_of(version, block);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<uint64_t> Hashes(Version version) const override { return log.model.manifest(version).block_hashes; }
  std::unique_ptr<Origin> Of(const std::string& model) override {
    return NewLogOrigin({.model = model, .store = log.store, .trusted = {}, .remembered_path = "", .connections = 2},
                        log.pool);
  }
  void Damage(BlockIndex block) override {
    const v1::LogHistory history = log.History();
    const auto index = static_cast<uint32_t>(layout->block_range(block).offset / history.chunk_bytes());
    const std::string name =
        versionlog::ObjectName("actor", versionlog::kChunk, versionlog::FindChunk(history, index, 1)->sha256());
    Bytes bytes = *objects::ReadWhole(*log.store, name, 1 << 20, {});
    bytes[0] ^= std::byte{1};
    REQUIRE(log.store->Write(name, bytes, {}).ok());
  }
  bool CountsBlocks() const override { return false; }
};

// Of every kind, one after another; over a store that is named (test_store.h) of the kind that has one.
std::unique_ptr<Host> AnyHost(uint64_t retain_bytes = 2ull << 30) {
  const int kind = std::getenv("LOCKSTEP_TEST_STORE") != nullptr ? 3 : GENERATE(0, 1, 2, 3);
  if (kind == 3) return std::make_unique<LogHost>(retain_bytes);
  return std::make_unique<AgentHost>(static_cast<Kind>(kind), retain_bytes);
}

// Memory for a model, as a replica has it.
struct Memory {
  Bytes bytes = Bytes(size_t{kBlocks} * kBlock);
  std::function<void(BlockIndex)> before = [](BlockIndex) {};
  FullStaging staging;

  explicit Memory(const model::ModelLayout& layout)
      : staging(layout, [this](BlockIndex block) {
          before(block);
          return std::span(bytes).subspan(size_t{block} * kBlock, kBlock);
        }) {}
  bool Holds(const Host& host, Version version, BlockIndex block) const {
    const auto there = std::span(bytes).subspan(size_t{block} * kBlock, kBlock);
    return std::ranges::equal(there, host.BlockOf(version, block));
  }
};

// Watches on a thread of its own.
class Watcher {
 public:
  explicit Watcher(Origin& origin)
      : thread_([this, &origin] {
          ended_ = origin.Watch(stop_.get_token(), [this](const Head& head) {
            std::lock_guard lock(mutex_);
            heads_.push_back(head);
            changed_.notify_all();
          });
        }) {}
  ~Watcher() { (void)Stop(); }
  // The first head that is one of these.
  Head Await(const std::function<bool(const Head&)>& wanted) {
    std::unique_lock lock(mutex_);
    auto found = heads_.end();
    REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] {
      found = std::ranges::find_if(heads_, wanted);
      return found != heads_.end();
    }));
    return *found;
  }
  Status Stop() {
    stop_.request_stop();
    if (thread_.joinable()) thread_.join();
    return ended_;
  }

 private:
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Head> heads_;
  Status ended_;
  std::thread thread_;
};

TEST_CASE("An origin announces the newest version at once, and every newer one") {
  const auto any = AnyHost();
  Host& host = *any;
  Watcher watcher(*host.origin);
  const Head first = watcher.Await([](const Head& head) { return head.held.version == 1; });
  CHECK(first.held.run == host.run);
  CHECK(first.digest == host.Digest(1));
  CHECK(first.layout == host.layout->digest());
  CHECK(first.committed_unix_ns == 1);
  CHECK(first.withdrawn.empty());
  host.Publish(2);
  CHECK(watcher.Await([](const Head& head) { return head.held.version == 2; }).digest == host.Digest(2));
  CHECK(watcher.Stop().code() == ErrorCode::kCancelled);
}

TEST_CASE("An agent announces that a version is withdrawn, with the reason", "[agent]") {
  AgentHost host;
  Watcher watcher(*host.origin);
  host.served.catalog.Retract(host.served.run, 1, {ErrorCode::kCorrupt, "a bit has flipped"});
  const Head withdrawn = watcher.Await([](const Head& head) { return !head.withdrawn.empty(); });
  CHECK(withdrawn.held.nothing());
  CHECK_THAT(withdrawn.withdrawn, Catch::Contains("a bit has flipped"));
  CHECK_THAT(host.origin->Open(host.Holding(1), {}), FailsWith(ErrorCode::kCorrupt, "a bit has flipped"));
}

TEST_CASE("A layout is the model's, and a model that no trainer has opened has none") {
  const auto any = AnyHost();
  Host& host = *any;
  const Result<Layout> layout = host.origin->GetLayout({});
  REQUIRE(layout.ok());
  CHECK((*layout)->digest() == host.layout->digest());
  CHECK(host.Of("nobody")->GetLayout({}).status().code() == ErrorCode::kNotFound);
}

TEST_CASE("A receiver that holds nothing gets every block, with the hashes that the version's digest names") {
  const auto any = AnyHost();
  Host& host = *any;
  const auto pull = host.Open(0);
  CHECK(pull->plan().mode() == "full");
  CHECK(pull->plan().target == VersionRef{host.run, 1});
  CHECK(pull->plan().target_digest == host.Digest(1));
  Memory memory(*host.layout);
  REQUIRE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  for (BlockIndex block = 0; block < kBlocks; ++block) CHECK(memory.Holds(host, 1, block));
  CHECK(model::ComputeManifestDigest(host.layout->digest(), memory.staging.hashes()) == host.Digest(1));
  CHECK(pull->counters().payload_bytes == uint64_t{kBlocks} * kBlock);
  CHECK(pull->counters().streamed_bytes == 0);
  CHECK(pull->counters().retries == 0);
  CHECK((pull->counters().local_bytes > 0) == host.OnThisHost());
  pull->Close({host.run, 1}, OkStatus());
  CHECK(host.OpenPulls() == 0);
}

TEST_CASE("No other blocks come than those asked for, wherever they lie, and none where none is asked for") {
  const auto any = AnyHost();
  Host& host = *any;
  const auto pull = host.Open(0);
  Memory memory(*host.layout);
  REQUIRE(pull->FetchBlocks({{}, 1, false}, memory.staging).ok());
  DeltaStaging no_steps(*host.layout, host.run, {});
  REQUIRE(pull->FetchDeltas(no_steps).ok());
  CHECK(pull->counters().payload_bytes == 0);
  const std::vector<BlockIndex> some{0, 3, 4, 5, 17, kBlocks - 1};
  REQUIRE(pull->FetchBlocks({some, 1, true}, memory.staging).ok());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    const bool asked = std::ranges::find(some, block) != some.end();
    CHECK(memory.staging.versions()[block] == (asked ? 1 : 0));
    CHECK(memory.Holds(host, 1, block) == asked);
  }
  if (host.CountsBlocks()) CHECK(pull->counters().payload_bytes == some.size() * kBlock);
}

TEST_CASE("A receiver gets the deltas from its version on, and none when it holds the newest") {
  const auto any = AnyHost();
  Host& host = *any;
  host.Publish(2);
  host.Publish(3);
  const auto pull = host.Open(1);
  CHECK(pull->plan().mode() == "chain");
  CHECK(pull->plan().base == VersionRef{host.run, 1});
  CHECK(pull->plan().target == VersionRef{host.run, 3});
  DeltaStaging staging(*host.layout, host.run, pull->plan().steps);
  REQUIRE(pull->FetchDeltas(staging).ok());
  const auto chain = staging.Assemble(host.Digest(1), 0);
  INFO(chain.status().ToString());
  REQUIRE(chain.ok());
  REQUIRE(chain->size() == 2);
  uint64_t bytes = 0;
  Bytes data;  // brought forward
  for (BlockIndex block = 0; block < kBlocks; ++block) AppendBytes(data, host.BlockOf(1, block));
  for (const auto& step : *chain) {
    bytes += step->header().data_bytes;
    CHECK(step->target() == host.At(step->base().version + 1));
    for (const payload::PayloadEntry& entry : step->entries()) {
      CHECK(entry.target_hash == host.Hashes(step->target().version)[entry.block]);
      const std::vector<payload::EntryData> entries{{&entry, step->data(entry)}};
      const auto hash = payload::ApplyEntries(entries, std::span(data).subspan(size_t{entry.block} * kBlock, kBlock));
      REQUIRE(hash.ok());
      if (host.IsConsistent()) CHECK(*hash == entry.target_hash);
    }
  }
  CHECK((host.CountsBlocks() ? pull->counters().payload_bytes == bytes : pull->counters().payload_bytes > bytes));
  CHECK(host.Open(2)->plan().mode() == "delta");
  CHECK(host.Open(3)->plan().mode() == "up_to_date");
}

TEST_CASE("A delta that is not to be had is an error that leaves the pull in use") {
  const auto any = AnyHost();
  Host& host = *any;
  host.Publish(2);
  const auto pull = host.Open(1);
  std::vector<pull::DeltaStep> unknown = pull->plan().steps;
  unknown[0].payload_id += 100;
  DeltaStaging missing(*host.layout, host.run, unknown);
  CHECK(pull->FetchDeltas(missing).code() == ErrorCode::kNotFound);
  CHECK_FALSE(missing.Assemble(host.Digest(1), 0).ok());
  DeltaStaging staging(*host.layout, host.run, pull->plan().steps);
  REQUIRE(pull->FetchDeltas(staging).ok());
  CHECK(staging.Assemble(host.Digest(1), 0).ok());
}

TEST_CASE("A pull is full where the held version has another digest, or its deltas are gone") {
  const auto any = AnyHost(1);  // byte of deltas, or more than the newest version needs
  Host& host = *any;
  Version newest = 4;
  for (Version version = 2; version <= newest; ++version) host.Publish(version);
  const auto full = [&](const Want& want) {
    const auto pull = host.origin->Open(want, {});
    REQUIRE(pull.ok());
    (*pull)->Close(want.held, OkStatus());
    return (*pull)->plan().mode() == "full";
  };
  while (!full(host.Holding(1)) && newest < 60) host.Publish(++newest);
  CHECK(full(host.Holding(1)));
  Want other = host.Holding(newest);
  CHECK_FALSE(full(other));
  other.digest = host.Digest(newest - 1);
  CHECK(full(other));
  other = host.Holding(newest);
  other.whole = true;
  CHECK(full(other));
}

TEST_CASE("A pull for another layout than the model's is refused as one") {
  const auto any = AnyHost();
  Host& host = *any;
  Want want = host.Holding(0);
  want.layout = run::LayoutOf(kBlock);
  CHECK_THAT(host.origin->Open(want, {}), FailsWith(ErrorCode::kState, "layout"));
}

TEST_CASE("Bytes that are damaged on their way never count, and the others do") {
  const auto any = AnyHost();
  Host& host = *any;
  host.Damage(7);
  const auto pull = host.Open(0);
  Memory memory(*host.layout);
  CHECK_FALSE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  const std::vector<BlockIndex> missing = memory.staging.Missing();
  CHECK(std::ranges::find(missing, 7) != missing.end());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    if (std::ranges::find(missing, block) == missing.end()) CHECK(memory.Holds(host, 1, block));
  }
}

TEST_CASE("What an agent's memory does not bring comes by its lanes, and nothing else does", "[agent]") {
  AgentHost host(Kind::kAgentByMemory, 2ull << 30);
  const auto pull = host.Open(0);
  Bytes bytes(size_t{kBlocks} * kBlock);
  std::atomic<bool> spoilt = false;
  FullStaging staging(*host.layout, [&](BlockIndex block) {
    if (block == 7 && !spoilt.exchange(true)) return std::span<std::byte>();  // no copy in there has the block's hash
    return std::span(bytes).subspan(size_t{block} * kBlock, kBlock);
  });
  REQUIRE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, staging).ok());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    CHECK(std::ranges::equal(std::span(bytes).subspan(size_t{block} * kBlock, kBlock), host.BlockOf(1, block)));
  }
  CHECK(pull->counters().payload_bytes == uint64_t{kBlocks} * kBlock);
  CHECK(pull->counters().local_bytes == uint64_t{kBlocks - 1} * kBlock);
}

TEST_CASE("A version that is overtaken while it is pulled comes as a newer one, and all blocks come to one",
          "[agent]") {
  AgentHost host;
  const auto pull = host.Open(0);
  Memory memory(*host.layout);
  std::vector<BlockIndex> half = host.layout->AllBlocks();
  half.resize(kBlocks / 2);
  REQUIRE(pull->FetchBlocks({half, 1, false}, memory.staging).ok());
  host.Publish(2);
  host.Forget(1);
  std::vector<BlockIndex> rest = host.layout->AllBlocks();
  rest.erase(rest.begin(), rest.begin() + kBlocks / 2);
  CHECK(pull->FetchBlocks({rest, 1, true}, memory.staging).code() == ErrorCode::kState);
  CHECK(memory.staging.Missing() == rest);
  REQUIRE(pull->FetchBlocks({rest, 1, false}, memory.staging).ok());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    CHECK(memory.staging.versions()[block] == (block < kBlocks / 2 ? 1 : 2));
    CHECK(memory.Holds(host, memory.staging.versions()[block], block));
  }
  const Result<Plan> plan = pull->CatchUp(memory.staging.versions());
  REQUIRE(plan.ok());
  CHECK(plan->full);
  CHECK(plan->target == VersionRef{host.run, 2});
  CHECK(plan->target_digest == host.Digest(2));
  REQUIRE(plan->steps.size() == 1);
  DeltaStaging deltas(*host.layout, host.run, plan->steps);
  CHECK(pull->FetchDeltas(deltas).ok());
}

TEST_CASE("A version that is withdrawn while it is pulled is not to be had, nor caught up with", "[agent]") {
  AgentHost host;
  const auto pull = host.Open(0);
  host.served.catalog.Retract(host.served.run, 1, {ErrorCode::kCorrupt, "a bit has flipped"});
  Memory memory(*host.layout);
  CHECK_FALSE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  CHECK(memory.staging.Missing().size() == kBlocks);
  CHECK_FALSE(pull->CatchUp(std::vector<Version>(kBlocks, 1)).ok());
  pull->Close({}, {ErrorCode::kCorrupt, "withdrawn"});
  CHECK(host.served.pulls.open_pulls("actor") == 0);
}

TEST_CASE("A stop ends every call, before and while it is made, and a pull is closed all the same") {
  const auto any = AnyHost();
  Host& host = *any;
  host.Publish(2);
  std::stop_source stop;
  const auto full = host.Open(0, stop.get_token());
  const auto delta = host.Open(1, stop.get_token());
  Memory memory(*host.layout);
  std::once_flag once;
  // In the middle of the fetch, from a thread of its own: the one that copies would wait for itself.
  memory.before = [&](BlockIndex) { std::call_once(once, [&] { std::thread([&] { stop.request_stop(); }).join(); }); };
  CHECK(full->FetchBlocks({host.layout->AllBlocks(), 2, false}, memory.staging).code() == ErrorCode::kCancelled);
  CHECK(full->FetchBlocks({host.layout->AllBlocks(), 2, false}, memory.staging).code() == ErrorCode::kCancelled);
  DeltaStaging staging(*host.layout, host.run, delta->plan().steps);
  CHECK(delta->FetchDeltas(staging).code() == ErrorCode::kCancelled);
  CHECK(host.origin->GetLayout(stop.get_token()).status().code() == ErrorCode::kCancelled);
  CHECK(host.origin->Open(host.Holding(0), stop.get_token()).status().code() == ErrorCode::kCancelled);
  if (host.origin->can().report) {
    CHECK(host.origin->Report({}, stop.get_token()).status().code() == ErrorCode::kCancelled);
    CHECK(full->CatchUp(std::vector<Version>(kBlocks, 1)).status().code() == ErrorCode::kCancelled);
  }
  CHECK(host.origin->Watch(stop.get_token(), [](const Head&) {}).code() == ErrorCode::kCancelled);
  host.origin->Follow(host.Holding(1), stop.get_token());  // waits for nothing
  for (const auto& pull : {full.get(), delta.get()}) pull->Close({}, {ErrorCode::kCancelled, "stopped"});
  CHECK(host.OpenPulls() == 0);
  CHECK(host.Open(0)->plan().full);  // what was stopped stops nothing else
}

TEST_CASE("What follows a version that is held comes early where the origin can, and otherwise as any delta",
          "[agent]") {
  AgentHost host;
  REQUIRE(host.origin->can().follow);
  const auto first = host.Open(0);
  Memory memory(*host.layout);
  REQUIRE(first->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  const VersionRef held{host.run, 1};
  first->Close(held, OkStatus());
  for (const bool followed : {true, false}) {
    host.served.run->feed().SetNewest(followed ? 1 : 2);
    const Version base = followed ? 1 : 2;
    const bool early = followed && host.kind != Kind::kAgentByMemory;
    // Nothing is promised of one call, and lanes may be slow to end.
    CHECK(Eventually([&] {
      host.origin->Follow(followed ? host.Holding(base) : Want(), {});
      return host.served.run->feed().followed() == early;
    }));
    host.Publish(base + 1);
    const auto pull = host.Open(base);
    if (early) {
      const auto streaming = host.served.run->feed().Begin(base, base + 1);
      const auto delta = host.served.run->deltas().RouteFrom(base, base + 1, host.layout->data_bytes())[0];
      const payload::Payload& payload = *delta->payload();
      for (const payload::PayloadEntry& entry : payload.entries()) {
        const ByteView data = payload.data(entry);
        streaming->Add(
            std::make_shared<payload::DeltaBlock>(payload::DeltaBlock{.block = entry.block,
                                                                      .codec = static_cast<payload::Codec>(entry.codec),
                                                                      .changes = entry.changes,
                                                                      .target_hash = entry.target_hash,
                                                                      .data_hash = entry.data_hash,
                                                                      .data = {data.begin(), data.end()}}));
      }
      streaming->Seal();
    }
    DeltaStaging staging(*host.layout, held.run, pull->plan().steps);
    const Status fetched = pull->FetchDeltas(staging);
    INFO(fetched.ToString());
    REQUIRE(fetched.ok());
    CHECK(staging.Assemble(host.Digest(base), 0).ok());
    CHECK((pull->counters().streamed_bytes > 0) == early);
    CHECK(pull->counters().payload_bytes == pull->plan().steps[0].data_bytes);
    pull->Close({held.run, base + 1}, OkStatus());
  }
}

TEST_CASE("A log brings no version that it does not have, and none that is older than what is held") {
  LogHost host(2ull << 30);
  Memory memory(*host.layout);
  CHECK_THAT(host.Open(0)->FetchBlocks({host.layout->AllBlocks(), 9, true}, memory.staging),
             FailsWith(ErrorCode::kNotFound, "not 9"));
  Want late = host.Holding(1);
  late.held.version = 5;
  const auto pull = host.origin->Open(late, {});
  REQUIRE(pull.ok());
  CHECK((*pull)->plan().mode() == "up_to_date");
  late.whole = true;
  CHECK_THAT(host.origin->Open(late, {}), FailsWith(ErrorCode::kState, "5 is held"));
}

TEST_CASE(
    "Deltas of a log come in parts that memory has room for, none of which ends at a skipped version; a larger one "
    "comes alone") {
  LogHost host(2ull << 30);
  for (Version version = 2; version <= 6; ++version) host.Publish(version);
  const v1::LogHistory history = host.log.History();
  const uint64_t two = history.steps(0).payload().bytes() + history.steps(1).payload().bytes();
  const auto plan = [&](uint64_t memory_bytes, Version held, Version skipped) {
    const auto reader = NewLogOrigin(
        {.model = "actor", .store = host.log.store, .trusted = {}, .remembered_path = "", .memory_bytes = memory_bytes},
        host.log.pool);
    Want want = host.Holding(held);
    if (skipped != 0) want.skipped = host.At(skipped);
    return (*reader->Open(want, {}))->plan();
  };
  const auto ends_at = [&](const Plan& planned, Version version) {
    CHECK(planned.target == host.At(version));
    CHECK(planned.target_digest == host.Digest(version));
    CHECK(planned.label == Cat("step ", version));
    CHECK(planned.committed_unix_ns == static_cast<int64_t>(version));
    CHECK(planned.steps.back().target == version);
    CHECK(planned.goes_on == (version < 6));
  };
  ends_at(plan(two, 1, 0), 3);
  ends_at(plan(two, 1, 2), 3);
  ends_at(plan(two, 1, 3), 4);
  ends_at(plan(two - 1, 1, 0), 2);
  ends_at(plan(1, 4, 0), 5);
  ends_at(plan(1, 5, 0), 6);
  ends_at(plan(1, 4, 5), 6);
  ends_at(plan(1 << 30, 1, 3), 6);
}

// The store of a reader, which waits before it reads a chunk until the log has moved on.
struct MovingStore final : objects::ObjectStore {
  std::shared_ptr<objects::ObjectStore> store;
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::string> gone;  // to this reader
  int wanted = 0;              // chunks; each waits for a move of its own
  int moves = 0;
  int read = 0;  // chunks

  explicit MovingStore(std::shared_ptr<objects::ObjectStore> real) : store(std::move(real)) {}
  const std::string& url() const override { return store->url(); }
  Status Read(const std::string& name, const Take& take, std::stop_token stop) override {
    {
      std::unique_lock lock(mutex);
      const bool chunk = name.find("/chunk/") != std::string::npos;
      const int own = chunk ? ++wanted : 0;
      changed.notify_all();
      changed.wait(lock, [&] { return moves >= own; });
      if (gone.contains(name)) return {ErrorCode::kNotFound, name};
      if (chunk) ++read;
    }
    return store->Read(name, take, stop);
  }
  Status Write(const std::string& name, ByteView bytes, std::stop_token stop) override {
    return store->Write(name, bytes, stop);
  }
  Result<std::optional<objects::TaggedObject>> ReadChanged(const std::string& name, const std::string& tag,
                                                           std::chrono::milliseconds wait,
                                                           std::stop_token stop) override {
    return store->ReadChanged(name, tag, wait, stop);
  }
  Result<std::string> Replace(const std::string& name, const std::string& tag, ByteView bytes,
                              std::stop_token stop) override {
    return store->Replace(name, tag, bytes, stop);
  }
  Result<std::vector<objects::ListedObject>> List(const std::string& prefix, std::stop_token stop) override {
    return store->List(prefix, stop);
  }
  Status Remove(const std::string& name, std::stop_token stop) override { return store->Remove(name, stop); }
};

TEST_CASE("A log that moves on while it is read whole, again and again, is read once, and comes as a newer version") {
  LogHost host(1);  // what the newest version needs
  const auto moving = std::make_shared<MovingStore>(host.log.store);
  host.origin = NewLogOrigin(
      {.model = "actor", .store = moving, .trusted = {}, .remembered_path = "", .connections = 1}, host.log.pool);
  const auto pull = host.Open(0);
  Memory memory(*host.layout);
  Status fetched;
  std::atomic<bool> ended = false;
  std::thread fetches([&] {
    fetched = pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging);
    ended = true;
  });
  // What no head has named for some moves is gone: the grace time.
  std::map<std::string, int> unnamed;
  Version newest = 1;
  while (!ended) {
    std::unique_lock lock(moving->mutex);
    const auto due = [&] { return moving->wanted > moving->moves; };
    if (!moving->changed.wait_for(lock, std::chrono::milliseconds(10), due)) continue;
    host.log.model.Advance(20);
    host.Publish(++newest);
    const std::set<std::string> named = versionlog::ObjectNames(**host.log.Reader().ReadHead({}));
    for (const std::string& name : host.log.Objects()) {
      if (!named.contains(name) && name != "actor/head" && ++unnamed[name] > 3) moving->gone.insert(name);
    }
    REQUIRE(host.origin->Open(host.Holding(0), {}).ok());  // looks at the head, as a watch does
    ++moving->moves;
    moving->changed.notify_all();
  }
  fetches.join();
  INFO(fetched.ToString());
  REQUIRE(fetched.ok());
  const Version came = memory.staging.versions()[0];
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    CHECK(memory.staging.versions()[block] == came);
    CHECK(memory.Holds(host, came, block));
  }
  CHECK(host.log.History().steps(0).base() > 4);  // from what was read first no delta leads on any more
  CHECK(static_cast<uint64_t>(moving->read) == versionlog::ChunkCount(host.log.History(), host.layout->data_bytes()));
  const auto plan = pull->CatchUp(memory.staging.versions());
  REQUIRE(plan.ok());
  CHECK(plan->full);
  CHECK(plan->target == host.At(came));
  CHECK(plan->target_digest == host.Digest(came));
  CHECK(plan->steps.empty());
}

TEST_CASE(
    "Of several origins one further down is used where the others are lost, and what it has is as new as what is "
    "held") {
  LogHost host(2ull << 30);
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  const auto ordered = [&](int64_t held_unix_ns) {
    const net::HostPort nobody{"127.0.0.1", 1};
    std::vector<std::unique_ptr<Origin>> origins;
    origins.push_back(NewAgentOrigin(
        {.model = "actor", .receiver = "r", .instance = std::string(16, 'i'), .agent = nobody, .lanes = 1}, io,
        host.log.pool));
    origins.push_back(host.Of("actor"));
    return NewOrderedOrigin(std::move(origins), held_unix_ns);
  };
  const auto as_new = ordered(1);
  Watcher watcher(*as_new);
  watcher.Await([](const Head& head) { return head.held.version == 1; });
  CHECK(as_new->name() == host.origin->name());
  CHECK(ordered(2)->Watch({}, [](const Head&) { FAIL(); }).code() == ErrorCode::kUnavailable);
}

TEST_CASE("A report arrives, and is answered why no version will come", "[agent]") {
  AgentHost host;
  REQUIRE(host.origin->can().report);
  v1::ReportRequest report;
  report.mutable_held()->set_run(ToBytes(host.run));
  report.mutable_held()->set_version(1);
  report.set_last_error("ill");
  CHECK(host.origin->Report(report, {})->empty());
  const auto known = host.served.pulls.reports().Of("actor");
  REQUIRE(known.size() == 1);
  CHECK(known[0].held == VersionRef{host.run, 1});
  CHECK(known[0].last_error == "ill");
  CHECK_THAT(*host.Of("acto")->Report({}, {}),
             Catch::Contains(host.origin->name()) && Catch::EndsWith(" has no acto; it has actor"));
}

}  // namespace
}  // namespace lockstep::origin
