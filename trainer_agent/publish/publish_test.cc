// Versions: what ranks may do, what is served, what ends a version.
#include <latch>
#include <map>

#include "common/base/status_testing.h"
#include "trainer_agent/publish/publish_fixture.h"
#include "trainer_agent/store/scrubber.h"

namespace lockstep::publish {
namespace {

constexpr milliseconds kSoon{60'000};

TEST_CASE("Published versions are served with their bytes, hashes and deltas") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  Publish(*rank, 5, 2);
  const store::ServedVersion served = host.Await(5);
  CHECK(FirstByte(host.run(), 5) == std::byte{2});
  CHECK(served.manifest->block_hashes.size() == 30);
  const store::DeltaRoute route = host.run().deltas().RouteFrom(1, 120000, payload::CodecLevel::kFast);
  REQUIRE(route.steps.size() == 1);
  CHECK(route.steps[0]->header().target_digest == served.manifest->digest);
  CHECK(route.changed_elements() == 60000);
}

TEST_CASE("A version whose half does not hold what was committed is withdrawn, and the next one is whole") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  std::memset(*data, 1, 120000);
  const bool reported_falsely = GENERATE(true, false);
  if (reported_falsely) (*data)[50'000] = std::byte{9};
  ReportUnchanged(*rank, {0, 120000});
  REQUIRE(rank->Commit().ok());
  host.Await(2);
  if (!reported_falsely) (*data)[50'000] = std::byte{9};  // written after the commit
  const bool suspected = GENERATE(true, false);
  store::Scrubber scrubber(&host.catalog(), milliseconds(suspected ? 0 : 20));
  if (suspected) scrubber.Suspect("actor");
  REQUIRE(Eventually([&] { return !host.run().Newest(); }));
  CHECK_THAT(host.run().RequireNewest(),
             FailsWith(ErrorCode::kCorrupt, "version 2 of model actor was withdrawn", "tensor \"first\""));
  CHECK(Eventually([&] { return host.run().deltas().Retained().empty(); }));
  CHECK(UseFirstBlock(host.run(), 2) == ErrorCode::kState);
  const auto next = rank->Begin(3);
  REQUIRE(next.ok());
  std::memset(*next, 1, 120000);
  (*next)[50'000] = std::byte{9};
  ReportUnchanged(*rank, {0, 120000});  // as in the half before: but that is not what it was, so all is read
  REQUIRE(rank->Commit().ok());
  CHECK(HasBytes(host.Await(3), Bytes(*next, *next + 120000)));
  CHECK(host.run().deltas().Retained().empty());  // it leads nowhere from what receivers hold
}

TEST_CASE("A served version leaves its spans, each inside the one it is part of, and one that was aborted none") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 0x11);
  host.Await(1);
  REQUIRE(rank->Begin(2).ok());
  REQUIRE(rank->Abort("on purpose").ok());
  const auto data = rank->Begin(3);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 4096}, 0x33);
  ReportUnchanged(*rank, {4096, 115904});
  REQUIRE(rank->Commit().ok());
  host.Await(3);

  CHECK(host.timeline().Select("actor", 2).empty());
  std::map<std::string_view, telemetry::Span> first, third;
  for (const telemetry::Span& span : host.timeline().Select("actor", 1)) first[span.name] = span;
  for (const telemetry::Span& span : host.timeline().Select("actor", 3)) third[span.name] = span;
  REQUIRE(first.size() == 2);  // nothing to compare it with: no delta
  CHECK(first.at("export").bytes == 120000);
  CHECK(first.at("diff").bytes == 120000);
  REQUIRE(third.size() == 4);
  CHECK(third.at("diff").bytes == 4096);  // the only block that was read
  CHECK(third.at("encode").bytes == host.run().deltas().Retained().back()->header().data_bytes);
  CHECK(third.at("store").bytes == third.at("encode").bytes);
  CHECK(third.at("export").begin_unix_ns <= third.at("diff").begin_unix_ns);
  CHECK(third.at("diff").begin_unix_ns <= third.at("encode").begin_unix_ns);
  CHECK(third.at("encode").begin_unix_ns <= third.at("encode").end_unix_ns);
  CHECK(third.at("encode").end_unix_ns <= third.at("diff").end_unix_ns);
  CHECK(third.at("diff").end_unix_ns <= third.at("store").begin_unix_ns + 1'000'000);
}

TEST_CASE("Versions are published while those who watch are still being told of an earlier one") {
  Host host;
  std::latch told(1);
  const store::VersionCatalog::Watch watch(&host.catalog(), "actor", [&] { told.wait(); });
  const auto rank = host.Connect();
  for (Version version = 1; version <= 3; ++version) Publish(*rank, version, static_cast<int>(version));
  host.Await(3);
  told.count_down();
}

