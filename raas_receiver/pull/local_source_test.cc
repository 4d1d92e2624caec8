// The receiver's end of the local path, against the agent's real one and against agents that lie.
#include "raas_receiver/pull/local_source.h"

#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/os/unix_server.h"
#include "trainer_agent/serve/local_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

std::vector<BlockIndex> AllBlocks() {
  std::vector<BlockIndex> blocks(kBlocks);
  for (BlockIndex block = 0; block < kBlocks; ++block) blocks[block] = block;
  return blocks;
}

// Keeps what comes, and of which version it was said to be.
struct Kept : BlockSink {
  Bytes memory = Bytes(kBlocks * kBlock);
  std::vector<Version> versions = std::vector<Version>(kBlocks);
  std::function<void(BlockIndex)> before_copy = [](BlockIndex) {};

  std::span<std::byte> Destination(const FrameHeader& frame) override {
    before_copy(frame.block);
    return std::span(memory).subspan(frame.block * kBlock, kBlock);
  }
  Status Put(const FrameHeader& frame, ByteView payload) override {
    if (BlockHash(payload) != frame.block_hash) return {ErrorCode::kInternal, "not what its hash says"};
    versions[frame.block] = frame.version;
    return OkStatus();
  }
  Bytes block(BlockIndex block) const {
    return {memory.begin() + block * kBlock, memory.begin() + (block + 1) * kBlock};
  }
};

// A served run, and a source that is connected to it.
struct Host : Served {
  TempDir dir;
  std::unique_ptr<LocalServer> server = *LocalServer::Start({.path = dir.File("pull.sock")}, &pulls);

  LocalOptions Options(const PullPlan& plan) const {
    return {.path = dir.File("pull.sock"), .pull_id = plan.pull_id, .ticket = plan.local_ticket, .layout = layout};
  }
  std::unique_ptr<LocalSource> Connect(const PullPlan& plan) {
    auto source = LocalSource::Connect(Options(plan), pool);
    INFO(source.status().ToString());
    REQUIRE(source.ok());
    return *std::move(source);
  }
  void Overwrite(Version version, BlockIndex block) {
    std::memset(MadeUpBlocks::DataOf(blocks->MemoryOf(version), block), 0xee, kBlock);
  }
};

TEST_CASE("Every block is copied out of the agent's memory, and counted") {
  Host host;
  const auto source = host.Connect(*host.pulls.Open(host.Request()));
  Kept kept;
  CHECK(source->CopyBlocks(AllBlocks(), 1, false, kept).empty());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    CHECK(kept.block(block) == BlockOf(1, block));
    CHECK(kept.versions[block] == 1);
  }
  CHECK(source->copied_bytes() == kBlocks * kBlock);
}

TEST_CASE("Blocks that the trainer has overwritten are not taken for what they were") {
  Host host;
  const auto source = host.Connect(*host.pulls.Open(host.Request()));
  for (const BlockIndex block : {3, 17}) host.Overwrite(1, block);
  Kept kept;
  CHECK(source->CopyBlocks(AllBlocks(), 1, false, kept) == std::vector<BlockIndex>{3, 17});
  CHECK(kept.versions[3] == 0);
  CHECK(kept.versions[4] == 1);
  CHECK(source->copied_bytes() == (kBlocks - 2) * kBlock);
}

TEST_CASE("What the trainer overtakes is copied from the newer version, but not when the version is exact") {
  Host host;
  const auto source = host.Connect(*host.pulls.Open(host.Request()));
  const auto other = host.Connect(*host.pulls.Open(host.Request()));
  Kept kept;
  std::once_flag overtaken;  // the other threads wait until it has happened
  kept.before_copy = [&](BlockIndex) {
    std::call_once(overtaken, [&] {
      for (BlockIndex block = 20; block < kBlocks; ++block) host.Overwrite(1, block);
      host.Publish(2);
    });
  };
  CHECK(source->CopyBlocks(AllBlocks(), 1, false, kept).empty());
  for (BlockIndex block = 0; block < kBlocks; ++block) {
    CHECK(kept.block(block) == BlockOf(kept.versions[block], block));
  }
  CHECK(kept.versions[0] == 1);
  CHECK(kept.versions[kBlocks - 1] == 2);
  Kept exact;
  const auto missed = other->CopyBlocks(AllBlocks(), 1, true, exact);
  CHECK(missed.size() == kBlocks - 20);
  CHECK(missed.front() == 20);
  CHECK(exact.versions[0] == 1);
}

