// What every origin must do, over each of them and its real other end.
#include "raas_receiver/origin/origin.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <thread>

#include "common/access/access.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/rpc/rpc_server.h"
#include "raas_receiver/origin/agent_origin.h"
#include "trainer_agent/serve/agent_service.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/local_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::origin {
namespace {

using serve::kBlock;
using serve::kBlocks;

// Lanes may damage a block on its way, too.
struct Blocks : serve::MadeUpBlocks {
  std::atomic<int64_t> damaged{-1};
  Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) override {
    return MadeUpBlocks::UseBytes(version, range, [&](ByteView bytes) {
      Bytes changed(bytes.begin(), bytes.end());
      const uint64_t at = static_cast<uint64_t>(damaged) * kBlock;
      if (damaged >= 0 && at >= range.offset && at < range.end()) changed[at - range.offset] ^= std::byte{1};
      use(changed);
    });
  }
};

enum class Kind { kAgentByLanes, kAgentByEncryptedLanes, kAgentByMemory };

std::vector<v1::AgentModel> OpenModels() {
  std::vector<v1::AgentModel> models(1);
  models[0].set_name("actor");
  return models;
}

// An agent that serves a run, in this process, and the origin that a receiver has of it.
struct Host : serve::Served {
  const Kind kind;
  os::TempDir dir;
  const std::string socket = dir.File("pull.sock");
  std::unique_ptr<os::UnixServer> local_server = *serve::StartLocalServer({.path = socket}, &pulls);
  const bool encrypted = kind == Kind::kAgentByEncryptedLanes;
  std::unique_ptr<serve::LaneServer> lane_server =
      *serve::LaneServer::Start({.address = {"127.0.0.1", 0}, .encrypted = encrypted}, &pulls);
  telemetry::Timeline timeline;
  store::Scrubber scrubber{&catalog, std::chrono::milliseconds(0)};
  std::unique_ptr<access::AccessControl> access = *access::AccessControl::Create("");
  serve::AgentService service{access.get(),
                              &catalog,
                              &scrubber,
                              &pulls,
                              OpenModels,
                              v1::BuildInfo(),
                              {.address = Cat(":", lane_server->port()), .encrypted = encrypted},
                              kind == Kind::kAgentByMemory ? socket : "",
                              &timeline};
  std::unique_ptr<rpc::RpcServer> rpc =
      *rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {&service}, .health_services = {}});
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  std::unique_ptr<Origin> origin = Of("actor");

  explicit Host(uint64_t retain_bytes = 2ull << 30)
      : Served(retain_bytes), kind(GENERATE(Kind::kAgentByLanes, Kind::kAgentByEncryptedLanes, Kind::kAgentByMemory)) {
    UNSCOPED_INFO("origin " << static_cast<int>(kind));
  }
  ~Host() {
    catalog.Close();  // ends streams
    rpc->Drain(std::chrono::milliseconds(500));
  }

  std::unique_ptr<Origin> Of(const std::string& model) {
    const net::HostPort address{"127.0.0.1", static_cast<uint16_t>(rpc->bound_port())};
    return NewAgentOrigin(
        {.model = model, .receiver = "r", .instance = std::string(16, 'i'), .agent = address, .lanes = 2}, io, pool);
  }
  Want Holding(Version version) const {
    Want want{.layout = layout};
    if (version != 0) want.held = {run->run(), version};
    if (version != 0) want.digest = Digest(version);
    return want;
  }
  std::unique_ptr<Pull> Open(Version held, std::stop_token stop = {}) {
    auto pull = origin->Open(Holding(held), std::move(stop));
    INFO(pull.status().ToString());
    REQUIRE(pull.ok());
    return *std::move(pull);
  }
  // The version is not to be had any more, as when a trainer writes over it.
  void Forget(Version version) { blocks->oldest = version + 1; }
};

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
  bool Holds(Version version, BlockIndex block) const {
    const auto there = std::span(bytes).subspan(size_t{block} * kBlock, kBlock);
    return std::ranges::equal(there, serve::BlockOf(version, block));
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

TEST_CASE(
    "An origin announces the newest version at once, and every newer one; one that is withdrawn with the reason") {
  Host host;
  Watcher watcher(*host.origin);
  const Head first = watcher.Await([](const Head& head) { return head.held.version == 1; });
  CHECK(first.held.run == host.run->run());
  CHECK(first.digest == host.Digest(1));
  CHECK(first.layout == host.layout->digest());
  CHECK(first.committed_unix_ns == 1);
  CHECK(first.withdrawn.empty());
  host.Publish(2);
  CHECK(watcher.Await([](const Head& head) { return head.held.version == 2; }).digest == host.Digest(2));
  host.catalog.Retract(host.run, 2, {ErrorCode::kCorrupt, "a bit has flipped"});
  const Head withdrawn = watcher.Await([](const Head& head) { return !head.withdrawn.empty(); });
  CHECK(withdrawn.held.nothing());
  CHECK_THAT(withdrawn.withdrawn, Catch::Contains("a bit has flipped"));
  CHECK_THAT(host.origin->Open(host.Holding(1), {}), FailsWith(ErrorCode::kCorrupt, "a bit has flipped"));
  CHECK(watcher.Stop().code() == ErrorCode::kCancelled);
}

TEST_CASE("A layout is the model's, and a model that nobody has opened has none") {
  Host host;
  const Result<Layout> layout = host.origin->GetLayout({});
  REQUIRE(layout.ok());
  CHECK((*layout)->digest() == host.layout->digest());
  CHECK(host.Of("nobody")->GetLayout({}).status().code() == ErrorCode::kNotFound);
}

TEST_CASE("Who holds nothing gets every block, with the hashes that the version's digest names") {
  Host host;
  const auto pull = host.Open(0);
  CHECK(pull->plan().mode() == "full");
  CHECK(pull->plan().target == Held{host.run->run(), 1});
  CHECK(pull->plan().target_digest == host.Digest(1));
  Memory memory(*host.layout);
  REQUIRE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  for (BlockIndex block = 0; block < kBlocks; ++block) CHECK(memory.Holds(1, block));
  CHECK(model::ComputeManifestDigest(host.layout->digest(), memory.staging.hashes()) == host.Digest(1));
  CHECK(pull->counters().payload_bytes == uint64_t{kBlocks} * kBlock);
  CHECK(pull->counters().live_bytes == 0);
  CHECK(pull->counters().retries == 0);
  CHECK((pull->counters().local_bytes > 0) == (host.kind == Kind::kAgentByMemory));
  pull->Close({host.run->run(), 1}, OkStatus());
  CHECK(host.pulls.open_pulls("actor") == 0);
}

TEST_CASE("No other blocks come than those asked for, wherever they lie, and none where none is asked for") {
  Host host;
  const auto pull = host.Open(0);
  Memory memory(*host.layout);
  REQUIRE(pull->FetchBlocks({{}, 1, false}, memory.staging).ok());
  DeltaStaging no_steps(*host.layout, host.run->run(), {});
  REQUIRE(pull->FetchDeltas(no_steps).ok());
  CHECK(pull->counters().payload_bytes == 0);
  const std::vector<BlockIndex> some{0, 3, 4, 5, 17, kBlocks - 1};
  REQUIRE(pull->FetchBlocks({some, 1, true}, memory.staging).ok());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    const bool asked = std::ranges::find(some, block) != some.end();
    CHECK(memory.staging.versions()[block] == (asked ? 1 : 0));
    CHECK(memory.Holds(1, block) == asked);
  }
  CHECK(pull->counters().payload_bytes == some.size() * kBlock);
}

