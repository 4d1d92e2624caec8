#include "raas_receiver/targets/target_server.h"

#include <unistd.h>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/targets/rank_link.h"

namespace lockstep::targets {
namespace {

constexpr size_t kMaxPending = 256;

Status CheckPeer(const os::UnixConnection& connection) {
  LS_ASSIGN_OR_RETURN(const os::PeerCredentials peer, connection.Peer());
  if (peer.uid == 0 || peer.uid == ::geteuid()) return OkStatus();
  return {ErrorCode::kPermission,
          Cat("process ", peer.pid, " of uid ", peer.uid, " may not lend memory to a receiver of uid ", ::geteuid(),
              "; run both as one user")};
}

int64_t PeerPid(const os::UnixConnection& connection) {
  const auto peer = connection.Peer();
  return peer.ok() ? peer->pid : 0;
}

}  // namespace

Result<std::unique_ptr<TargetServer>> TargetServer::Start(const std::string& path,
                                                          std::map<std::string, EngineTargets*> models,
                                                          std::chrono::milliseconds attach_timeout) {
  LS_ASSIGN_OR_RETURN(os::UnixListener listener, os::UnixListener::Create(path));
  return std::unique_ptr<TargetServer>(new TargetServer(std::move(listener), std::move(models), attach_timeout));
}

TargetServer::TargetServer(os::UnixListener listener, std::map<std::string, EngineTargets*> models,
                           std::chrono::milliseconds attach_timeout)
    : listener_(std::move(listener)),
      models_(std::move(models)),
      attach_timeout_(attach_timeout),
      acceptor_([this] { AcceptLoop(); }) {}

TargetServer::~TargetServer() {
  listener_.Wake();
  acceptor_.join();
  {
    std::lock_guard lock(mutex_);
    for (PendingPeer& peer : pending_) peer.connection.Shutdown();
  }
  for (PendingPeer& peer : pending_) peer.thread.join();
}

void TargetServer::AcceptLoop() {
  while (true) {
    auto connection = listener_.Accept(std::chrono::milliseconds(1000));
    ReapFinished();
    if (!connection.ok()) {
      if (connection.status().code() == ErrorCode::kCancelled) return;
      if (connection.status().code() == ErrorCode::kDeadline) continue;
      telemetry::LogError("engine_accept_failed", connection.status());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    std::lock_guard lock(mutex_);
    if (pending_.size() >= kMaxPending) continue;  // closes it
    PendingPeer& peer = pending_.emplace_back(PendingPeer{.connection = *std::move(connection)});
    peer.thread = std::thread([this, &peer] { AttachPeer(peer); });
  }
}

void TargetServer::ReapFinished() {
  std::lock_guard lock(mutex_);
  for (auto at = pending_.begin(); at != pending_.end();) {
    if (at->finished) {
      at->thread.join();
      at = pending_.erase(at);
    } else {
      ++at;
    }
  }
}

void TargetServer::AttachPeer(PendingPeer& peer) {
  Result<EngineMessage> attach = ReceiveAttach(peer.connection);
  os::UnixConnection connection;
  {
    std::lock_guard lock(mutex_);
    connection = std::move(peer.connection);
  }
  const Status status = attach.ok() ? AttachRank(connection, *std::move(attach)) : attach.status();
  if (!status.ok()) {
    telemetry::LogWarn("engine_rank_refused", status, {{"pid", PeerPid(connection)}});
    SendRefusal(connection, status);
  }
  std::lock_guard lock(mutex_);
  peer.finished = true;
}

Result<EngineMessage> TargetServer::ReceiveAttach(os::UnixConnection& connection) const {
  LS_RETURN_IF_ERROR(CheckPeer(connection));
  LS_ASSIGN_OR_RETURN(EngineMessage attach, ReceiveEngineMessage(connection, attach_timeout_));
  if (attach.type == EngineMessageType::kAttach) return attach;
  return Status(ErrorCode::kProtocol, Cat("engine rank: the first message is ", Name(attach.type), " and not ATTACH"));
}

// Takes the connection where it answers OK.
Status TargetServer::AttachRank(os::UnixConnection& connection, EngineMessage attach) const {
  LS_ASSIGN_OR_RETURN(std::shared_ptr<RankLink> link, RankLink::Open(connection, std::move(attach)));
  const auto targets = models_.find(link->model());
  if (targets != models_.end()) {
    targets->second->Attach(std::move(link));
    return OkStatus();
  }
  connection = std::move(*link).TakeConnection();
  return {ErrorCode::kNotFound, Cat("engine ", link->engine(), ": no model ", link->model(), " is followed here")};
}

}  // namespace lockstep::targets
