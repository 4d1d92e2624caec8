// Client channels to our daemons.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <asio/ip/address.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/os/unix_socket.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

// Connects to HOST:PORT, by TLS where it is configured. Does so when first used and again, at most 2 s apart, whenever
// the connection is lost. Never goes through an HTTP proxy.
//
// A call fails at once (kUnavailable) where no daemon listens. Where one does and is silent, while connecting or
// later, it waits for its own deadline (kDeadline), but no longer than 20 s: by then the peer counts as gone.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const TlsOptions& tls = {});

// Where the answer to a call over HOST:PORT came from; nothing before one came.
std::optional<asio::ip::address> AnswerAddress(const grpc::ClientContext& context);

// The channel of a client to HOST:PORT, or to a socket of this host, unix:PATH, which is plaintext. Thread-safe.
//
// A channel that found no daemon is not used again. gRPC 1.51 can lose a channel's credentials for ever, when the
// certificates' watcher of a lost connection leaves while that of the next one comes: all later calls fail ("Failed to
// create security handshaker").
//
// LastingChannel connects to a socket itself. gRPC would reconnect to any other process that listens at the path by
// then.
class LastingChannel {
 public:
  explicit LastingChannel(std::string address, TlsOptions tls = {})
      : address_(std::move(address)), tls_(std::move(tls)) {}

  // Returns a channel for one call, or one stream. Only a socket has errors: kUnavailable when no process listens,
  // kPermission when the listener may be an impostor (os::CheckListener). Nothing was sent to it then.
  Result<std::shared_ptr<grpc::Channel>> Get();
  // Whether the channels are to a socket. Such channels are connected from the start, and gRPC knows no state of them.
  bool to_socket() const { return address_.starts_with(kUnixScheme); }
  // Reports how the call or stream over `channel` ended.
  void Ended(const std::shared_ptr<grpc::Channel>& channel, const grpc::Status& status);
  // `status` as an error of ours. If no connection came up, its message says why, and what to do.
  Status Explain(const grpc::Status& status) const;

 private:
  static constexpr std::string_view kUnixScheme = "unix:";

  Status Connect(const std::string& path) LS_REQUIRES(mutex_);

  const std::string address_;
  const TlsOptions tls_;
  Mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_ LS_GUARDED_BY(mutex_);
  os::UnixConnection socket_ LS_GUARDED_BY(mutex_);  // the channel's, seen from outside it; not connected for HOST:PORT
};

}  // namespace lockstep::rpc
