#include "trainer_agent/run/rank_server.h"

#include <poll.h>

#include <algorithm>
#include <vector>

#include "common/base/text.h"
#include "common/os/event.h"
#include "common/peer/peer.h"
#include "common/telemetry/log.h"
#include "common/telemetry/peer_log.h"
#include "common/wire/rank_messages.h"

namespace lockstep::run {
namespace {

constexpr std::chrono::milliseconds kMessageTimeout{30'000};
constexpr std::chrono::milliseconds kZero{0};
constexpr size_t kMaxSessions = 2 * wire::kMaxRanks;

Result<OpenRequest> ParseOpen(wire::RankMessage message) {
  if (message.type != wire::RankMessageType::kOpen)
    return Status(ErrorCode::kProtocol, "rank protocol: a rank begins with HELLO, then OPEN");
  LS_ASSIGN_OR_RETURN(wire::Opening open, wire::DecodeOpen(message.body));
  return OpenRequest{.model = std::move(open.model),
                     .layout = std::move(open.layout),
                     .rank = open.rank,
                     .ranks = open.ranks,
                     .run = open.run,
                     .share = std::move(open.share),
                     .fds = std::move(message.fds)};
}

Status SendOpened(os::UnixConnection& connection, const ModelPublisher& publisher) {
  const DoubleBuffer& buffer = publisher.buffer();
  const wire::OpenedBody opened{.run = buffer.run(),
                                .newest_version = publisher.newest_version(),
                                .image_bytes = buffer.image_bytes(),
                                .data_offset = buffer.data_offset(),
                                .control_bytes = ControlSegment::BytesFor(*buffer.layout())};
  return wire::SendRankMessage(connection, wire::RankMessageType::kOpened, AsBytes(opened), buffer.fds(),
                               kMessageTimeout);
}

Status SendError(os::UnixConnection& connection, const Status& status) {
  return wire::SendRankMessage(connection, wire::RankMessageType::kError, wire::EncodeError(status), {},
                               kMessageTimeout);
}

Status SendOutcome(os::UnixConnection& connection, const ModelPublisher& publisher, const Status& status) {
  if (!status.ok()) return SendError(connection, status);
  return wire::SendRankMessage(connection, wire::RankMessageType::kDone,
                               AsBytes(wire::VersionBody{publisher.newest_version()}), {}, kMessageTimeout);
}

void LogVersion(std::string_view event, const ModelPublisher& publisher, uint32_t rank, Version version) {
  telemetry::Log(telemetry::LogLevel::kDebug, event,
                 {{"model", publisher.buffer().model()}, {"rank", rank}, {"version", version}});
}

// Waits until publisher.Begin may answer `turn` otherwise. kUnavailable: the rank has gone.
Status AwaitTurn(const os::UnixConnection& connection, os::Event& woken, const ModelPublisher::Turn& turn) {
  using std::chrono::steady_clock;
  std::vector<pollfd> fds{{connection.fd(), POLLRDHUP, 0}, {woken.fd(), POLLIN, 0}};
  fds.push_back({connection.peer_process()->pidfd(), POLLIN, 0});
  for (const auto& process : turn.processes) fds.push_back({process->pidfd(), POLLIN, 0});
  std::chrono::milliseconds wait = os::kForever;
  if (turn.until != steady_clock::time_point::max()) {
    wait = std::max(std::chrono::ceil<std::chrono::milliseconds>(turn.until - steady_clock::now()), kZero);
  }
  (void)::poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
  if (connection.PeerGone()) return {ErrorCode::kUnavailable, "the rank has gone while it waited"};
  woken.Reset();
  return OkStatus();
}

// Asks until it is the rank's turn, and returns the slot.
Result<size_t> AwaitSlot(const os::UnixConnection& connection,
                         const std::function<Result<ModelPublisher::Turn>(std::weak_ptr<const void>, Wake)>& ask) {
  const auto woken = std::make_shared<os::Event>();
  if (woken->fd() < 0) {
    return Status(ErrorCode::kResourceExhausted, "the agent has no descriptor left; raise its LimitNOFILE");
  }
  const auto wake = [weak = std::weak_ptr(woken)] {
    if (const auto event = weak.lock()) event->Set();
  };
  while (true) {
    LS_ASSIGN_OR_RETURN(const ModelPublisher::Turn turn, ask(woken, wake));
    if (turn.slot) return *turn.slot;
    LS_RETURN_IF_ERROR(AwaitTurn(connection, *woken, turn));
  }
}

// Answers one message of a rank that is let in. An error here ends the connection; refusals travel as kError messages.
Status HandleMessage(os::UnixConnection& connection, ModelPublisher& publisher, uint32_t rank,
                     const wire::RankMessage& message) {
  ByteReader reader(message.body);
  wire::VersionBody body;
  if (!reader.Take(body)) return {ErrorCode::kProtocol, "rank protocol: a message without a version"};
  switch (message.type) {
    case wire::RankMessageType::kBegin: {
      const std::string guard(AsText(reader.rest()));
      const Result<size_t> slot = AwaitSlot(connection, [&](std::weak_ptr<const void> waiting, Wake wake) {
        return publisher.Begin(rank, body.version, guard, std::move(waiting), std::move(wake));
      });
      // A draining agent closes: to the rank it is an agent that will be back.
      const ErrorCode why = slot.status().code();
      if (why == ErrorCode::kCancelled || why == ErrorCode::kUnavailable) {
        return {ErrorCode::kUnavailable, slot.status().message()};
      }
      if (!slot.ok()) return SendError(connection, slot.status());
      LogVersion("version_begun", publisher, rank, body.version);
      return wire::SendRankMessage(connection, wire::RankMessageType::kBegun,
                                   AsBytes(wire::BegunBody{.slot = static_cast<uint32_t>(*slot)}), {}, kMessageTimeout);
    }
    case wire::RankMessageType::kBatches:
    case wire::RankMessageType::kUnchanged: {
      LS_ASSIGN_OR_RETURN(const auto batches, wire::DecodeBatches(reader.rest()));
      publisher.BatchesDone(rank, body.version, batches,
                            message.type == wire::RankMessageType::kBatches ? Content::kNew : Content::kUnchanged);
      return OkStatus();
    }
    case wire::RankMessageType::kCommit: {
      Status done = publisher.Commit(rank, body.version, std::string(AsText(reader.rest())));
      if (done.ok() && !publisher.IsSettled(rank, body.version)) {
        const auto outcome = AwaitSlot(connection, [&](std::weak_ptr<const void> waiting, Wake wake) {
          return publisher.Outcome(rank, body.version, std::move(waiting), std::move(wake));
        });
        done = outcome.status();
      }
      if (done.code() == ErrorCode::kCancelled || done.code() == ErrorCode::kUnavailable) {
        return {ErrorCode::kUnavailable, done.message()};
      }
      if (done.ok()) LogVersion("rank_finished", publisher, rank, body.version);
      return SendOutcome(connection, publisher, done);
    }
    case wire::RankMessageType::kAbort:
      return SendOutcome(connection, publisher, publisher.Abort(rank, body.version, CleanText(AsText(reader.rest()))));
    default:
      return {ErrorCode::kProtocol, Cat("rank protocol: unexpected message of type ", static_cast<int>(message.type))};
  }
}

// Answers the HELLO in `message` in kind before it is checked, so that both ends can say which of them is too old.
Status ExchangeHello(os::UnixConnection& connection, const wire::RankMessage& message) {
  const Result<peer::Peer> plugin = peer::ParsePeer(AsText(message.body));
  if (!plugin.ok()) return plugin.status();
  const std::string line = peer::SelfLine("trainer_agent");
  LS_RETURN_IF_ERROR(wire::SendRankMessage(connection, wire::RankMessageType::kHello, AsBytes(std::string_view(line)),
                                           {}, kMessageTimeout));
  return peer::CheckPeer("trainer_agent", AsText(message.body));
}

// The message behind HELLO: what the connection is for.
Result<wire::RankMessage> ReceiveFirst(os::UnixConnection& connection) {
  LS_ASSIGN_OR_RETURN(wire::RankMessage message, wire::ReceiveRankMessage(connection, kMessageTimeout));
  if (message.type != wire::RankMessageType::kHello) {
    return Status(ErrorCode::kProtocol,
                  Cat("rank protocol: the first message is of type ", static_cast<int>(message.type), ", not HELLO"));
  }
  LS_RETURN_IF_ERROR(ExchangeHello(connection, message));
  return wire::ReceiveRankMessage(connection, kMessageTimeout);
}

Status Answer(os::UnixConnection& connection, const wire::RankMessage& message, const AnswerQuestion& answer) {
  const auto answered = answer(message.type, AsText(message.body), [&] { return connection.PeerGone(); });
  if (!answered.ok()) return SendError(connection, answered.status());
  return wire::SendRankMessage(connection, wire::RankMessageType::kAnswer, AsBytes(std::string_view(*answered)), {},
                               kMessageTimeout);
}

Status ServeConnection(os::UnixConnection& connection, std::optional<gid_t> group, ModelRegistry& registry,
                       const AnswerQuestion& answer) {
  LS_RETURN_IF_ERROR(os::CheckPeerUser(connection, "export to an agent", group));
  LS_RETURN_IF_ERROR(connection.WatchPeerProcess());
  LS_ASSIGN_OR_RETURN(wire::RankMessage first, ReceiveFirst(connection));
  if (first.type == wire::RankMessageType::kAwaitServed || first.type == wire::RankMessageType::kAwaitChanges) {
    return Answer(connection, first, answer);
  }
  LS_ASSIGN_OR_RETURN(OpenRequest request, ParseOpen(std::move(first)));
  const uint32_t rank = request.rank;
  request.gone = [&connection] { return connection.PeerGone(); };
  LS_ASSIGN_OR_RETURN(const auto publisher, registry.Open(std::move(request)));
  telemetry::Log(telemetry::LogLevel::kInfo, "rank_connected",
                 {{"model", publisher->buffer().model()}, {"rank", rank}});
  Status status = SendOpened(connection, *publisher);
  while (status.ok()) {
    Result<wire::RankMessage> message = wire::ReceiveRankMessage(connection, os::kForever);
    status = message.status();
    if (status.ok()) status = HandleMessage(connection, *publisher, rank, *message);
  }
  registry.Close(publisher, rank, connection.peer_process());
  telemetry::Log(telemetry::LogLevel::kInfo, "rank_disconnected",
                 {{"model", publisher->buffer().model()}, {"rank", rank}});
  return status.WithContext(Cat("model ", publisher->buffer().model(), ", rank ", rank));
}

void Serve(os::UnixConnection& connection, std::optional<gid_t> group, ModelRegistry& registry,
           const AnswerQuestion& answer, telemetry::PeerLog& log) {
  const Status status = ServeConnection(connection, group, registry, answer);
  if (status.ok() || status.code() == ErrorCode::kUnavailable) return;  // the peer simply closed
  log.Failed(connection, status);
  (void)SendError(connection, status);
}

}  // namespace

Result<std::unique_ptr<os::UnixServer>> StartRankServer(const std::string& socket_path, std::optional<gid_t> group,
                                                        ModelRegistry* registry, AnswerQuestion answer) {
  const auto log = std::make_shared<telemetry::PeerLog>("rank_connection_failed", socket_path);
  return os::UnixServer::Start(
      {.path = socket_path, .option = "--socket", .max_connections = kMaxSessions, .group = group},
      [registry, group, log, answer = std::move(answer)](os::UnixServer&, os::UnixConnection& connection) {
        Serve(connection, group, *registry, answer, *log);
      },
      [](const Status& status) { telemetry::LogError("rank_accept_failed", status); });
}

}  // namespace lockstep::run