TEST_CASE("A follower finds a version's blocks while it is written, and its end once it is served") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  store::LiveFeed& feed = host.run().live();
  const store::LiveFeed::Follower follower(&feed, payload::CodecLevel::kCompact);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  const auto delta = *feed.Find(1);
  REQUIRE(delta != nullptr);
  Write(*rank, *data, {0, 40960}, 2);
  CHECK(Eventually([&] { return delta->Since(0).blocks.size() == 10; }));
  CHECK_FALSE(delta->Since(0).sealed);
  Write(*rank, *data, {40960, 79040}, 2);
  REQUIRE(rank->Commit().ok());
  host.Await(2);
  CHECK(delta->Since(0).sealed);
  CHECK(delta->Since(0).blocks.size() == 30);
  CHECK(*feed.Find(2) == nullptr);
  CHECK(host.run().deltas().RouteFrom(1, 120000, payload::CodecLevel::kFast).level == payload::CodecLevel::kCompact);
}

TEST_CASE("Followers are notified of a version that is aborted, for whatever reason, and find the next one") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  store::LiveFeed& feed = host.run().live();
  const store::LiveFeed::Follower follower(&feed, payload::CodecLevel::kFast);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  const auto delta = *feed.Find(1);
  REQUIRE(delta != nullptr);
  Write(*rank, *data, {0, 4096}, 2);
  CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kBadData, "bytes were never written"));  // bytes are missing
  CHECK(delta->Since(0).aborted.code() == ErrorCode::kAborted);
  CHECK(*feed.Find(1) == nullptr);
  REQUIRE(rank->Begin(3).ok());
  CHECK((*feed.Find(1))->target() == 3);
}

TEST_CASE("Nothing is kept for followers when there are none, and nothing after they were served") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  host.Await(1);
  store::LiveFeed& feed = host.run().live();
  REQUIRE(rank->Begin(2).ok());
  CHECK(*feed.Find(1) == nullptr);
  REQUIRE(rank->Abort("on purpose").ok());
  const store::LiveFeed::Follower follower(&feed, payload::CodecLevel::kFast);
  REQUIRE(rank->Begin(3).ok());
  const std::weak_ptr<store::LiveDelta> delta = *feed.Find(1);
  CHECK_FALSE(delta.expired());
  REQUIRE(rank->Abort("on purpose").ok());
  CHECK(delta.expired());
}

TEST_CASE("A version commits when all of its ranks have, and ranks may run one version ahead") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  CHECK(zero->run() == one->run());
  for (Version version = 1; version <= 5; ++version) {
    const auto data = zero->Begin(version);
    REQUIRE(data.ok());
    Write(*zero, *data, {0, 80000}, static_cast<int>(version));
    REQUIRE(zero->Commit().ok());
    if (version == 1) CHECK_FALSE(host.run().Newest());
    const auto other = one->Begin(version);
    REQUIRE(other.ok());
    Write(*one, *other, {80000, 40000}, static_cast<int>(version));
    REQUIRE(one->Commit().ok());
    host.Await(version);
  }
}

TEST_CASE("Versions only increase, and a version begun is not begun again") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 3, 1);
  for (const Version version : {0, 1, 3}) {
    CHECK_THAT(rank->Begin(version), FailsWith(ErrorCode::kState, "is not greater than the newest, 3"));
  }
  REQUIRE(rank->Begin(4).ok());
  CHECK_THAT(rank->Begin(5), FailsWith(ErrorCode::kState, "still being written"));
}

TEST_CASE("Bytes that nobody wrote are an error that names their tensor, and the next version works") {
  Host host;
  const auto rank = host.Connect();
  const auto data = rank->Begin(1);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 90000}, 1);
  const Status status = rank->Commit();
  CHECK_THAT(status, FailsWith(ErrorCode::kBadData, "\"second\""));
  CHECK(host.aborted() == 1);
  Publish(*rank, 1, 7);
  host.Await(1);
  CHECK(FirstByte(host.run(), 1) == std::byte{7});
}

TEST_CASE("A byte reported twice aborts the version, and the commit says so") {
  Host host;
  const auto rank = host.Connect();
  const auto data = rank->Begin(1);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 120000}, 1);
  Write(*rank, *data, {100, 2}, 1);
  CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kBadData, "reported twice"));
  Publish(*rank, 2, 7);
  host.Await(2);
}

