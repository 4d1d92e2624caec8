#include "trainer_agent/publish/rank_server.h"

#include <unistd.h>

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
      // A draining agent hangs up: to the rank it is an agent that will be back.
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

Status CheckPeer(const UnixConnection& connection) {
  LS_ASSIGN_OR_RETURN(const PeerCredentials peer, connection.Peer());
  if (peer.uid == 0 || peer.uid == geteuid()) return OkStatus();
  return {ErrorCode::kPermission, Cat("process ", peer.pid, " of uid ", peer.uid, " may not export to an agent of uid ",
                                      geteuid(), "; run both as one user")};
}

}  // namespace

Result<std::unique_ptr<RankServer>> RankServer::Start(const std::string& socket_path, ModelRegistry* registry) {
  LS_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Create(socket_path));
  return std::unique_ptr<RankServer>(new RankServer(std::move(listener), registry));
}

RankServer::RankServer(UnixListener listener, ModelRegistry* registry)
    : listener_(std::move(listener)), registry_(registry), acceptor_([this] { AcceptLoop(); }) {}

RankServer::~RankServer() {
  listener_.Wake();
  acceptor_.join();
  {
    std::lock_guard lock(mutex_);
    for (Session& session : sessions_) session.connection.Shutdown();
  }
  for (Session& session : sessions_) session.thread.join();
}

void RankServer::AcceptLoop() {
  while (true) {
    auto connection = listener_.Accept(std::chrono::milliseconds(1000));
    ReapFinished();
    if (!connection.ok()) {
      if (connection.status().code() == ErrorCode::kCancelled) return;
      if (connection.status().code() == ErrorCode::kDeadline) continue;
      LogError("rank_accept_failed", connection.status());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    std::lock_guard lock(mutex_);
    if (sessions_.size() >= kMaxSessions) continue;  // closes it
    Session& session = sessions_.emplace_back(Session{.connection = *std::move(connection)});
    session.thread = std::thread([this, &session] { Serve(session); });
  }
}

void RankServer::ReapFinished() {
  std::lock_guard lock(mutex_);
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (at->finished) {
      at->thread.join();
      at = sessions_.erase(at);
    } else {
      ++at;
    }
  }
}

void RankServer::Serve(Session& session) {
  const Status status = ServeRank(session.connection);
  if (status.code() != ErrorCode::kUnavailable) {  // unavailable: the peer simply went
    LogWarn("rank_connection_ended", status, {{"pid", PeerPid(session.connection)}});
    (void)SendError(session.connection, status);
  }
  session.connection.Shutdown();
  std::lock_guard lock(mutex_);
  session.finished = true;
}

Status RankServer::ServeRank(UnixConnection& connection) {
  LS_RETURN_IF_ERROR(CheckPeer(connection));
  LS_ASSIGN_OR_RETURN(Message first, ReceiveMessage(connection, kMessageTimeout));
  LS_ASSIGN_OR_RETURN(OpenRequest request, ParseOpen(std::move(first)));
  const uint32_t rank = request.rank;
  LS_ASSIGN_OR_RETURN(const auto publisher, registry_->Open(std::move(request)));
  Log(LogLevel::kInfo, "rank_connected", {{"model", publisher->buffer().model()}, {"rank", rank}});
  Status status = SendOpened(connection, *publisher);
  while (status.ok()) {
    Result<Message> message = ReceiveMessage(connection, kForever);
    status = message.status();
    if (status.ok()) status = HandleMessage(connection, *publisher, rank, *message);
  }
  registry_->Close(publisher, rank);
  Log(LogLevel::kInfo, "rank_disconnected", {{"model", publisher->buffer().model()}, {"rank", rank}});
  return status.WithContext(Cat("model ", publisher->buffer().model(), ", rank ", rank));
}

}  // namespace lockstep