TEST_CASE("Who holds a version gets the deltas from there on, and who holds the newest nothing") {
  Host host;
  host.Publish(2);
  host.Publish(3);
  const auto pull = host.Open(1);
  CHECK(pull->plan().mode() == "chain");
  CHECK(pull->plan().base == Held{host.run->run(), 1});
  CHECK(pull->plan().target == Held{host.run->run(), 3});
  DeltaStaging staging(*host.layout, host.run->run(), pull->plan().steps);
  REQUIRE(pull->FetchDeltas(staging).ok());
  const auto chain = staging.Assemble(host.Digest(1), 0);
  INFO(chain.status().ToString());
  REQUIRE(chain.ok());
  REQUIRE(chain->size() == 2);
  uint64_t bytes = 0;
  for (const auto& step : *chain) {
    bytes += step->header().data_bytes;
    CHECK(step->entries().size() == kBlocks / 2);
    const Version base = step->base().version;
    const auto& made = *host.run->deltas().RouteFrom(base, base + 1, host.layout->data_bytes())[0];
    for (size_t i = 0; i < step->entries().size(); ++i) {
      const payload::PayloadEntry& entry = step->entries()[i];
      CHECK(entry.target_hash == host.ManifestOf(base + 1)->block_hashes[entry.block]);
      CHECK(entry.block == made.entries()[i].block);
      CHECK(std::ranges::equal(step->data(entry), made.data(made.entries()[i])));
    }
  }
  CHECK(pull->counters().payload_bytes == bytes);
  CHECK(host.Open(2)->plan().mode() == "delta");
  CHECK(host.Open(3)->plan().mode() == "up_to_date");
}