TEST_CASE("Ranks that write columns of the same tensors report them as rows, and the version has every byte") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  for (Version version = 1; version <= 3; ++version) {
    const auto data = zero->Begin(version);
    REQUIRE(data.ok());
    CHECK(zero->half() == (version + 1) % 2);
    REQUIRE(one->Begin(version).ok());
    WriteRows(*zero, *data, {0, 50, 1200, 100}, static_cast<int>(version));
    REQUIRE(zero->Commit().ok());
    WriteRows(*one, *data, {50, 50, 1200, 100}, 7);
    REQUIRE(one->Commit().ok());
    Bytes expected(120000, std::byte{7});
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i % 100 < 50) expected[i] = static_cast<std::byte>(version);
    }
    CHECK(HasBytes(host.Await(version), expected));
  }
  CHECK(host.run().deltas().RouteFrom(2, 120000, payload::CodecLevel::kFast).changed_elements() == 30000);
}

TEST_CASE("Blocks reported as unchanged are not read, and mixed ones are") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  const store::ServedVersion first = host.Await(1);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  std::memset(*data, 1, 120000);
  // Wrong on purpose, in blocks 0 and 12: only the one that shares its block with new bytes is read.
  (*data)[100] = std::byte{9};
  (*data)[49999] = std::byte{9};
  ReportUnchanged(*rank, {0, 50000});
  Write(*rank, *data, {50000, 70000}, 2);
  REQUIRE(rank->Commit().ok());
  const store::ServedVersion second = host.Await(2);
  Bytes expected(*data, *data + 120000);
  CHECK_FALSE(HasBytes(second, expected));
  expected[100] = std::byte{1};
  CHECK(HasBytes(second, expected));
  CHECK(second.manifest->block_hashes[0] == first.manifest->block_hashes[0]);
  const store::DeltaRoute route = host.run().deltas().RouteFrom(1, 120000, payload::CodecLevel::kFast);
  REQUIRE(route.steps.size() == 1);
  REQUIRE(route.steps[0]->entries().size() == 18);
  CHECK(route.steps[0]->entries()[0].block == 12);
}

TEST_CASE("The first version has nothing to be unchanged from: the hint is ignored") {
  Host host;
  const auto rank = host.Connect();
  const auto data = rank->Begin(1);
  REQUIRE(data.ok());
  std::memset(*data, 5, 120000);
  ReportUnchanged(*rank, {0, 120000});
  REQUIRE(rank->Commit().ok());
  CHECK(HasBytes(host.Await(1), Bytes(120000, std::byte{5})));
}

TEST_CASE("A byte reported both as new and as unchanged aborts the version") {
  Host host;
  const auto rank = host.Connect();
  Publish(*rank, 1, 1);
  const auto data = rank->Begin(2);
  REQUIRE(data.ok());
  Write(*rank, *data, {0, 120000}, 1);
  ReportUnchanged(*rank, {100, 2});
  CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kBadData, "reported twice"));
}

TEST_CASE("A rank that vanishes aborts the version for all, and what was served stays served") {
  Host host;
  auto zero = host.Connect(0, 2);
  auto one = host.Connect(1, 2);
  for (buffer::RankClient* rank : {zero.get(), one.get()}) {
    const auto data = rank->Begin(1);
    REQUIRE(data.ok());
    Write(*rank, *data, rank == zero.get() ? ByteRange{0, 80000} : ByteRange{80000, 40000}, 1);
    REQUIRE(rank->Commit().ok());
  }
  host.Await(1);
  const auto data = zero->Begin(2);
  REQUIRE(data.ok());
  Write(*zero, *data, {0, 80000}, 2);
  REQUIRE(one->Begin(2).ok());
  one.reset();
  REQUIRE(Eventually([&] { return host.aborted() > 0; }));
  const Status status = zero->Commit();
  CHECK_THAT(status, FailsWith(ErrorCode::kAborted, "rank 1 vanished"));
  CHECK(FirstByte(host.run(), 1) == std::byte{1});
}

TEST_CASE("A version is known as committed when all ranks are done with it, and never when it was aborted") {
  Host host;
  const auto zero = host.Connect(0, 2);
  auto one = host.Connect(1, 2);
  const auto write = [](buffer::RankClient& rank, Version version, ByteRange range) {
    const auto data = rank.Begin(version);
    REQUIRE(data.ok());
    Write(rank, *data, range, static_cast<int>(version));
    REQUIRE(rank.Commit().ok());
  };
  write(*zero, 1, {0, 80000});
  CHECK(zero->committed_version() == 0);
  write(*one, 1, {80000, 40000});
  CHECK(one->committed_version() == 1);
  write(*zero, 2, {0, 80000});
  CHECK(zero->committed_version() == 1);
  REQUIRE(one->Begin(2).ok());
  REQUIRE(one->Abort().ok());
  CHECK(one->committed_version() == 1);
  write(*one, 3, {80000, 40000});
  CHECK(one->committed_version() == 1);
  write(*zero, 3, {0, 80000});
  CHECK(zero->committed_version() == 3);
}

TEST_CASE("A rank that goes on without a version aborts it instead of waiting for itself") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  REQUIRE(zero->Begin(1).ok());
  REQUIRE(one->Begin(2).ok());
  CHECK(zero->Commit().code() == ErrorCode::kAborted);
}

