// The local path of pulls (common/wire/FORMAT.md), for receivers of this host.
//
// The server hands out descriptors and no bytes: of the slot that holds a version, and of the files of deltas. Each
// connection costs a thread. A connection keeps its pull from expiring only when the receiver asks for something, and
// never holds the trainer up.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/os/unix_server.h"
#include "trainer_agent/serve/pull_table.h"

namespace lockstep::serve {

struct LocalServerOptions {
  std::string path;
  std::chrono::milliseconds hello_timeout{10'000};
  std::chrono::milliseconds idle_timeout{120'000};  // between requests
  std::chrono::milliseconds send_timeout{30'000};   // for one answer
};

// Listens and serves at once, until it is destroyed; descriptors already handed out stay good. A peer whose uid is
// neither ours nor root's is refused. kUnavailable, naming the path, when it is in use. REQUIRES the table to outlive
// the server.
Result<std::unique_ptr<os::UnixServer>> StartLocalServer(const LocalServerOptions& options, PullTable* pulls);

}  // namespace lockstep::serve