TEST_CASE("A delta that is not to be had is an error that leaves the pull in use") {
  Host host;
  host.Publish(2);
  const auto pull = host.Open(1);
  std::vector<pull::DeltaStep> unknown = pull->plan().steps;
  unknown[0].payload_id += 100;
  DeltaStaging missing(*host.layout, host.run->run(), unknown);
  CHECK(pull->FetchDeltas(missing).code() == ErrorCode::kNotFound);
  CHECK_FALSE(missing.Assemble(host.Digest(1), 0).ok());
  DeltaStaging staging(*host.layout, host.run->run(), pull->plan().steps);
  REQUIRE(pull->FetchDeltas(staging).ok());
  CHECK(staging.Assemble(host.Digest(1), 0).ok());
}

TEST_CASE("Other bytes under the number that is held are no base, nor is a version whose deltas are gone") {
  Host host(1);  // byte of deltas
  host.Publish(2);
  host.Publish(3);
  host.Publish(4);
  CHECK(host.Open(1)->plan().mode() == "full");
  Want other = host.Holding(4);
  other.digest = host.Digest(3);
  CHECK((*host.origin->Open(other, {}))->plan().mode() == "full");
  other = host.Holding(4);
  other.whole = true;
  CHECK((*host.origin->Open(other, {}))->plan().mode() == "full");
}

TEST_CASE("A pull for another layout than the model's is refused as one") {
  Host host;
  Want want = host.Holding(0);
  want.layout = store::LayoutOf(kBlock);
  CHECK_THAT(host.origin->Open(want, {}), FailsWith(ErrorCode::kState, "layout"));
}

TEST_CASE("Bytes that are damaged on their way never count, and the others do") {
  Host host;
  auto damaging = std::make_shared<Blocks>();
  const auto run = std::make_shared<store::ServedRun>(
      "actor", RandomId<RunId>(), host.layout, damaging,
      store::StoreOptions{.directory = host.deltas.path(), .retain_bytes = host.retain_bytes});
  host.catalog.Open(run);
  auto manifest = *host.ManifestOf(1);
  manifest.held = {run->run(), 1};
  REQUIRE(host.catalog.Publish(run, {std::make_shared<const model::Manifest>(manifest), 1, ""}).ok());
  damaging->damaged = 7;
  serve::MadeUpBlocks::DataOf(damaging->MemoryOf(1), 7)[0] ^= std::byte{1};
  const auto pull = host.Open(0);
  Memory memory(*host.layout);
  CHECK_FALSE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  const std::vector<BlockIndex> missing = memory.staging.Missing();
  CHECK(std::ranges::find(missing, 7) != missing.end());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    if (std::ranges::find(missing, block) == missing.end()) CHECK(memory.Holds(1, block));
  }
}

TEST_CASE("A version that is overtaken while it is pulled comes as a newer one, and all blocks come to one") {
  Host host;
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
    CHECK(memory.Holds(memory.staging.versions()[block], block));
  }
  const Result<Plan> plan = pull->CatchUp(memory.staging.versions());
  REQUIRE(plan.ok());
  CHECK(plan->full);
  CHECK(plan->target == Held{host.run->run(), 2});
  CHECK(plan->target_digest == host.Digest(2));
  REQUIRE(plan->steps.size() == 1);
  DeltaStaging deltas(*host.layout, host.run->run(), plan->steps);
  CHECK(pull->FetchDeltas(deltas).ok());
}