TEST_CASE("A rank that comes to a version that another aborted is refused once, with the reason") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  REQUIRE(zero->Begin(1).ok());
  REQUIRE(zero->Abort("out of paper").ok());
  const Status refused = one->Begin(1).status();
  CHECK_THAT(refused, FailsWith(ErrorCode::kAborted, "rank 0 aborted version 1: out of paper"));
  // Both may try again.
  for (buffer::RankClient* rank : {one.get(), zero.get()}) {
    const auto data = rank->Begin(1);
    REQUIRE(data.ok());
    Write(*rank, *data, rank == zero.get() ? ByteRange{0, 80000} : ByteRange{80000, 40000}, 1);
    REQUIRE(rank->Commit().ok());
  }
  host.Await(1);
}

TEST_CASE("After an abort the next begin works") {
  Host host;
  const auto rank = host.Connect();
  REQUIRE(rank->Begin(1).ok());
  REQUIRE(rank->Abort().ok());
  Publish(*rank, 1, 3);
  host.Await(1);
}

TEST_CASE("A call that timed out costs its version, and the connection is in step again afterwards") {
  Host host;
  auto options = host.Options(0, 2);
  options.call_timeout = milliseconds(2000);  // and no other call takes as long, on a loaded machine either
  auto zero = *buffer::RankClient::Open(options);
  const auto one = host.Connect(1, 2);
  const auto write = [](buffer::RankClient& rank, Version version, ByteRange range) {
    const auto data = rank.Begin(version);
    REQUIRE(data.ok());
    Write(rank, *data, range, static_cast<int>(version));
    REQUIRE(rank.Commit().ok());
  };
  write(*zero, 1, {0, 80000});
  CHECK_THAT(zero->Begin(2),
             FailsWith(ErrorCode::kDeadline, "did not answer in time"));  // rank 1 is late with version 1
  write(*one, 1, {80000, 40000});
  host.Await(1);
  write(*zero, 2, {0, 80000});
  write(*one, 2, {80000, 40000});
  host.Await(2);
}

TEST_CASE("Versions above the limit are refused") {
  Host host;
  const auto rank = host.Connect();
  CHECK_THAT(rank->Begin(kMaxVersion + 1), FailsWith(ErrorCode::kBadData, "version"));
  Publish(*rank, kMaxVersion, 1);
  host.Await(kMaxVersion);
}

TEST_CASE("Rows outside the model abort the version, and half a range ends the connection") {
  Host host;
  const auto rank = host.Connect();
  REQUIRE(rank->Begin(1).ok());
  const StridedRange outside{0, 50, ~uint64_t{0}, 100};
  REQUIRE(rank->RangesDone({&outside, 1}).ok());
  CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kBadData, "outside the data section"));
  const auto layout = Layout();
  Bytes open;
  Append(open, buffer::OpenBody{
                   .ranks = 1, .model_bytes = 5, .layout_bytes = static_cast<uint32_t>(layout->encoded().size())});
  AppendBytes(open, AsBytes(std::string_view("other")));
  AppendBytes(open, layout->encoded());
  auto raw = os::UnixConnect(host.socket(), kSoon);
  REQUIRE(raw.ok());
  REQUIRE(buffer::SendMessage(*raw, buffer::RankMessage::kOpen, open, {}, kSoon).ok());
  REQUIRE(buffer::ReceiveMessage(*raw, kSoon)->type == buffer::RankMessage::kOpened);
  REQUIRE(buffer::SendMessage(*raw, buffer::RankMessage::kUnchanged, Bytes(8 + 31), {}, kSoon).ok());
  const auto answer = buffer::ReceiveMessage(*raw, kSoon);
  REQUIRE(answer.ok());
  CHECK_THAT(buffer::DecodeError(answer->body), FailsWith(ErrorCode::kProtocol, "malformed ranges"));
}

TEST_CASE("Foreign bytes on the socket are refused and disturb nobody") {
  Host host;
  const auto rank = host.Connect();
  for (const std::string& garbage : {std::string(64, 'x'), std::string(16, '\0')}) {
    auto stranger = os::UnixConnect(host.socket(), kSoon);
    REQUIRE(stranger.ok());
    REQUIRE(stranger->Send(std::as_bytes(std::span(garbage)), {}, kSoon).ok());
    const auto answer = buffer::ReceiveMessage(*stranger, kSoon);
    REQUIRE(answer.ok());
    CHECK_THAT(buffer::DecodeError(answer->body), FailsWith(ErrorCode::kProtocol, "rank protocol: "));
  }
  Publish(*rank, 1, 1);
  host.Await(1);
}

}  // namespace
}  // namespace lockstep::publish
