#include "common/os/unix_server.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <vector>

#include "common/base/text.h"

namespace lockstep::os {
namespace {

constexpr std::chrono::milliseconds kReapInterval{1000};
constexpr std::chrono::milliseconds kPauseAfterFailure{100};
constexpr std::chrono::minutes kReportInterval{1};  // a peer may have connecting fail as often as it likes

constexpr size_t kMostGroupBytes = size_t{16} << 20;  // of one group's entry, with its members

}  // namespace

Result<std::unique_ptr<UnixServer>> UnixServer::Start(const Options& options, Handler handler,
                                                      AcceptFailed accept_failed) {
  Result<UnixListener> listener = UnixListener::Create(options.path, options.group);
  if (!listener.ok() && options.option.empty()) return listener.status();
  if (!listener.ok()) return listener.status().WithContext(options.option);
  return std::unique_ptr<UnixServer>(
      new UnixServer(*std::move(listener), options.max_connections, std::move(handler), std::move(accept_failed)));
}

UnixServer::UnixServer(UnixListener listener, size_t max_connections, Handler handler, AcceptFailed accept_failed)
    : listener_(std::move(listener)),
      max_connections_(max_connections),
      handler_(std::move(handler)),
      accept_failed_(std::move(accept_failed)),
      acceptor_([this] { AcceptLoop(); }) {}

UnixServer::~UnixServer() {
  listener_.Wake();
  acceptor_.join();
  {
    MutexLock lock(mutex_);
    for (Session& session : sessions_) session.connection.Shutdown();
  }
  for (Session& session : sessions_) session.thread.join();
}

UnixConnection UnixServer::Release(UnixConnection& connection) {
  MutexLock lock(mutex_);
  return std::move(connection);
}

void UnixServer::AcceptLoop() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point quiet_until{};
  const auto report = [&](const Status& status) {
    if (Clock::now() >= quiet_until) {
      quiet_until = Clock::now() + kReportInterval;
      accept_failed_(status);
    }
    std::this_thread::sleep_for(kPauseAfterFailure);
  };
  while (true) {
    auto connection = listener_.Accept(kReapInterval);
    ReapFinished();
    if (!connection.ok()) {
      if (connection.status().code() == ErrorCode::kCancelled) return;
      if (connection.status().code() == ErrorCode::kDeadline) continue;
      report(connection.status());
      continue;
    }
    if (const Status served = StartServing(*std::move(connection)); !served.ok()) report(served);
  }
}

// Above the limit, and after an error, the connection is closed.
Status UnixServer::StartServing(UnixConnection connection) {
  MutexLock lock(mutex_);
  if (sessions_.size() >= max_connections_) return OkStatus();
  Session& session = sessions_.emplace_back(Session{.connection = std::move(connection)});
  try {
    session.thread = std::thread([this, &session] { Serve(session); });
    return OkStatus();
  } catch (const std::system_error& error) {
    sessions_.pop_back();
    return {ErrorCode::kResourceExhausted, Cat("a connection was closed, for it could not have a thread: ",
                                               error.what(), "; raise the limit on this service's tasks or memory")};
  }
}

void UnixServer::ReapFinished() {
  MutexLock lock(mutex_);
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (at->finished) {
      at->thread.join();
      at = sessions_.erase(at);
    } else {
      ++at;
    }
  }
}

void UnixServer::Serve(Session& session) {
  handler_(*this, session.connection);
  session.connection.Shutdown();
  MutexLock lock(mutex_);
  session.finished = true;
}

Status CheckSocketOwner(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return {ErrorCode::kUnavailable, Cat("nothing listens at ", path, ": ", std::strerror(errno))};
  }
  if (!S_ISSOCK(info.st_mode)) return {ErrorCode::kPermission, Cat(path, " is no socket")};
  if (info.st_uid == 0 || info.st_uid == ::geteuid()) return OkStatus();
  return {ErrorCode::kPermission,
          Cat(path, " is of uid ", info.st_uid, ", and neither root's nor of uid ", ::geteuid())};
}

Status CheckPeerUser(const UnixConnection& connection, std::string_view what, std::optional<gid_t> group) {
  LS_ASSIGN_OR_RETURN(const PeerCredentials peer, connection.Peer());
  if (peer.uid == 0 || peer.uid == ::geteuid()) return OkStatus();
  if (group) {
    LS_ASSIGN_OR_RETURN(const bool member, connection.PeerIsIn(*group));
    if (member) return OkStatus();
  }
  return {ErrorCode::kPermission,
          Cat("process ", peer.pid, " of uid ", peer.uid, " may not ", what, " of uid ", ::geteuid(),
              "; run both as one user", group ? Cat(", or it in group ", *group) : std::string())};
}

Result<gid_t> FindGroup(const std::string& name) {
  std::vector<char> storage(1 << 16);
  struct group entry {};
  struct group* found = nullptr;
  int error = 0;
  while ((error = ::getgrnam_r(name.c_str(), &entry, storage.data(), storage.size(), &found)) == ERANGE &&
         storage.size() < kMostGroupBytes) {
    storage.resize(2 * storage.size());
  }
  gid_t group = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), group);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
  if (found != nullptr) group = entry.gr_gid;
  // Not all bits set, which no file has, nor what user namespaces call the groups that they do not know.
  constexpr gid_t kUnknown = 65534;
  if ((found != nullptr || is_number) && (group == kUnknown || group == static_cast<gid_t>(-1))) {
    return Status(ErrorCode::kConfig, Cat("group ", name, " has no users here"));
  }
  if (found != nullptr || is_number) return group;
  if (error != 0) return ErrnoStatus(error, Cat("look up group ", name));
  return Status(ErrorCode::kConfig, Cat("there is no group ", name, " on this host; make it, or give its number"));
}

}  // namespace lockstep::os
