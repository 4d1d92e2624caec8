// What ranks of an engine and the receiver say to each other, and what ATTACH and ASK lead to
// (raas_receiver/engine/ranks). The first byte of an input says how many descriptors come along, the rest is a stream
// of messages.
#include <array>

#include "common/model/model_name.h"
#include "common/os/segment.h"
#include "raas_receiver/engine/ranks/messages.h"
#include "raas_receiver/engine/ranks/rank_connection.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "tests/fuzz/stream.h"

namespace lockstep::fuzz {
namespace {

using engine::EngineMessage;
using engine::EngineMessageHeader;
using engine::EngineMessageType;

constexpr std::chrono::milliseconds kTimeout{1000};
std::span<const int> Descriptors(size_t count) {
  static const os::MappedSegment memory = *os::CreateMemfdSegment("fuzz", 128);
  static const std::array<int, 3> fds = {memory.fd(), memory.fd(), memory.fd()};
  return std::span(fds).first(count);
}

Bytes Encoded(EngineMessageType type, const VersionRef& held, ByteView body) {
  Bytes message = Copy(AsBytes(EngineMessageHeader{.type = static_cast<uint16_t>(type),
                                                   .body_bytes = static_cast<uint32_t>(body.size()),
                                                   .run = held.run,
                                                   .version = held.version}));
  AppendBytes(message, body);
  return message;
}

// A rank that was let in: what it described is there, and every parameter lies inside.
Steps CheckRank(engine::RankConnection& rank) {
  const engine::RankDescription& said = rank.description();
  LS_FUZZ_RULE(said.rank < said.world);
  for (const engine::EngineParameter& parameter : said.parameters) {
    LS_FUZZ_RULE(parameter.offset + engine::ExtentBytes(parameter) <= said.memories[parameter.memory]);
  }
  return {said.rank == 1, said.world > 2, rank.claim().version > 1'000'000};
}

// False: it was refused.
bool TestAttach(os::UnixConnection& connection, EngineMessage attach, Steps& steps) {
  const auto rank = engine::RankConnection::Open(connection, std::move(attach));
  if (!rank.ok()) CheckRefusal(rank.status(), {ErrorCode::kBadData, ErrorCode::kProtocol});
  if (rank.ok()) steps = CheckRank(**rank);
  return rank.ok();
}

// False: it was refused.
bool TestAsk(const EngineMessage& ask) {
  const Result<std::string> model = engine::ReadAsk(ask);
  if (!model.ok()) CheckRefusal(model.status(), {ErrorCode::kBadData, ErrorCode::kProtocol});
  if (model.ok()) LS_FUZZ_RULE(model::CheckModelName(*model).ok());
  return model.ok();
}

// "ATTACH" with the description of a rank of FORMAT.md.
Bytes Attach(const std::string& rank) {
  const std::string description = DocumentBlock("raas_receiver/engine/placement/description/FORMAT.md", "json", rank);
  const std::string body =
      R"({"peer": "engine_rank/1.0 protocol=1", "model": "actor", "engine": "tp2", "group": 1, "incarnation": "f00", )"
      R"("gated": false, "state": "reading", "description": )" +
      description + "}";
  return Encoded(EngineMessageType::kAttach, {SmallRun(), 41}, AsBytes(std::string_view(body)));
}

Bytes Seed(uint8_t fds, ByteView stream) {
  Bytes seed(1, std::byte{fds});
  AppendBytes(seed, stream);
  return seed;
}

}  // namespace

std::vector<Bytes> Seeds() {
  Bytes cycle = Encoded(EngineMessageType::kPaused, {}, {});
  AppendBytes(cycle, HexBlock("raas_receiver/engine/ranks/FORMAT.md", "serve"));
  AppendBytes(cycle, Encoded(EngineMessageType::kServing, {SmallRun(), 42}, {}));
  const Bytes refused = Encoded(EngineMessageType::kRefused, {}, AsBytes(std::string_view("no such model")));
  const Bytes ask = HexBlock("raas_receiver/engine/ranks/FORMAT.md", "ask");
  return {Seed(0, Attach("rank 0")), Seed(0, Attach("rank 1")), Seed(0, cycle), Seed(0, refused), Seed(0, ask)};
}

void TestInput(ByteView input) {
  if (input.empty() || input.size() > kMostStreamBytes) return;
  ByteReader stream(input.subspan(1));
  os::UnixConnection connection = StreamOf(stream.rest(), Descriptors(static_cast<size_t>(input[0]) & 3));
  Steps steps;
  bool refused = false;
  while (connection.valid()) {
    auto message = engine::ReceiveEngineMessage(connection, kTimeout);
    if (!message.ok()) {
      CheckRefusal(message.status(), {ErrorCode::kProtocol, ErrorCode::kUnavailable});
      break;
    }
    const Bytes& body = message->body;
    LS_FUZZ_RULE(body.size() <= engine::kMaxAttachBody);
    ByteView sent;
    LS_FUZZ_RULE(stream.TakeBytes(sizeof(EngineMessageHeader) + body.size(), sent));
    LS_FUZZ_RULE(Copy(sent) == Encoded(message->type, message->held, body));
    if (message->type == EngineMessageType::kAsk) refused = !TestAsk(*message) || refused;
    if (message->type != EngineMessageType::kAttach) continue;
    refused = !TestAttach(connection, *std::move(message), steps) || refused;
  }
  if (stream.empty() && !refused) Accepted(input, steps);
}

}  // namespace lockstep::fuzz