TEST_CASE("A version that is withdrawn while it is pulled is not to be had, nor caught up with") {
  Host host;
  const auto pull = host.Open(0);
  host.catalog.Retract(host.run, 1, {ErrorCode::kCorrupt, "a bit has flipped"});
  Memory memory(*host.layout);
  CHECK_FALSE(pull->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  CHECK(memory.staging.Missing().size() == kBlocks);
  CHECK_FALSE(pull->CatchUp(std::vector<Version>(kBlocks, 1)).ok());
  pull->Close({}, {ErrorCode::kCorrupt, "withdrawn"});
  CHECK(host.pulls.open_pulls("actor") == 0);
}

TEST_CASE("A stop ends every call, before and while it is made, and a pull is closed all the same") {
  Host host;
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
  CHECK(full->CatchUp(std::vector<Version>(kBlocks, 1)).status().code() == ErrorCode::kCancelled);
  DeltaStaging staging(*host.layout, host.run->run(), delta->plan().steps);
  CHECK(delta->FetchDeltas(staging).code() == ErrorCode::kCancelled);
  CHECK(host.origin->GetLayout(stop.get_token()).status().code() == ErrorCode::kCancelled);
  CHECK(host.origin->Open(host.Holding(0), stop.get_token()).status().code() == ErrorCode::kCancelled);
  CHECK(host.origin->Report({}, stop.get_token()).status().code() == ErrorCode::kCancelled);
  CHECK(host.origin->Watch(stop.get_token(), [](const Head&) {}).code() == ErrorCode::kCancelled);
  host.origin->Follow(host.Holding(1), stop.get_token());  // waits for nothing
  for (const auto& pull : {full.get(), delta.get()}) pull->Close({}, {ErrorCode::kCancelled, "stopped"});
  CHECK(host.pulls.open_pulls("actor") == 0);
  CHECK(host.Open(0)->plan().full);  // what was stopped stops nothing else
}

TEST_CASE("What follows a version that is held comes early where the origin can, and otherwise as any delta") {
  Host host;
  REQUIRE(host.origin->can().follow);
  const auto first = host.Open(0);
  Memory memory(*host.layout);
  REQUIRE(first->FetchBlocks({host.layout->AllBlocks(), 1, false}, memory.staging).ok());
  const Held held{host.run->run(), 1};
  first->Close(held, OkStatus());
  for (const bool followed : {true, false}) {
    host.run->live().SetNewest(followed ? 1 : 2);
    const Version base = followed ? 1 : 2;
    host.origin->Follow(followed ? host.Holding(base) : Want(), {});
    const bool early = followed && host.kind != Kind::kAgentByMemory;
    CHECK(Eventually([&] { return host.run->live().followed() == early; }));  // its lanes may be slow to end
    host.Publish(base + 1);
    const auto pull = host.Open(base);
    if (early) {
      const auto live = host.run->live().Begin(base, base + 1);
      const auto& payload = *host.run->deltas().RouteFrom(base, base + 1, host.layout->data_bytes())[0];
      for (const payload::PayloadEntry& entry : payload.entries()) {
        const ByteView data = payload.data(entry);
        live->Add(
            std::make_shared<payload::DeltaBlock>(payload::DeltaBlock{.block = entry.block,
                                                                      .codec = static_cast<payload::Codec>(entry.codec),
                                                                      .changes = entry.changes,
                                                                      .target_hash = entry.target_hash,
                                                                      .data_hash = entry.data_hash,
                                                                      .data = {data.begin(), data.end()}}));
      }
      live->Seal();
    }
    DeltaStaging staging(*host.layout, held.run, pull->plan().steps);
    const Status fetched = pull->FetchDeltas(staging);
    INFO(fetched.ToString());
    REQUIRE(fetched.ok());
    CHECK(staging.Assemble(host.Digest(base), 0).ok());
    CHECK((pull->counters().live_bytes > 0) == early);
    CHECK(pull->counters().payload_bytes == pull->plan().steps[0].data_bytes);
    pull->Close({held.run, base + 1}, OkStatus());
  }
}

TEST_CASE("A report arrives, and is answered why no version will come") {
  Host host;
  REQUIRE(host.origin->can().report);
  v1::ReportRequest report;
  report.mutable_held()->set_run(ToBytes(host.run->run()));
  report.mutable_held()->set_version(1);
  report.set_last_error("ill");
  CHECK(host.origin->Report(report, {})->empty());
  const auto known = host.pulls.reports().Of("actor");
  REQUIRE(known.size() == 1);
  CHECK(known[0].held == Held{host.run->run(), 1});
  CHECK(known[0].last_error == "ill");
  CHECK_THAT(*host.Of("acto")->Report({}, {}),
             Catch::Contains(host.origin->name()) && Catch::EndsWith(" has no acto; it has actor"));
}

}  // namespace
}  // namespace lockstep::origin