TEST_CASE("A version that is gone, or older than wanted, gives no block and leaves the source in use") {
  Host host;
  const auto source = host.Connect(*host.pulls.Open(host.Request()));
  Kept kept;
  CHECK(source->CopyBlocks(AllBlocks(), 5, false, kept).size() == kBlocks);
  CHECK(source->CopyBlocks(AllBlocks(), 5, true, kept).size() == kBlocks);
  CHECK(source->status().ok());
  CHECK(source->CopyBlocks({7}, 1, true, kept).empty());
}

TEST_CASE("A delta is read whole with its hashes checked; a damaged file and another size are refused") {
  Host host;
  host.Publish(2);
  const auto plan = *host.pulls.Open(host.Request(1));
  const auto source = host.Connect(plan);
  const Payload& payload = *plan.steps.at(0).payload;
  const uint64_t id = plan.steps[0].payload_id;
  const auto read = source->ReadPayload(id, payload.total_bytes());
  REQUIRE(read.ok());
  CHECK(std::equal((*read)->bytes().begin(), (*read)->bytes().end(), payload.bytes().begin()));
  CHECK(source->copied_bytes() == payload.header().data_bytes);
  CHECK(source->ReadPayload(id, payload.total_bytes() + 1).status().code() == ErrorCode::kProtocol);
  CHECK(source->ReadPayload(id + 1, payload.total_bytes()).status().code() == ErrorCode::kNotFound);

  const std::string file = host.deltas.File("1-2.delta");
  REQUIRE(::truncate(file.c_str(), static_cast<off_t>(payload.total_bytes() - 1)) == 0);
  REQUIRE(::truncate(file.c_str(), static_cast<off_t>(payload.total_bytes())) == 0);
  CHECK(source->ReadPayload(id, payload.total_bytes()).status().code() == ErrorCode::kCorrupt);
  CHECK(source->status().ok());
}

TEST_CASE("Nobody at the path, a wrong ticket and a cancelled source are errors at once") {
  Host host;
  const auto plan = *host.pulls.Open(host.Request());
  LocalOptions nowhere = host.Options(plan);
  nowhere.path = host.dir.File("nobody.sock");
  CHECK(LocalSource::Connect(nowhere, host.pool).status().code() == ErrorCode::kUnavailable);
  LocalOptions stranger = host.Options(plan);
  stranger.ticket = RandomId<Ticket>();
  CHECK(LocalSource::Connect(stranger, host.pool).status().code() == ErrorCode::kPermission);
  const auto source = host.Connect(plan);
  source->Cancel();
  Kept kept;
  CHECK(source->CopyBlocks(AllBlocks(), 1, false, kept).size() == kBlocks);
}

// An agent that lets everybody in and answers the first request as the test says.
struct Liar {
  using Answer = std::function<void(UnixConnection& connection)>;

  TempDir dir;
  std::shared_ptr<const ModelLayout> layout = Layout();
  WorkerPool pool{1};
  std::unique_ptr<UnixServer> server;

