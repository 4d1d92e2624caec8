// The receiver's end of the local path, against the agent's real one and against false ones.
#include "raas_receiver/pull/local_source.h"

#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/status_testing.h"
#include "common/os/unix_server.h"
#include "trainer_agent/serve/local_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::pull {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForEver = std::chrono::minutes(1);

std::vector<BlockIndex> AllBlocks() {
  std::vector<BlockIndex> blocks(serve::kBlocks);
  for (BlockIndex block = 0; block < serve::kBlocks; ++block) blocks[block] = block;
  return blocks;
}

// Keeps blocks, and of which version each was said to be; 0: it did not come.
struct KeptBlocks : BlockSink {
  Bytes memory = Bytes(serve::kBlocks * serve::kBlock);
  std::vector<Version> versions = std::vector<Version>(serve::kBlocks);
  std::function<void(BlockIndex)> before_copy = [](BlockIndex) {};

  std::span<std::byte> Destination(const wire::FrameHeader& frame) override {
    before_copy(frame.block);
    return std::span(memory).subspan(frame.block * serve::kBlock, serve::kBlock);
  }
  Status Put(const wire::FrameHeader& frame, ByteView payload) override {
    if (model::BlockHash(payload) != frame.block_hash) return {ErrorCode::kInternal, "not what its hash says"};
    versions[frame.block] = frame.version;
    return OkStatus();
  }
  Bytes block(BlockIndex block) const {
    return {memory.begin() + block * serve::kBlock, memory.begin() + (block + 1) * serve::kBlock};
  }
  std::vector<BlockIndex> missing() const {
    std::vector<BlockIndex> missing;
    for (BlockIndex block = 0; block < serve::kBlocks; ++block) {
      if (versions[block] == 0) missing.push_back(block);
    }
    return missing;
  }
};

// Keeps the entries of deltas, however they came.
struct KeptDeltas : DeltaSink {
  std::mutex mutex;
  std::map<uint64_t, std::map<BlockIndex, Bytes>> entries;  // by payload
  Status payload_answer;                                    // what PutPayload returns

  Status PutEntry(uint64_t payload_id, payload::DeltaBlock entry) override {
    std::lock_guard lock(mutex);
    const bool first = entries[payload_id].emplace(entry.block, std::move(entry.data)).second;
    return first ? OkStatus() : Status(ErrorCode::kInternal, "an entry came twice");
  }
  Status PutPayload(uint64_t payload_id, std::shared_ptr<const payload::Payload> payload) override {
    if (payload_answer.ok()) entries[payload_id] = EntriesOf(*payload);
    return payload_answer;
  }
  static std::map<BlockIndex, Bytes> EntriesOf(const payload::Payload& payload) {
    std::map<BlockIndex, Bytes> entries;
    for (const payload::PayloadEntry& entry : payload.entries()) {
      const ByteView data = payload.data(entry);
      entries[entry.block] = Bytes(data.begin(), data.end());
    }
    return entries;
  }
};

// An agent that serves one run by both ways, and sources that are connected to it.
struct SourceHost : serve::Served {
  os::TempDir dir;
  std::unique_ptr<os::UnixServer> local_server = *serve::StartLocalServer({.path = dir.File("pull.sock")}, &pulls);

  // The plan of a receiver that holds version `held`; 0: nothing.
  serve::PullPlan Open(Version held = 0) { return *pulls.Open(Request(held)); }

  LocalOptions Options(const serve::PullPlan& plan) const {
    return {.path = dir.File("pull.sock"),
            .pull_id = plan.pull_id,
            .ticket = plan.local_ticket,
            .layout = layout,
            .connect_timeout = std::chrono::minutes(1),
            .answer_timeout = std::chrono::minutes(1)};
  }
  std::unique_ptr<LocalSource> Connect(const serve::PullPlan& plan) {
    auto source = LocalSource::Connect(Options(plan), pool);
    INFO(source.status().ToString());
    REQUIRE(source.ok());
    return *std::move(source);
  }
  static std::vector<DeltaStep> StepsOf(const serve::PullPlan& plan) {
    std::vector<DeltaStep> steps;
    for (const serve::PlannedStep& step : plan.steps) {
      const payload::PayloadHeader& header = step.payload->header();
      steps.push_back({.payload_id = step.payload_id,
                       .base = header.base,
                       .target = header.target,
                       .target_digest = header.target_digest,
                       .entries = header.entries,
                       .data_bytes = header.data_bytes});
    }
    return steps;
  }
  void Overwrite(Version version, BlockIndex block) { std::memset(&ByteOf(version, block), 0xee, serve::kBlock); }
};

