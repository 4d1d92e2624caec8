// Peers that must not be taken, each for its reason, and what becomes of the others.
#include "raas_receiver/engine/ranks/rank_server.h"

#include <nlohmann/json.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/segment.h"
#include "raas_receiver/engine/placement/description/description_testing.h"
#include "raas_receiver/engine/ranks/rank_connection.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

constexpr char kAsk[] = R"({"peer": "engine_rank/1.0 protocol=1", "model": "actor"})";

bool IsReadable(const os::UnixConnection& connection) {
  pollfd readable{connection.fd(), POLLIN, 0};
  return ::poll(&readable, 1, 0) > 0;
}

bool WaitsStill(os::UnixConnection& connection) {
  std::byte more;
  return connection.Receive({&more, 1}, nullptr, milliseconds(500)).code() == ErrorCode::kDeadline;
}

// A peer that sends one message and listens.
struct Peer : RanksFixture {
  TestRankMemory engine{model, 0};

  Peer() { REQUIRE(Start().ok()); }

  static std::string Body(const std::string& model, const std::string& engine, const RankDescription& description) {
    return nlohmann::json{{"peer", "engine_rank/1.0 protocol=1"},
                          {"model", model},
                          {"engine", engine},
                          {"group", 0},
                          {"incarnation", "one"},
                          {"gated", true},
                          {"state", "waiting"},
                          {"description", nlohmann::json::parse(ToJson(description))}}
        .dump();
  }
  std::string Body() const { return Body("actor", "tp2", engine.Describe()); }
  // A good one with another value of `key`; null: without it.
  std::string BodyWith(const std::string& key, const nlohmann::json& value) const {
    nlohmann::json body = nlohmann::json::parse(Body());
    body.merge_patch({{key, value}});
    return body.dump();
  }

