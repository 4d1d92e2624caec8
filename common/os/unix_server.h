// Connections to a socket path, each answered on a thread of its own.
#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/os/unix_listener.h"

namespace lockstep::os {

class UnixServer {
 public:
  struct Options {
    std::string path;
    std::string option = {};       // of the command line, which errors name; empty: none
    size_t max_connections = 256;  // more are closed at once
    std::optional<gid_t> group;    // of the socket, where it is not the process's own
  };
  // Has the connection as long as it runs; what it blocks in ends with kUnavailable when the server goes.
  using Handler = std::function<void(UnixServer& server, UnixConnection& connection)>;
  using AcceptFailed = std::function<void(const Status& status)>;  // accepting continues after a pause

  // Listens at once; errors as UnixListener::Create, with the option.
  static Result<std::unique_ptr<UnixServer>> Start(const Options& options, Handler handler, AcceptFailed accept_failed);
  // Ends every connection, and waits for their handlers.
  ~UnixServer();

  // For a handler: its connection becomes the caller's, and the server's end is not its end any more.
  UnixConnection Release(UnixConnection& connection);

 private:
  struct Session {
    UnixConnection connection;
    std::thread thread;
    bool finished = false;
  };

  UnixServer(UnixListener listener, size_t max_connections, Handler handler, AcceptFailed accept_failed);
  void AcceptLoop();
  Status StartServing(UnixConnection connection);
  void ReapFinished();
  void Serve(Session& session);

  UnixListener listener_;
  const size_t max_connections_;
  const Handler handler_;
  const AcceptFailed accept_failed_;
  Mutex mutex_;  // guards sessions_, each one's `finished`, and the move of its `connection`
  std::list<Session> sessions_ LS_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

// OK when `path` itself, not what a link there names, is a socket of our own user or of root: before connecting to a
// path that another program has named. kPermission otherwise; kUnavailable when there is nothing.
Status CheckSocketOwner(const std::string& path);

// OK when the peer runs as our own user or as root, or is in `group`, where one is given. kPermission names it
// otherwise, and says what it may not do, as in "export to an agent".
Status CheckPeerUser(const UnixConnection& connection, std::string_view what,
                     std::optional<gid_t> group = std::nullopt);

// The group of this name or number. kConfig: there is none.
Result<gid_t> FindGroup(const std::string& name);

}  // namespace lockstep::os