TEST_CASE("Blocks that the trainer has overwritten are not taken for what they were") {
  SourceHost host;
  const auto source = host.Connect(host.Open());
  for (const BlockIndex block : {3, 17}) host.Overwrite(1, block);
  KeptBlocks kept;
  CHECK(source->FetchBlocks({AllBlocks(), 1, false}, kept).code() == ErrorCode::kState);
  CHECK(kept.missing() == std::vector<BlockIndex>{3, 17});
  CHECK(kept.versions[4] == 1);
  CHECK(source->counters().local_bytes == (serve::kBlocks - 2) * serve::kBlock);
}

TEST_CASE("What the trainer overtakes is copied from the newer version, but not when the version is exact") {
  SourceHost host;
  const auto source = host.Connect(host.Open());
  const auto other = host.Connect(host.Open());
  KeptBlocks kept;
  std::once_flag overtaken;  // the other threads wait until it has happened
  kept.before_copy = [&](BlockIndex) {
    std::call_once(overtaken, [&] {
      for (BlockIndex block = 20; block < serve::kBlocks; ++block) host.Overwrite(1, block);
      host.Publish(2);
    });
  };
  CHECK(source->FetchBlocks({AllBlocks(), 1, false}, kept).ok());
  for (BlockIndex block = 0; block < serve::kBlocks; ++block) {
    CHECK(kept.block(block) == serve::BlockOf(kept.versions[block], block));
  }
  CHECK(kept.versions[0] == 1);
  CHECK(kept.versions[serve::kBlocks - 1] == 2);
  KeptBlocks exact;
  CHECK(other->FetchBlocks({AllBlocks(), 1, true}, exact).code() == ErrorCode::kState);
  CHECK(exact.missing().size() == serve::kBlocks - 20);
  CHECK(exact.missing().front() == 20);
  CHECK(exact.versions[0] == 1);
}

TEST_CASE("A version newer than any, or gone, gives no block and leaves the source in use") {
  SourceHost host;
  const auto source = host.Connect(host.Open());
  KeptBlocks kept;
  CHECK(source->FetchBlocks({AllBlocks(), 5, false}, kept).code() == ErrorCode::kState);
  CHECK(source->FetchBlocks({AllBlocks(), 5, true}, kept).code() == ErrorCode::kState);
  CHECK(kept.missing().size() == serve::kBlocks);
  CHECK(source->status().ok());
  CHECK(source->FetchBlocks({{7}, 1, true}, kept).ok());
}

TEST_CASE("A payload of another size, a damaged file and one outside the plan are refused") {
  SourceHost host;
  host.Publish(2);
  const serve::PullPlan plan = host.Open(1);
  const auto source = host.Connect(plan);
  const payload::Payload& payload = *plan.steps.at(0).payload;
  const DeltaRequest request{.run = host.run->run(), .steps = SourceHost::StepsOf(plan)};
  KeptDeltas kept;
  DeltaRequest other = request;
  ++other.steps[0].data_bytes;
  CHECK(source->FetchDeltas(other, kept).code() == ErrorCode::kProtocol);
  kept.payload_answer = {ErrorCode::kProtocol, "not planned"};
  CHECK(source->FetchDeltas(request, kept).code() == ErrorCode::kProtocol);
  kept.payload_answer = OkStatus();

  const std::string file = host.deltas.File("1-2.delta");
  REQUIRE(::truncate(file.c_str(), static_cast<off_t>(payload.total_bytes() - 1)) == 0);
  REQUIRE(::truncate(file.c_str(), static_cast<off_t>(payload.total_bytes())) == 0);
  CHECK(source->FetchDeltas(request, kept).code() == ErrorCode::kCorrupt);
  CHECK(kept.entries.empty());
  CHECK(source->status().ok());
}

