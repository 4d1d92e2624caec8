#include "export_plugin/client/agent_connection.h"

#include "common/base/text.h"
#include "common/peer/peer.h"

namespace lockstep::client {
namespace {

Status SayHello(os::UnixConnection& connection, std::chrono::milliseconds send_timeout,
                std::chrono::milliseconds answer_timeout) {
  const std::string line = peer::SelfLine("export_plugin");
  const Status sent = wire::SendRankMessage(connection, wire::RankMessageType::kHello, AsBytes(std::string_view(line)),
                                            {}, send_timeout);
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply, AnswerTo(connection, sent, answer_timeout));
  if (reply.type != wire::RankMessageType::kHello) return Unexpected(reply);
  return peer::CheckPeer("export_plugin", AsText(reply.body));
}

}  // namespace

Result<os::UnixConnection> ConnectToAgent(const std::string& socket_path, std::chrono::milliseconds connect_timeout,
                                          std::chrono::milliseconds answer_timeout, os::Interrupted interrupted) {
  Result<os::UnixConnection> connection = os::UnixConnect(socket_path, connect_timeout, std::move(interrupted));
  if (connection.status().code() == ErrorCode::kPermission) {
    return Status(ErrorCode::kPermission,
                  Cat(connection.status().message(), "; the agent's --trainer-group names the group that may"));
  }
  LS_RETURN_IF_ERROR(connection);
  connection->KeepFromChildren();
  Status status = os::CheckListener(*connection, socket_path);
  if (status.ok()) status = SayHello(*connection, connect_timeout, answer_timeout);
  if (status.ok()) return connection;
  connection->Shutdown();  // a process that was forked off meanwhile may hold the descriptor
  return status;
}

// An agent that refuses this peer does not read on: its answer explains more than a broken pipe.
Result<wire::RankMessage> AnswerTo(os::UnixConnection& connection, const Status& sent,
                                   std::chrono::milliseconds timeout) {
  Result<wire::RankMessage> reply = wire::ReceiveRankMessage(connection, timeout);
  if (sent.ok() || (reply.ok() && reply->type == wire::RankMessageType::kError)) return reply;
  return sent;
}

Status Unexpected(const wire::RankMessage& message) {
  if (message.type == wire::RankMessageType::kError) return wire::DecodeError(message.body);
  return {ErrorCode::kProtocol, Cat("rank protocol: unexpected answer of type ", static_cast<int>(message.type))};
}

}  // namespace lockstep::client
