// How every connection of a trainer's process to an agent begins.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"
#include "common/os/unix_socket.h"
#include "common/wire/rank_messages.h"

namespace lockstep::client {

// Connects, checks which user listens, and exchanges HELLO. kUnavailable: no agent listens there, or it closed.
// kPermission: the agent does not let this user, or may be an impostor. kProtocol: it is of another protocol.
Result<os::UnixConnection> ConnectToAgent(const std::string& socket_path, std::chrono::milliseconds connect_timeout,
                                          std::chrono::milliseconds answer_timeout, os::Interrupted interrupted);

// The answer to a message that was sent with the result `sent`.
Result<wire::RankMessage> AnswerTo(os::UnixConnection& connection, const Status& sent,
                                   std::chrono::milliseconds timeout);

// The error that `message` carries, or kProtocol where it is another answer than was due.
Status Unexpected(const wire::RankMessage& message);

}  // namespace lockstep::client
