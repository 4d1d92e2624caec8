#include "raas_receiver/targets/target_server.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_limit.h"
#include "common/telemetry/peer_log.h"
#include "raas_receiver/targets/rank_connection.h"

namespace lockstep::targets {
namespace {

using Models = std::map<std::string, FindTargets>;

Result<EngineMessage> ReceiveAttach(os::UnixConnection& connection, std::chrono::milliseconds timeout) {
  LS_RETURN_IF_ERROR(os::CheckPeerUser(connection, "attach to a receiver"));
  LS_ASSIGN_OR_RETURN(EngineMessage attach, ReceiveEngineMessage(connection, timeout));
  if (attach.type == EngineMessageType::kAttach) return attach;
  return Status(ErrorCode::kProtocol, Cat("engine rank: the first message is ", Name(attach.type), " and not ATTACH"));
}

// Takes the connection where it answers OK.
Status AttachRank(os::UnixConnection& connection, EngineMessage attach, const Models& models) {
  LS_ASSIGN_OR_RETURN(std::shared_ptr<RankConnection> rank, RankConnection::Open(connection, std::move(attach)));
  const auto model = models.find(rank->model());
  Result<std::shared_ptr<EngineTargets>> targets =
      Status(ErrorCode::kNotFound, Cat("engine ", rank->engine(), ": no model ", rank->model(), " is followed here"));
  if (model != models.end()) targets = model->second(*rank);
  if (targets.ok()) {
    (*targets)->Attach(std::move(rank));
  } else {
    connection = std::move(*rank).TakeConnection();
  }
  return targets.status();
}

}  // namespace

Result<std::unique_ptr<os::UnixServer>> StartTargetServer(const std::string& path, Models models,
                                                          std::chrono::milliseconds attach_timeout) {
  const auto log = std::make_shared<telemetry::PeerLog>("engine_rank_refused", path);
  const auto reasons = std::make_shared<telemetry::LogLimit>();  // of ranks that try again
  const auto attach_peer = [models = std::move(models), attach_timeout, log, reasons](os::UnixServer& server,
                                                                                      os::UnixConnection& peer) {
    Result<EngineMessage> attach = ReceiveAttach(peer, attach_timeout);
    os::UnixConnection connection = server.Release(peer);
    const Status status = attach.ok() ? AttachRank(connection, *std::move(attach), models) : attach.status();
    if (status.ok()) return;
    if (reasons->Count(status.message()) != 0) log->Failed(connection, status);
    SendRefusal(connection, status);
  };
  return os::UnixServer::Start({.path = path, .option = "--engine-socket"}, attach_peer,
                               [](const Status& status) { telemetry::LogError("engine_accept_failed", status); });
}

}  // namespace lockstep::targets
