// What ranks may not do, and what ends a version.
#include "common/base/status_testing.h"
#include "common/peer/peer.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::run {
namespace {

constexpr milliseconds kSoon{60'000};

TEST_CASE("Versions only increase, and a version begun is not begun again") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 3, 1);
  for (const Version version : {0, 1, 3}) {
    CHECK_THAT(rank->Begin(version), FailsWith(ErrorCode::kState, "is not greater than the newest, 3"));
  }
  REQUIRE(rank->Begin(4).ok());
  CHECK_THAT(rank->Begin(5), FailsWith(ErrorCode::kState, "still being written"));
}

TEST_CASE("A batch that its rank did not write is an error that names its tensor, and the next version works") {
  Host host;
  const auto rank = host.Connect();
  std::byte* const data = Begin(*rank, 1);
  Write(*rank, data, {0, 90000}, 1);
  const Status status = rank->Commit();
  CHECK_THAT(status, FailsWith(ErrorCode::kBadData, "version 1 of model actor: rank 0 never reported some of its bytes",
                               "at 90000, in tensor \"second\""));
  CHECK(host.aborted() == 1);
  host.Publish(*rank, 1, 7);
  CHECK(FirstByte(host.run(), 1) == std::byte{7});
}

TEST_CASE("A batch reported twice aborts the version, and the commit says so") {
  Host host;
  const auto rank = host.Connect();
  std::byte* const data = Begin(*rank, 1);
  Write(*rank, data, {0, 120000}, 1);
  Write(*rank, data, {0, 4096}, 1);
  CHECK_THAT(rank->Commit(),
             FailsWith(ErrorCode::kBadData, "rank 0 reports bytes twice, those at 0, in tensor \"first\""));
  host.Publish(*rank, 2, 7);
}

TEST_CASE("A batch reported both as new and as unchanged aborts the version") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  std::byte* const data = Begin(*rank, 2);
  Write(*rank, data, {0, 120000}, 1);
  ReportUnchanged(*rank, {0, 4096});
  CHECK_THAT(rank->Commit(),
             FailsWith(ErrorCode::kBadData, "rank 0 reports bytes twice, those at 0, in tensor \"first\""));
}

TEST_CASE("A rank that closes its connection aborts the version for all, and what was served stays served") {
  Host host;
  auto zero = host.Connect(0, 2);
  auto one = host.Connect(1, 2);
  PublishPart(*zero, 1, {0, 80000});
  PublishPart(*one, 1, {80000, 40000});
  host.Await(1);
  std::byte* const data = Begin(*zero, 2);
  Write(*zero, data, {0, 80000}, 2);
  REQUIRE(one->Begin(2).ok());
  one.reset();
  REQUIRE(Eventually([&] { return host.aborted() > 0; }));
  const Status status = zero->Commit();
  CHECK_THAT(status, FailsWith(ErrorCode::kAborted, "rank 1 (pid ", "is gone: its connection has ended",
                               "version 2 was aborted, and what is served stays"));
  CHECK(FirstByte(host.run(), 1) == std::byte{1});
}

TEST_CASE("A version is known as committed when all ranks are done with it, and never when it was aborted") {
  Host host;
  const auto zero = host.Connect(0, 2);
  auto one = host.Connect(1, 2);
  PublishPart(*zero, 1, {0, 80000});
  CHECK(zero->committed_version() == 0);
  PublishPart(*one, 1, {80000, 40000});
  CHECK(one->committed_version() == 1);
  PublishPart(*zero, 2, {0, 80000});
  CHECK(zero->committed_version() == 1);
  REQUIRE(one->Begin(2).ok());
  REQUIRE(one->Abort().ok());
  CHECK(one->committed_version() == 1);
  PublishPart(*one, 3, {80000, 40000});
  CHECK(one->committed_version() == 1);
  PublishPart(*zero, 3, {0, 80000});
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
  PublishPart(*one, 1, {80000, 40000});
  PublishPart(*zero, 1, {0, 80000});
  host.Await(1);
}

TEST_CASE("After an abort the next begin works") {
  Host host;
  const auto rank = host.Connect();
  REQUIRE(rank->Begin(1).ok());
  REQUIRE(rank->Abort().ok());
  host.Publish(*rank, 1, 3);
}

TEST_CASE("A call that timed out costs its version, and the connection is in step again afterwards") {
  Host host;
  auto options = host.Options(0, 2);
  options.call_timeout = milliseconds(2000);  // and no other call takes as long, on a loaded machine either
  auto zero = *client::RankClient::Open(options);
  const auto one = host.Connect(1, 2);
  PublishPart(*zero, 1, {0, 80000});
  CHECK_THAT(zero->Begin(2),
             FailsWith(ErrorCode::kDeadline, "did not answer in time"));  // rank 1 is late with version 1
  PublishPart(*one, 1, {80000, 40000});
  host.Await(1);
  PublishPart(*zero, 2, {0, 80000});
  PublishPart(*one, 2, {80000, 40000});
  host.Await(2);
}

TEST_CASE("A rank whose call timed out goes on with the others when what it had committed was aborted meanwhile") {
  Host host;
  auto options = host.Options(0, 2);
  options.call_timeout = milliseconds(2000);
  const auto zero = *client::RankClient::Open(options);
  auto one = host.Connect(1, 2);
  PublishPart(*zero, 1, {0, 80000});
  REQUIRE(one->Begin(1).ok());
  CHECK_THAT(zero->Begin(2), FailsWith(ErrorCode::kDeadline, "did not answer in time"));
  REQUIRE(Eventually([&] { return host.connected() == 1; }));
  one.reset();
  REQUIRE(Eventually([&] { return host.aborted() == 1; }));
  options = host.Options(1, 2);
  options.run = zero->run();
  one = *client::RankClient::Open(options);
  PublishPart(*one, 2, {80000, 40000});
  PublishPart(*zero, 2, {0, 80000});
  host.Await(2);
}

