// Messages against FORMAT.md.
#include "raas_receiver/engine/ranks/messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "common/base/document_testing.h"
#include "common/os/segment.h"
#include "raas_receiver/engine/ranks/rank_connection.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

struct Ends {
  os::UnixConnection ours;
  os::UnixConnection theirs;

  Ends() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    ours = os::UnixConnection(os::UniqueFd(fds[0]));
    theirs = os::UnixConnection(os::UniqueFd(fds[1]));
  }
  void SendRaw(ByteView bytes) { REQUIRE(theirs.Send(bytes, {}, milliseconds(1000)).ok()); }
};

VersionRef SomeVersion() {
  VersionRef held{{}, 42};
  for (size_t i = 0; i < 16; ++i) held.run.bytes[i] = static_cast<uint8_t>(i);
  return held;
}

template <typename Change>
Status DecodeChanged(const Change& change) {
  EngineMessageHeader header{.type = 4, .run = SomeVersion().run, .version = 42};
  change(header);
  return DecodeEngineHeader(std::span<const std::byte, sizeof header>(AsBytes(header))).status();
}

}  // namespace

TEST_CASE("A message arrives as it was sent, with its descriptors") {
  Ends ends;
  const os::MappedSegment segment = *os::CreateMemfdSegment("write batch", 4096);
  const int fd = segment.fd();
  const Bytes body{std::byte{'h'}, std::byte{'i'}};
  const EngineMessage sent{.type = EngineMessageType::kAttach, .held = SomeVersion(), .body = body};
  REQUIRE(SendEngineMessage(ends.theirs, sent, std::span(&fd, 1), milliseconds(1000)).ok());
  const auto got = ReceiveEngineMessage(ends.ours, milliseconds(1000));
  REQUIRE(got.ok());
  CHECK(got->type == EngineMessageType::kAttach);
  CHECK(got->held == SomeVersion());
  CHECK(got->body == body);
  CHECK(got->fds.size() == 1);
}

TEST_CASE("The examples of the format are what is sent") {
  Ends ends;
  REQUIRE(
      SendEngineMessage(ends.theirs, {.type = EngineMessageType::kServe, .held = SomeVersion()}, {}, milliseconds(1000))
          .ok());
  Bytes sent(sizeof(EngineMessageHeader));
  REQUIRE(ends.ours.Receive(sent, nullptr, milliseconds(1000)).ok());
  CHECK(sent == HexBlock("raas_receiver/engine/ranks/FORMAT.md", "serve"));
  REQUIRE(SendEngineMessage(ends.theirs, {.type = EngineMessageType::kWrite}, {}, milliseconds(1000)).ok());
  REQUIRE(ends.ours.Receive(sent, nullptr, milliseconds(1000)).ok());
  CHECK(sent == HexBlock("raas_receiver/engine/ranks/FORMAT.md", "write"));

  ends.SendRaw(HexBlock("raas_receiver/engine/ranks/FORMAT.md", "ask"));
  const auto ask = ReceiveEngineMessage(ends.ours, milliseconds(1000));
  REQUIRE(ask.ok());
  CHECK(ask->type == EngineMessageType::kAsk);
  CHECK(*ReadAsk(*ask) == "actor");
  const auto layout = model::ModelLayout::Decode(HexBlock("common/model/FORMAT.md", "layout"));
  REQUIRE(layout.ok());
  CHECK(Cat(AsText(LayoutBody(**layout)), "\n") ==
        DocumentBlock("raas_receiver/engine/ranks/FORMAT.md", "json", "layout"));
}

TEST_CASE("LAYOUT has the tensors in the checkpoint's order, whatever their names") {
  std::vector<model::TensorMeta> tensors{{"z\"\\\xc3\xa9", model::DType::kF8E4M3, {4, 2}, 0},
                                         {"a", model::DType::kI64, {}, 8}};
  const auto layout = model::ModelLayout::Create(tensors);
  REQUIRE(layout.ok());
  CHECK(AsText(LayoutBody(**layout)) == Cat(R"({"digest":")", ToHex((*layout)->digest()),
                                            R"(","tensors":{"z\"\\é":["F8_E4M3",[4,2]],"a":["I64",[]]}})"));
}

TEST_CASE("Headers that the format does not know are refused, each for its reason") {
  CHECK(DecodeChanged([](EngineMessageHeader&) {}).ok());
  const auto refused = [](const auto& change, const std::string& word) {
    const Status status = DecodeChanged(change);
    INFO(status.ToString());
    return status.code() == ErrorCode::kProtocol && status.message().find(word) != std::string::npos;
  };
  CHECK(refused([](EngineMessageHeader& header) { ++header.magic; }, "magic"));
  CHECK(refused([](EngineMessageHeader& header) { header.format = 1; }, "format"));
  CHECK(refused([](EngineMessageHeader& header) { header.type = 0; }, "type 0"));
  CHECK(refused([](EngineMessageHeader& header) { header.type = 19; }, "type 19"));
  CHECK(refused([](EngineMessageHeader& header) { header.reserved = 2; }, "2 where 0 belongs"));
  CHECK(refused([](EngineMessageHeader& header) { header.version = kMaxVersion + 1; }, "version"));
  CHECK(refused([](EngineMessageHeader& header) { header.version = 0; }, "run without a version"));
  CHECK(refused([](EngineMessageHeader& header) { header.run = {}; }, "version without a run"));
  CHECK(refused([](EngineMessageHeader& header) { header.body_bytes = kMaxEngineBody + 1; }, "limit"));
  CHECK(DecodeChanged([](EngineMessageHeader& header) { header.type = 1, header.body_bytes = kMaxAttachBody; }).ok());
  CHECK(refused([](EngineMessageHeader& header) { header.type = 1, header.body_bytes = kMaxAttachBody + 1; }, "limit"));
  CHECK(DecodeChanged([](EngineMessageHeader& header) { header.type = 16, header.body_bytes = kMaxAttachBody; }).ok());
  CHECK(
      refused([](EngineMessageHeader& header) { header.type = 15, header.body_bytes = kMaxEngineBody + 1; }, "limit"));
}

TEST_CASE("A message that ends early is unavailable, wherever it ends") {
  const Bytes body(10);
  Bytes whole;
  Append(whole, EngineMessageHeader{.type = 3, .body_bytes = 10});
  AppendBytes(whole, body);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Ends ends;
    if (bytes != 0) ends.SendRaw(ByteView(whole).first(bytes));
    ends.theirs.Shutdown();
    CHECK(ReceiveEngineMessage(ends.ours, milliseconds(1000)).status().code() == ErrorCode::kUnavailable);
  }
}

TEST_CASE("A message that trickles in does not hold its receiver beyond the timeout") {
  Ends ends;
  std::atomic<bool> stop = false;
  ends.SendRaw(AsBytes(EngineMessageHeader{.type = 1, .body_bytes = kMaxAttachBody}));
  std::thread trickle([&] {
    const std::byte byte{};
    while (!stop) {
      (void)ends.theirs.Send({&byte, 1}, {}, milliseconds(10));
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto got = ReceiveEngineMessage(ends.ours, milliseconds(200));
  const auto took = std::chrono::steady_clock::now() - begin;
  stop = true;
  trickle.join();
  CHECK(got.status().code() == ErrorCode::kDeadline);
  CHECK(took < std::chrono::seconds(60));
}

}  // namespace lockstep::engine