  std::unique_ptr<LocalSource> Connect(Answer answer, milliseconds alive_interval = milliseconds(10'000)) {
    server.reset();
    server = *UnixServer::Start(
        {.path = dir.File("pull.sock")},
        [answer = std::move(answer)](UnixConnection& connection) {
          LaneHello hello;
          (void)connection.Receive(std::as_writable_bytes(std::span(&hello, 1)), nullptr, milliseconds(5'000));
          LaneWelcome welcome;
          Seal(welcome);
          (void)connection.Send(AsBytes(welcome), {}, milliseconds(5'000));
          LocalRequest request;
          (void)connection.Receive(std::as_writable_bytes(std::span(&request, 1)), nullptr, milliseconds(5'000));
          answer(connection);
        },
        [](const Status&) {});
    auto source = LocalSource::Connect({.path = dir.File("pull.sock"),
                                        .pull_id = 1,
                                        .layout = layout,
                                        .answer_timeout = milliseconds(300),
                                        .alive_interval = alive_interval},
                                       pool);
    REQUIRE(source.ok());
    return *std::move(source);
  }

  // Of a source that wanted every block of it.
  ErrorCode CodeAfterCopy(Answer answer) {
    auto source = Connect(std::move(answer));
    Kept kept;
    CHECK(source->CopyBlocks(AllBlocks(), 1, false, kept).size() == kBlocks);
    CHECK(source->CopyBlocks({0}, 1, true, kept).size() == 1);
    const ErrorCode code = source->status().code();
    source.reset();
    server.reset();  // `answer` has what is its caller's
    return code;
  }
};

void SendAnswer(UnixConnection& connection, LocalAnswer head, ByteView tail, std::span<const int> files) {
  Seal(head);
  (void)connection.Send(AsBytes(head), files, milliseconds(5'000));
  (void)connection.Send(tail, {}, milliseconds(5'000));
}

TEST_CASE("During a long copy the agent hears from time to time that it goes on") {
  const Bytes hashes(kBlocks * 8);
  const MappedSegment half = *CreateMemfdSegment("half", kBlocks * kBlock);
  const int file = half.fd();
  std::atomic<int> heard = -1;
  Liar liar;
  const auto source = liar.Connect(
      [&](UnixConnection& to) {
        SendAnswer(to, {.version = 1, .data_bytes = kBlocks * kBlock, .tail_bytes = hashes.size()}, hashes, {&file, 1});
        LocalRequest next;
        if (!to.Receive(std::as_writable_bytes(std::span(&next, 1)), nullptr, milliseconds(5'000)).ok()) return;
        heard = CheckLocalRequest(next).ok() ? next.kind : -2;
        SendAnswer(to, {}, {}, {});
      },
      milliseconds(0));
  Kept kept;
  CHECK(source->CopyBlocks(AllBlocks(), 1, true, kept).size() == kBlocks);  // no block has the hash 0
  CHECK(heard == static_cast<int>(LocalKind::kAlive));
}

TEST_CASE("An agent that lies, hangs or passes what is no file costs the local path and nothing else") {
  Liar liar;
  const Bytes hashes(kBlocks * 8);
  const LocalAnswer good{.version = 1, .data_bytes = kBlocks * kBlock, .tail_bytes = hashes.size()};
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const UniqueFd reading(pipe_ends[0]), writing(pipe_ends[1]);
  const MappedSegment small = *CreateMemfdSegment("small", 100);
  const int file = small.fd(), pipe = reading.get();

  const auto sends = [&](const LocalAnswer& answer, std::span<const int> files) {
    return liar.CodeAfterCopy([&](UnixConnection& to) { SendAnswer(to, answer, hashes, files); });
  };
  CHECK(sends(good, {&pipe, 1}) == ErrorCode::kProtocol);
  CHECK(sends(good, {}) == ErrorCode::kProtocol);
  LocalAnswer other = good;
  other.data_bytes -= 1;
  CHECK(sends(other, {&file, 1}) == ErrorCode::kProtocol);
  other = good;
  other.tail_bytes = uint64_t{1} << 60;
  CHECK(sends(other, {&file, 1}) == ErrorCode::kProtocol);
  other = good;
  other.offset = ~uint64_t{0} - 1;
  CHECK(sends(other, {&file, 1}) != ErrorCode::kProtocol);  // nothing can be read there
  CHECK(sends(good, {&file, 1}) != ErrorCode::kProtocol);   // the file ends too early
  CHECK(liar.CodeAfterCopy([](UnixConnection& to) {
    (void)to.Send(Bytes(500, std::byte{7}), {}, milliseconds(5'000));
  }) == ErrorCode::kProtocol);
  CHECK(liar.CodeAfterCopy([](UnixConnection& to) {
    std::byte byte;
    (void)to.Receive({&byte, 1}, nullptr, milliseconds(5'000));
  }) == ErrorCode::kDeadline);
}

}  // namespace
}  // namespace lockstep