TEST_CASE("A path that is no socket of ours or root's is not connected to") {
  SourceHost host;
  const serve::PullPlan plan = host.Open();
  const os::TempDir directory;
  const std::string path = directory.File("other.sock");
  std::atomic<int> connections = 0;
  const auto stranger = *os::UnixServer::Start(
      {.path = path}, [&](os::UnixServer&, os::UnixConnection&) { ++connections; }, [](const Status&) {});
  const auto connect = [&](const std::string& to) {
    return LocalSource::Connect(
        {.path = to, .pull_id = plan.pull_id, .ticket = plan.local_ticket, .layout = serve::Layout(), .on_failed = {}},
        host.pool);
  };
  std::filesystem::create_symlink(path, directory.File("link.sock"));
  CHECK_THAT(connect(directory.File("link.sock")), FailsWith(ErrorCode::kPermission, "link.sock is no socket"));
  if (::geteuid() == 0) {
    REQUIRE(::lchown(path.c_str(), 12'345, 12'345) == 0);
    CHECK_THAT(connect(path), FailsWith(ErrorCode::kPermission, "is of uid 12345"));
  }
  CHECK(connections == 0);
}

TEST_CASE("No agent at the path and a wrong ticket are errors at once") {
  SourceHost host;
  const serve::PullPlan plan = host.Open();
  LocalOptions nowhere = host.Options(plan);
  nowhere.path = host.dir.File("nobody.sock");
  CHECK(LocalSource::Connect(nowhere, host.pool).status().code() == ErrorCode::kUnavailable);
  LocalOptions stranger = host.Options(plan);
  stranger.ticket = RandomId<Ticket>();
  CHECK(LocalSource::Connect(stranger, host.pool).status().code() == ErrorCode::kPermission);
}

// An agent that lets every peer in and answers the first request as the test says.
struct FalseAgent {
  using Answer = std::function<void(os::UnixConnection& connection)>;

  os::TempDir dir;
  std::shared_ptr<const model::ModelLayout> layout = serve::Layout();
  WorkerPool pool{1};
  LocalOptions options{.path = dir.File("pull.sock"),
                       .pull_id = 1,
                       .layout = layout,
                       .connect_timeout = kForEver,
                       .answer_timeout = kForEver,
                       .on_failed = [this](const Status& why) { failures.push_back(why.code()); }};
  std::vector<ErrorCode> failures;  // as reported by on_failed
  std::unique_ptr<os::UnixServer> server;

  std::unique_ptr<LocalSource> Connect(Answer answer) {
    server.reset();
    server = *os::UnixServer::Start(
        {.path = options.path},
        [answer = std::move(answer)](os::UnixServer&, os::UnixConnection& connection) {
          wire::LaneHello hello;
          (void)connection.Receive(std::as_writable_bytes(std::span(&hello, 1)), nullptr, kForEver);
          wire::LaneWelcome welcome;
          wire::Seal(welcome);
          (void)connection.Send(AsBytes(welcome), {}, kForEver);
          wire::LocalRequest request;
          (void)connection.Receive(std::as_writable_bytes(std::span(&request, 1)), nullptr, kForEver);
          answer(connection);
        },
        [](const Status&) {});
    auto source = LocalSource::Connect(options, pool);
    REQUIRE(source.ok());
    return *std::move(source);
  }

  // Of a source that wanted every block of it.
  Status StatusAfterCopy(Answer answer) {
    failures.clear();
    auto source = Connect(std::move(answer));
    KeptBlocks kept;
    const Status first = source->FetchBlocks({AllBlocks(), 1, false}, kept);
    CHECK_THAT(first, FailsWith(source->status().code(), source->status().message()));
    CHECK_THAT(source->FetchBlocks({{0}, 1, true}, kept), FailsWith(first.code(), first.message()));
    CHECK(kept.missing().size() == serve::kBlocks);
    CHECK(failures == std::vector<ErrorCode>{first.code()});
    source.reset();
    server.reset();  // `answer` has what is its caller's
    return first;
  }
};

