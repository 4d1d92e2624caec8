// Where engine ranks attach, and ask for a model's layout: a unix socket, and what each model has for them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/os/unix_server.h"
#include "raas_receiver/engine/ranks/engine_ranks.h"

namespace lockstep::engine {

// What ranks are to describe themselves for. An error: that is not known yet.
using FindLayout = std::function<Result<std::shared_ptr<const model::ModelLayout>>()>;

// A model that is followed. Its functions may be called by any thread.
struct FollowedModel {
  // Where a rank is to attach, or why it is refused.
  std::function<Result<std::shared_ptr<EngineRanks>>(const RankConnection& rank)> find_ranks;
  FindLayout layout;
};

// How many ranks may wait for a layout; more are refused. They keep no rank from attaching.
inline constexpr ptrdiff_t kMostAsking = 128;

// Listens at `path`. Gives each rank that attaches to the engine that its model finds, which outlives the server. Each
// rank that asks waits until its model's layout is known. A peer of another user than this process' or root's is
// refused, as is a model that no session follows, and one that has sent neither ATTACH nor ASK within `attach_timeout`
// is dropped. When the server goes no more ranks are taken; those attached stay, and those that ask see their
// connection end. Errors as UnixListener::Create.
Result<std::unique_ptr<os::UnixServer>> StartRankServer(
    const std::string& path, std::map<std::string, FollowedModel> models,
    std::chrono::milliseconds attach_timeout = std::chrono::seconds(10));

}  // namespace lockstep::engine
