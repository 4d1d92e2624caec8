// The agent's side of the rank protocol (common/wire/rank_messages.h), a thread per connected rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/os/unix_server.h"
#include "common/wire/rank_messages.h"
#include "trainer_agent/run/model_registry.h"

namespace lockstep::run {

// Answers an AWAIT_SERVED or AWAIT_CHANGES: JSON to JSON (FORMAT.md). `gone` says that the caller no longer waits.
using AnswerQuestion = std::function<Result<std::string>(wire::RankMessageType type, std::string_view question,
                                                         const std::function<bool()>& gone)>;

// Listens at once and lets ranks in. Its destruction ends every connection. A peer whose uid is neither ours nor root's
// is refused, unless it is in `group`, if there is one. REQUIRES the registry to outlive the server.
Result<std::unique_ptr<os::UnixServer>> StartRankServer(const std::string& socket_path, std::optional<gid_t> group,
                                                        ModelRegistry* registry, AnswerQuestion answer);

}  // namespace lockstep::run