TEST_CASE("A rank goes on after its committed version was aborted for what another rank did not write") {
  Host host;
  auto options = host.Options(0, 2);
  options.call_timeout = milliseconds(2000);
  const auto zero = *client::RankClient::Open(options);
  const auto one = host.Connect(1, 2);
  PublishPart(*zero, 1, {0, 80000});
  Begin(*one, 1);
  CHECK_THAT(zero->Begin(2), FailsWith(ErrorCode::kDeadline, "did not answer in time"));
  REQUIRE(Eventually([&] { return host.connected() == 1; }));
  CHECK_THAT(one->Commit(), FailsWith(ErrorCode::kBadData, "never reported some of its bytes"));
  PublishPart(*one, 2, {80000, 40000});
  PublishPart(*zero, 2, {0, 80000});
  host.Await(2);
}

TEST_CASE("Versions above the limit are refused") {
  Host host;
  const auto rank = host.Connect();
  CHECK_THAT(rank->Begin(kMaxVersion + 1), FailsWith(ErrorCode::kBadData, "version"));
  host.Publish(*rank, kMaxVersion, 1);
}

TEST_CASE("A rank whose share is not the model is not let in, and the run before goes on") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  client::RankOptions options = host.Options();
  const StridedRange outside{0, 50, ~uint64_t{0}, 100};
  options.share.Add({&outside, 1});
  CHECK_THAT(client::RankClient::Open(options), FailsWith(ErrorCode::kBadData, "outside the data section"));
  options.share = ShareOf({0, 90000});
  CHECK_THAT(client::RankClient::Open(options),
             FailsWith(ErrorCode::kBadData, "tensor \"second\": 30000 of its 40000 bytes are in no rank's share"));
  host.Publish(*rank, 2, 2);
}

TEST_CASE(
    "Ranks that both write a byte are not let in together; one that comes back with another share takes its place") {
  Host host;
  const auto zero = host.Connect(0, 2);
  client::RankOptions options = host.Options(1, 2);
  options.run = zero->run();
  const wire::Share fitting = std::exchange(options.share, ShareOf({0, 120000}));
  CHECK_THAT(client::RankClient::Open(options),
             FailsWith(ErrorCode::kBadData, "tensor \"first\": ranks 0 and 1 both have some of its bytes"));
  CHECK_THAT(zero->Begin(1), FailsWith(ErrorCode::kBadData, "rank 1 is not let in: tensor \"first\""));
  options.share = fitting;
  auto one = *client::RankClient::Open(options);
  for (auto* const rank : {zero.get(), one.get()}) REQUIRE(rank->Begin(1).ok());
  one.reset();
  REQUIRE(Eventually([&] { return host.connected() == 1; }));
  const StridedRange halves[] = {StridedRange::Plain({80000, 20000}), StridedRange::Plain({100000, 20000})};
  options.share = {};
  for (const StridedRange& half : halves) options.share.Add({&half, 1});
  one = *client::RankClient::Open(options);
  (void)zero->Abort();
  PublishPart(*zero, 2, {0, 80000});
  PublishPart(*one, 2, {80000, 40000});
  host.Await(2);
}

TEST_CASE("Half a batch's number ends the connection") {
  Host host;
  const Bytes open = wire::EncodeOpen({.ranks = 1}, "other", *Layout(), ShareOf({0, 120000}));
  auto raw = os::UnixConnect(host.socket(), kSoon);
  REQUIRE(raw.ok());
  const std::string hello = peer::SelfLine("export_plugin");
  REQUIRE(wire::SendRankMessage(*raw, wire::RankMessageType::kHello, AsBytes(std::string_view(hello)), {}, kSoon).ok());
  REQUIRE(wire::ReceiveRankMessage(*raw, kSoon)->type == wire::RankMessageType::kHello);
  REQUIRE(wire::SendRankMessage(*raw, wire::RankMessageType::kOpen, open, {}, kSoon).ok());
  REQUIRE(wire::ReceiveRankMessage(*raw, kSoon)->type == wire::RankMessageType::kOpened);
  REQUIRE(wire::SendRankMessage(*raw, wire::RankMessageType::kUnchanged, Bytes(8 + 31), {}, kSoon).ok());
  const auto answer = wire::ReceiveRankMessage(*raw, kSoon);
  REQUIRE(answer.ok());
  CHECK_THAT(wire::DecodeError(answer->body), FailsWith(ErrorCode::kProtocol, "malformed batches"));
}

TEST_CASE("Foreign bytes on the socket are refused and disturb no rank") {
  Host host;
  const auto rank = host.Connect();
  for (const std::string& garbage : {std::string(64, 'x'), std::string(16, '\0')}) {
    auto stranger = os::UnixConnect(host.socket(), kSoon);
    REQUIRE(stranger.ok());
    REQUIRE(stranger->Send(std::as_bytes(std::span(garbage)), {}, kSoon).ok());
    const auto answer = wire::ReceiveRankMessage(*stranger, kSoon);
    REQUIRE(answer.ok());
    CHECK_THAT(wire::DecodeError(answer->body), FailsWith(ErrorCode::kProtocol, "rank protocol: "));
  }
  host.Publish(*rank, 1, 1);
}

}  // namespace
}  // namespace lockstep::run