  os::UnixConnection Connect() const { return *os::UnixConnect(socket(), kPatience); }
  static Status Send(os::UnixConnection& connection, const std::string& body, std::span<const int> fds = {},
                     EngineMessageType type = EngineMessageType::kAttach) {
    const ByteView bytes = AsBytes(std::string_view(body));
    return SendEngineMessage(connection, {.type = type, .body = {bytes.begin(), bytes.end()}}, fds, kPatience);
  }
  // What the server refuses with.
  static std::string Refusal(os::UnixConnection& connection) {
    const auto answer = ReceiveEngineMessage(connection, kPatience);
    if (!answer.ok()) return answer.status().ToString();
    if (answer->type != EngineMessageType::kRefused) return std::string(Name(answer->type));
    std::byte more;
    if (connection.Receive({&more, 1}, nullptr, kPatience).code() != ErrorCode::kUnavailable) return "stays";
    return std::string(AsText(answer->body));
  }
  std::string Refused(const std::string& body, std::span<const int> fds = {},
                      EngineMessageType type = EngineMessageType::kAttach) const {
    os::UnixConnection connection = Connect();
    (void)Send(connection, body, fds, type);
    return Refusal(connection);
  }
  // Has asked for the layout of "actor".
  os::UnixConnection Ask() const {
    os::UnixConnection connection = Connect();
    REQUIRE(Send(connection, kAsk, {}, EngineMessageType::kAsk).ok());
    return connection;
  }
  // Whether it is told the model's layout, and nothing after that.
  bool IsTold(os::UnixConnection& connection) const {
    const auto answer = ReceiveEngineMessage(connection, kPatience);
    std::byte more;
    return answer.ok() && answer->type == EngineMessageType::kLayout && answer->body == LayoutBody(*model.layout()) &&
           connection.Receive({&more, 1}, nullptr, kPatience).code() == ErrorCode::kUnavailable;
  }
};

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("An ATTACH that is none is refused, naming what is wrong") {
  Peer peer;
  CHECK(Has(peer.Refused("[]"), "not a JSON object"));
  CHECK(Has(peer.Refused("{\"model\": "), "not a JSON object"));
  for (const char* key : {"peer", "model", "engine", "group", "incarnation", "state", "gated", "description"}) {
    CHECK(Has(peer.Refused(peer.BodyWith(key, nullptr)), Cat("\"", key, "\"")));
    CHECK(Has(peer.Refused(peer.BodyWith(key, -3)), "bad_data"));
  }
  CHECK(Has(peer.Refused(peer.BodyWith("model", "../x")), "ATTACH's \"model\""));
  CHECK(Has(peer.Refused(peer.BodyWith("engine", "")), "ATTACH's \"engine\""));
  CHECK(Has(peer.Refused(peer.BodyWith("incarnation", std::string(129, 'x'))), "ATTACH's \"incarnation\""));
  for (const nlohmann::json& group : {nlohmann::json(-1), nlohmann::json(65'536), nlohmann::json("1")})
    CHECK(Has(peer.Refused(peer.BodyWith("group", group)), "\"group\" from 0 to 65535"));
  CHECK(Has(peer.Refused(peer.BodyWith("state", "dreaming")), "it is dreaming with version 0"));
  CHECK(Has(peer.Refused(peer.BodyWith("state", "reading")), "it is reading with version 0"));
  CHECK(Has(peer.Refused(peer.BodyWith("speed", "high")), "more than its keys"));
  for (const auto& here : std::vector<nlohmann::json>{"all", {0, "1"}, {0, 0}, {1, 0}, {0, 99}, {1}, {-1, 0}}) {
    CHECK(Has(peer.Refused(peer.BodyWith("here", here)), "\"here\" is no rising list"));
  }
  CHECK(Has(peer.Refused(peer.BodyWith("server", std::string(257, 'x'))), "\"server\" is no URL"));
  CHECK(Has(peer.Refused(peer.BodyWith("model", "critic")), "no model critic"));
  std::string nested = peer.BodyWith("description", "deep");
  nested.replace(nested.find("\"deep\""), 6, std::string(2'000'000, '[') + std::string(2'000'000, ']'));
  CHECK(Has(peer.Refused(nested), "bad_data"));
  const os::MappedSegment segment = *os::CreateMemfdSegment("write batch", 4096);
  const int fd = segment.fd();
  CHECK(Has(peer.Refused(peer.Body(), {&fd, 1}), "came with descriptors"));
  CHECK(peer.engine_ranks->empty());
}

TEST_CASE("A first message that is not ATTACH, and one that is no message, are refused") {
  Peer peer;
  os::UnixConnection early = peer.Connect();
  REQUIRE(SendEngineMessage(early, {.type = EngineMessageType::kPaused}, {}, kPatience).ok());
  CHECK(Has(Peer::Refusal(early), "PAUSED and not ATTACH or ASK"));
  os::UnixConnection noise = peer.Connect();
  REQUIRE(noise.Send(Bytes(40, std::byte{7}), {}, kPatience).ok());
  CHECK(Has(Peer::Refusal(noise), "magic"));
}

TEST_CASE("A peer that sends nothing in time is dropped") {
  RanksFixture fixture;
  fixture.attach_timeout = milliseconds(100);
  REQUIRE(fixture.Start().ok());
  os::UnixConnection silent = *os::UnixConnect(fixture.socket(), kPatience);
  CHECK(Has(Peer::Refusal(silent), "deadline"));
}

TEST_CASE("A rank that does not fit its engine is refused, and the engine follows as before") {
  Peer peer;
  peer.RunRank(0);
  peer.RunRank(1);
  REQUIRE(peer.Changed(2));
  REQUIRE(peer.Bring(1).ok());
  os::UnixConnection connection = peer.Connect();
  RankDescription description = peer.engine.Describe();
  std::string expected;
  std::string incarnation = "one";

  SECTION("because its place is taken") {
    expected = "has that place";
  }
  SECTION("because it has more ranks") {
    description.world = 3;
    description.rank = 2;
    expected = "says 3 ranks";
  }
  SECTION("because its server was started at another time") {
    incarnation = "two";
    expected = "was started with others than process ";
  }
  nlohmann::json body = nlohmann::json::parse(Peer::Body("actor", "tp2", description));
  body["incarnation"] = incarnation;
  REQUIRE(Peer::Send(connection, body.dump()).ok());
  REQUIRE(peer.Changed(1));
  REQUIRE(peer.Bring(2, 1).ok());
  CHECK(Has(Peer::Refusal(connection), expected));
  CHECK(peer.ranks[0]->Serves(2));
  CHECK(peer.ranks[1]->Serves(2));
}

TEST_CASE("A rank with a parameter that nothing gives is refused by its name") {
  Peer peer;
  RankDescription description = peer.engine.Describe();
  description.parameters[0].slices.clear();
  description.parameters[0].padding.clear();
  CHECK(Has(peer.Refused(Peer::Body("actor", "tp2", description)),
            Cat("give elements of \"", description.parameters[0].name, "\"")));
}

TEST_CASE("Ranks that leave out an element of the model are refused, all, and better ones are taken") {
  Peer peer;
  std::vector<os::UnixConnection> connections;
  for (uint32_t rank : {0, 1}) {
    RankDescription description = TestRankMemory(peer.model, 0).Describe();  // both the first one's slices
    description.rank = rank;
    connections.push_back(peer.Connect());
    REQUIRE(Peer::Send(connections.back(), Peer::Body("actor", "tp2", description)).ok());
  }
  REQUIRE(peer.Changed(2));
  const Status status = peer.Prepare(1);
  CHECK(status.code() == ErrorCode::kBadData);
  CHECK_FALSE(peer.engine_ranks->prepared());
  CHECK(peer.engine_ranks->empty());
  for (os::UnixConnection& connection : connections)
    CHECK(Has(Peer::Refusal(connection), "no rank takes element [0, 50] of tensor"));
  peer.RunRank(0);
  peer.RunRank(1);
  REQUIRE(peer.Changed(2));
  REQUIRE(peer.Bring(1).ok());
  CHECK(Eventually([&] { return peer.ranks[0]->Serves(1) && peer.ranks[1]->Serves(1); }));
}

TEST_CASE("One that does not fit the ranks that are there already goes alone") {
  Peer peer;
  RankHandle& good = peer.RunRank(0);
  RankHandle& gone = peer.RunRank(1);
  REQUIRE(peer.Changed(2));
  REQUIRE(peer.Bring(1).ok());
  gone.End();
  REQUIRE(peer.Changed(1));
  os::UnixConnection connection = peer.Connect();
  RankDescription description = peer.engine.Describe();
  description.rank = 1;  // with rank 0's slices
  REQUIRE(Peer::Send(connection, Peer::Body("actor", "tp2", description)).ok());
  REQUIRE(peer.Changed(1));
  CHECK(peer.Prepare(2, 1).code() == ErrorCode::kBadData);
  CHECK(peer.report().attached == 1);
  CHECK(good.Serves(1));
  gone.StartThread();
  REQUIRE(peer.Changed(1));
  REQUIRE(peer.Bring(2, 1).ok());
  CHECK(Eventually([&] { return good.Serves(2) && gone.Serves(2); }));
}

TEST_CASE("Groups of one model follow side by side, of two engines or of one") {
  Peer peer;
  const std::string second = GENERATE("second", "tp2/1");
  const auto named = [&](TestRankOptions& options) {
    if (second == "second") {
      options.engine = second;
    } else {
      options.group = 1;
    }
  };
  peer.RunRank(0);
  peer.RunRank(1);
  peer.RunRank(0, named);
  peer.RunRank(1, named);
  REQUIRE(peer.Changed(4));
  for (Version version : {1, 2, 3}) {
    REQUIRE(peer.Bring(version, version - 1).ok());
    for (auto& rank : peer.ranks) CHECK(Eventually([&] { return rank->Serves(version); }));
  }
  const auto groups = peer.engine_ranks->Describe();
  REQUIRE(groups.size() == 2);
  CHECK(std::ranges::any_of(groups, [&](const auto& group) { return group.name == second; }));
}

TEST_CASE("A rank that asks for the layout gets it once it is known") {
  Peer peer;
  os::UnixConnection late = peer.Ask();
  CHECK(peer.IsTold(late));
  peer.layout_known = false;
  os::UnixConnection early = peer.Ask();
  CHECK(WaitsStill(early));
  peer.layout_known = true;
  CHECK(peer.IsTold(early));
}

TEST_CASE("An ASK that is none is refused, naming what is wrong") {
  Peer peer;
  const auto refused = [&](const std::string& body, std::span<const int> fds = {}) {
    return peer.Refused(body, fds, EngineMessageType::kAsk);
  };
  CHECK(Has(refused("[]"), "ASK is not a JSON object"));
  CHECK(Has(refused(R"({"model": "actor"})"), "ASK lacks a string \"peer\""));
  CHECK(Has(refused(R"({"peer": "engine_rank/9.0 protocol=7", "model": "actor"})"), "upgrade the raas_receiver"));
  CHECK(Has(refused(R"({"peer": "engine_rank/1.0 protocol=1"})"), "ASK lacks a string \"model\""));
  CHECK(Has(refused(R"({"peer": "engine_rank/1.0 protocol=1", "model": "../x"})"), "ASK's \"model\""));
  CHECK(Has(refused(R"({"peer": "engine_rank/1.0 protocol=1", "model": "critic"})"), "no model critic"));
  CHECK(Has(refused(R"({"peer": "engine_rank/1.0 protocol=1", "model": "actor", "rank": 1})"), "more than its keys"));
  const os::MappedSegment segment = *os::CreateMemfdSegment("write batch", 4096);
  const int fd = segment.fd();
  CHECK(Has(refused(kAsk, {&fd, 1}), "came with descriptors"));
  peer.layout_known = false;
  os::UnixConnection talks = peer.Ask();
  REQUIRE(Peer::Send(talks, kAsk, {}, EngineMessageType::kAsk).ok());
  CHECK(Has(Peer::Refusal(talks), "ASK is not the last message"));
}

TEST_CASE("A server that stops ends the connections of ranks that wait for a layout") {
  Peer peer;
  peer.layout_known = false;
  os::UnixConnection waiting = peer.Ask();
  CHECK(WaitsStill(waiting));
  peer.server.reset();
  std::byte more;
  CHECK(waiting.Receive({&more, 1}, nullptr, kPatience).code() == ErrorCode::kUnavailable);
}

TEST_CASE("However many ranks wait for a layout, others attach, and one that hangs up makes room") {
  Peer peer;
  peer.layout_known = false;
  std::vector<os::UnixConnection> asking;
  for (ptrdiff_t i = 0; i <= kMostAsking; ++i) asking.push_back(peer.Ask());
  auto answered = asking.end();
  REQUIRE(Eventually([&] { return (answered = std::ranges::find_if(asking, IsReadable)) != asking.end(); }));
  CHECK(Has(Peer::Refusal(*answered), "too many engine ranks wait"));
  asking.erase(answered);
  peer.RunRank(0);
  peer.RunRank(1);
  REQUIRE(peer.Changed(2));
  REQUIRE(peer.Bring(1).ok());
  asking.pop_back();
  os::UnixConnection next;
  CHECK(Eventually([&] { return WaitsStill(next = peer.Ask()); }));
  peer.layout_known = true;
  CHECK(peer.IsTold(next));
  CHECK(std::ranges::all_of(asking, [&](os::UnixConnection& each) { return peer.IsTold(each); }));
}

TEST_CASE("A rank is refused while the model has another layout than the one that it was recorded for") {
  Peer peer;
  const LayoutDigest own = peer.model.layout()->digest();
  const auto other_layout = *model::ModelLayout::Create(peer.model.layout()->tensors(), 2 * model::kMinBlockBytes);
  const LayoutDigest other = other_layout->digest();
  // As the next run of a trainer that has made its model anew.
  const auto bring_other = [&](const VersionData& before) {
    const VersionData version{{RandomId<RunId>(), 1}, other_layout, peer.model.data(2)};
    LS_RETURN_IF_ERROR(
        peer.engine_ranks->Prepare({version, before, [](const auto&...) { return payload::DeltaChain(); }}));
    return peer.engine_ranks->prepared() ? peer.engine_ranks->Commit() : OkStatus();
  };
  const std::string why =
      " was recorded for another layout of the model; it asks for the present one and records again";
  peer.RunRank(0, [&](TestRankOptions& options) { options.layout = own; });
  RankHandle& early = peer.RunRank(1, [&](TestRankOptions& options) { options.layout = other; });
  REQUIRE(peer.Changed(2));
  CHECK_THAT(peer.Prepare(1), FailsWith(ErrorCode::kState, why));
  CHECK(Eventually([&] { return early.status().refused.load(); }));
  CHECK(Has(early.status().sentence.data(), why));
  CHECK(peer.report().attached == 1);

  early.options().layout = own;
  early.End();
  early.StartThread();
  REQUIRE(peer.Changed(1));
  REQUIRE(peer.Bring(1).ok());
  REQUIRE(Eventually([&] { return peer.ranks[0]->Serves(1) && early.Serves(1); }));

  SECTION("all, when it changes") {
    CHECK_THAT(bring_other(peer.Target(1)), FailsWith(ErrorCode::kState, why));
    CHECK(Eventually([&] { return peer.ranks[0]->status().refused && early.status().refused; }));
    CHECK(peer.engine_ranks->empty());
  }
  SECTION("but one that was recorded for that already waits for the others") {
    early.End();
    REQUIRE(peer.Changed(1));
    RankHandle& next = peer.RunRank(1, [&](TestRankOptions& options) { options.layout = other; });
    REQUIRE(peer.Changed(1));
    CHECK_THAT(bring_other(peer.Target(1)), FailsWith(ErrorCode::kState, "rank 0 "));
    CHECK(Eventually([&] { return peer.ranks[0]->status().refused.load(); }));
    RankHandle& last = peer.RunRank(0, [&](TestRankOptions& options) { options.layout = other; });
    REQUIRE(peer.Changed(1));
    REQUIRE(bring_other(peer.Target(1)).ok());
    CHECK(Eventually([&] { return next.Is(2) && last.Is(2) && next.status().serving == 1; }));
    CHECK_FALSE(next.status().refused);
  }
}

}  // namespace lockstep::engine
