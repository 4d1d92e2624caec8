#include "raas_receiver/engine/ranks/rank_server.h"

#include <semaphore>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_limit.h"
#include "common/telemetry/peer_log.h"
#include "raas_receiver/engine/ranks/rank_connection.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;
using Models = std::map<std::string, FollowedModel>;

constexpr milliseconds kLookAgain{200};  // for a layout that a rank waits for

Result<EngineMessage> ReceiveFirst(os::UnixConnection& connection, milliseconds timeout) {
  LS_RETURN_IF_ERROR(os::CheckPeerUser(connection, "attach to a receiver"));
  LS_ASSIGN_OR_RETURN(EngineMessage first, ReceiveEngineMessage(connection, timeout));
  if (first.type == EngineMessageType::kAttach || first.type == EngineMessageType::kAsk) return first;
  return Status(ErrorCode::kProtocol,
                Cat("engine rank: the first message is ", Name(first.type), " and not ATTACH or ASK"));
}

Status NotFollowed(const std::string& model) {
  return {ErrorCode::kNotFound, Cat("no model ", model, " is followed here")};
}

// Takes the connection where it answers OK.
Status AttachRank(os::UnixConnection& connection, EngineMessage attach, const Models& models) {
  LS_ASSIGN_OR_RETURN(std::shared_ptr<RankConnection> rank, RankConnection::Open(connection, std::move(attach)));
  const auto model = models.find(rank->model());
  Result<std::shared_ptr<EngineRanks>> ranks = NotFollowed(rank->model()).WithContext(Cat("engine ", rank->engine()));
  if (model != models.end()) ranks = model->second.find_ranks(*rank);
  if (ranks.ok()) {
    (*ranks)->Attach(std::move(rank));
  } else {
    connection = std::move(*rank).TakeConnection();
  }
  return ranks.status();
}

// Sends LAYOUT once the layout is known. OK, too, when the rank goes before, or the server does.
Status AnswerAsk(os::UnixConnection& connection, const EngineMessage& ask, const Models& models, milliseconds timeout) {
  LS_ASSIGN_OR_RETURN(const std::string name, ReadAsk(ask));
  const auto model = models.find(name);
  if (model == models.end()) return NotFollowed(name);
  auto layout = model->second.layout();
  while (!layout.ok()) {
    std::byte more;
    const Status waited = connection.Receive({&more, 1}, nullptr, kLookAgain);
    if (waited.ok()) return {ErrorCode::kProtocol, "engine rank: ASK is not the last message"};
    if (waited.code() == ErrorCode::kUnavailable) return OkStatus();
    if (waited.code() != ErrorCode::kDeadline) return waited;
    layout = model->second.layout();
  }
  (void)SendEngineMessage(connection, {.type = EngineMessageType::kLayout, .body = LayoutBody(**layout)}, {}, timeout);
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<os::UnixServer>> StartRankServer(const std::string& path, Models models,
                                                        milliseconds attach_timeout) {
  const auto log = std::make_shared<telemetry::PeerLog>("engine_rank_refused", path);
  const auto reasons = std::make_shared<telemetry::LogLimit>();  // of ranks that try again
  const auto asking = std::make_shared<std::counting_semaphore<>>(kMostAsking);
  const auto answer = [=, models = std::move(models)](os::UnixServer& server, os::UnixConnection& peer) {
    Result<EngineMessage> first = ReceiveFirst(peer, attach_timeout);
    Status status = first.status();
    const bool asks = first.ok() && first->type == EngineMessageType::kAsk;
    if (asks && asking->try_acquire()) {
      status = AnswerAsk(peer, *first, models, attach_timeout);
      asking->release();
    } else if (asks) {
      status = {ErrorCode::kResourceExhausted, "too many engine ranks wait for a layout already"};
    }
    os::UnixConnection connection = server.Release(peer);
    if (first.ok() && !asks) status = AttachRank(connection, *std::move(first), models);
    if (status.ok()) return;
    if (reasons->Count(status.message()) != 0) log->Failed(connection, status);
    SendRefusal(connection, status);
  };
  return os::UnixServer::Start({.path = path, .option = "--engine-socket"}, answer,
                               [](const Status& status) { telemetry::LogError("engine_accept_failed", status); });
}

}  // namespace lockstep::engine