void SendAnswer(os::UnixConnection& connection, wire::LocalAnswer head, ByteView tail, std::span<const int> files) {
  wire::Seal(head);
  (void)connection.Send(AsBytes(head), files, kForEver);
  (void)connection.Send(tail, {}, kForEver);
}

TEST_CASE("During a long copy the agent is shown from time to time that it runs") {
  const Bytes hashes(serve::kBlocks * 8);
  const os::MappedSegment slot = *os::CreateMemfdSegment("slot", serve::kBlocks * serve::kBlock);
  const int file = slot.fd();
  std::atomic<int> shown = -1;
  FalseAgent agent;
  agent.options.alive_interval = milliseconds(0);
  const auto source = agent.Connect([&](os::UnixConnection& to) {
    SendAnswer(to, {.version = 1, .data_bytes = serve::kBlocks * serve::kBlock, .tail_bytes = hashes.size()}, hashes,
               {&file, 1});
    wire::LocalRequest next;
    if (!to.Receive(std::as_writable_bytes(std::span(&next, 1)), nullptr, kForEver).ok()) return;
    shown = wire::CheckLocalRequest(next).ok() ? next.kind : -2;
    SendAnswer(to, {}, {}, {});
  });
  KeptBlocks kept;
  CHECK_THAT(source->FetchBlocks({AllBlocks(), 1, true}, kept),
             FailsWith(ErrorCode::kUnavailable, agent.options.path));  // no block has the hash 0
  CHECK(shown == static_cast<int>(wire::LocalKind::kAlive));
}

TEST_CASE("A false agent, one that hangs and one that passes what is no file cost the local path and nothing else") {
  FalseAgent agent;
  const Bytes hashes(serve::kBlocks * 8);
  const wire::LocalAnswer good{.version = 1, .data_bytes = serve::kBlocks * serve::kBlock, .tail_bytes = hashes.size()};
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const os::UniqueFd reading(pipe_ends[0]), writing(pipe_ends[1]);
  const os::MappedSegment small = *os::CreateMemfdSegment("small", 100);
  const int file = small.fd(), pipe = reading.get();

  const auto sends = [&](const wire::LocalAnswer& answer, std::span<const int> files) {
    return agent.StatusAfterCopy([&](os::UnixConnection& to) { SendAnswer(to, answer, hashes, files); });
  };
  CHECK_THAT(sends(good, {&pipe, 1}), FailsWith(ErrorCode::kProtocol, "1 descriptors came with it, and one of a file"));
  CHECK_THAT(sends(good, {}), FailsWith(ErrorCode::kProtocol, "0 descriptors came with it, and one of a file"));
  wire::LocalAnswer other = good;
  other.data_bytes -= 1;
  CHECK_THAT(sends(other, {&file, 1}), FailsWith(ErrorCode::kProtocol, "is not of this model"));
  other = good;
  other.tail_bytes = uint64_t{1} << 60;
  CHECK_THAT(sends(other, {&file, 1}), FailsWith(ErrorCode::kProtocol, "a tail of 1152921504606846976 bytes"));
  other = good;
  other.offset = ~uint64_t{0} - 1;
  // Nothing can be read there, and the file ends too early: the blocks are asked for again, of an agent that has gone.
  const std::string& path = agent.options.path;
  CHECK_THAT(sends(other, {&file, 1}), FailsWith(ErrorCode::kUnavailable, path));
  CHECK_THAT(sends(good, {&file, 1}), FailsWith(ErrorCode::kUnavailable, path));
  const auto nonsense = [](os::UnixConnection& to) { (void)to.Send(Bytes(500, std::byte{7}), {}, kForEver); };
  CHECK_THAT(agent.StatusAfterCopy(nonsense),
             FailsWith(ErrorCode::kProtocol, path, "it does not start with our magic"));
  agent.options.answer_timeout = milliseconds(1'000);  // of the welcome too, which comes
  const auto silence = [](os::UnixConnection& to) {
    std::byte byte;
    (void)to.Receive({&byte, 1}, nullptr, kForEver);
  };
  CHECK_THAT(agent.StatusAfterCopy(silence), FailsWith(ErrorCode::kDeadline, path, "did not answer in time"));
}

}  // namespace
}  // namespace lockstep::pull
