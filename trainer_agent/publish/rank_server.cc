#include "trainer_agent/publish/rank_server.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kMessageTimeout{30'000};
constexpr size_t kMaxSessions = 2 * kMaxRanks;

Result<OpenRequest> ParseOpen(Message message) {
  const Status malformed{ErrorCode::kProtocol, "rank protocol: a malformed OPEN"};
  if (message.type != RankMessage::kOpen)
    return Status(ErrorCode::kProtocol, "rank protocol: the first message is not OPEN");
  ByteReader reader(message.body);
  OpenBody open;
  ByteView model;
  ByteView layout;
  if (!reader.Take(open) || !reader.TakeBytes(open.model_bytes, model) ||
      !reader.TakeBytes(open.layout_bytes, layout) || !reader.empty() || open.ranks > kMaxRanks) {
    return malformed;
  }
  OpenRequest request{.model = std::string(AsText(model)),
                      .rank = open.rank,
                      .ranks = open.ranks,
                      .run = open.run,
                      .fds = std::move(message.fds)};
  LS_ASSIGN_OR_RETURN(request.layout, ModelLayout::Decode(layout));
  return request;
}

Status SendOpened(UnixConnection& connection, const ModelPublisher& publisher) {
  const DoubleBuffer& buffer = publisher.buffer();
  const OpenedBody opened{.run = buffer.run(),
                          .newest_version = publisher.newest_version(),
                          .image_bytes = buffer.image_bytes(),
                          .data_offset = buffer.data_offset(),
                          .control_bytes = ControlSegment::BytesFor(*buffer.layout())};
  return SendMessage(connection, RankMessage::kOpened, AsBytes(opened), buffer.fds(), kMessageTimeout);
}

Status SendError(UnixConnection& connection, const Status& status) {
  return SendMessage(connection, RankMessage::kError, EncodeError(status), {}, kMessageTimeout);
}

Status SendOutcome(UnixConnection& connection, const ModelPublisher& publisher, const Status& status) {
  if (!status.ok()) return SendError(connection, status);
  return SendMessage(connection, RankMessage::kDone, AsBytes(VersionBody{publisher.newest_version()}), {},
                     kMessageTimeout);
}

Result<std::vector<StridedRange>> ParseRanges(ByteReader reader) {
  if (reader.rest().size() % sizeof(StridedRange) != 0) {
    return Status(ErrorCode::kProtocol, "rank protocol: malformed ranges");
  }
  std::vector<StridedRange> ranges(reader.rest().size() / sizeof(StridedRange));
  for (StridedRange& range : ranges) reader.Take(range);
  return ranges;
}

// Answers one message of a rank that is let in. An error here ends the connection; refusals travel as kError messages.
Status HandleMessage(UnixConnection& connection, ModelPublisher& publisher, uint32_t rank, const Message& message) {
  ByteReader reader(message.body);
  VersionBody body;
  if (!reader.Take(body)) return {ErrorCode::kProtocol, "rank protocol: a message without a version"};
  switch (message.type) {
    case RankMessage::kBegin: {
      const Result<size_t> half = publisher.Begin(rank, body.version);
      // A draining agent closes: to the rank it is an agent that will be back.
      if (half.status().code() == ErrorCode::kCancelled) return {ErrorCode::kUnavailable, half.status().message()};
      if (!half.ok()) return SendError(connection, half.status());
      return SendMessage(connection, RankMessage::kBegun, AsBytes(BegunBody{.half = static_cast<uint32_t>(*half)}), {},
                         kMessageTimeout);
    }
    case RankMessage::kRanges:
    case RankMessage::kUnchanged: {
      LS_ASSIGN_OR_RETURN(const auto ranges, ParseRanges(reader));
      publisher.RangesDone(rank, body.version, ranges,
                           message.type == RankMessage::kRanges ? Content::kNew : Content::kUnchanged);
      return OkStatus();
    }
    case RankMessage::kCommit:
      return SendOutcome(connection, publisher, publisher.Commit(rank, body.version));
    case RankMessage::kAbort:
      return SendOutcome(connection, publisher, publisher.Abort(rank, body.version, CleanText(AsText(reader.rest()))));
    default:
      return {ErrorCode::kProtocol, Cat("rank protocol: unexpected message of type ", static_cast<int>(message.type))};
  }
}

int64_t PeerPid(const UnixConnection& connection) {
  const auto peer = connection.Peer();
  return peer.ok() ? peer->pid : 0;
}

Status ServeRank(UnixConnection& connection, ModelRegistry& registry) {
  LS_RETURN_IF_ERROR(CheckPeerUser(connection, "export to an agent"));
  LS_ASSIGN_OR_RETURN(Message first, ReceiveMessage(connection, kMessageTimeout));
  LS_ASSIGN_OR_RETURN(OpenRequest request, ParseOpen(std::move(first)));
  const uint32_t rank = request.rank;
  LS_ASSIGN_OR_RETURN(const auto publisher, registry.Open(std::move(request)));
  Log(LogLevel::kInfo, "rank_connected", {{"model", publisher->buffer().model()}, {"rank", rank}});
  Status status = SendOpened(connection, *publisher);
  while (status.ok()) {
    Result<Message> message = ReceiveMessage(connection, kForever);
    status = message.status();
    if (status.ok()) status = HandleMessage(connection, *publisher, rank, *message);
  }
  registry.Close(publisher, rank);
  Log(LogLevel::kInfo, "rank_disconnected", {{"model", publisher->buffer().model()}, {"rank", rank}});
  return status.WithContext(Cat("model ", publisher->buffer().model(), ", rank ", rank));
}

void Serve(UnixConnection& connection, ModelRegistry& registry) {
  const Status status = ServeRank(connection, registry);
  if (status.code() == ErrorCode::kUnavailable) return;  // the peer simply closed
  LogWarn("rank_connection_failed", status, {{"pid", PeerPid(connection)}});
  (void)SendError(connection, status);
}

}  // namespace

Result<std::unique_ptr<RankServer>> RankServer::Start(const std::string& socket_path, ModelRegistry* registry) {
  std::unique_ptr<RankServer> server(new RankServer);
  LS_ASSIGN_OR_RETURN(server->server_, UnixServer::Start(
                                           {.path = socket_path, .max_connections = kMaxSessions},
                                           [registry](UnixConnection& connection) { Serve(connection, *registry); },
                                           [](const Status& status) { LogError("rank_accept_failed", status); }));
  return server;
}

}  // namespace lockstep
