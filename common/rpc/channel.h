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
// One that found no daemon is not used again. gRPC 1.51 can lose a channel's credentials for ever, when what watches
// certificates for a lost connection leaves while that for the next one comes: all calls fail from then on ("Failed to
// create security handshaker").
//
// A socket is connected to here, not by gRPC, which would come back to another process that listens at the path by
// then.
class LastingChannel {
 public:
  explicit LastingChannel(std::string address, TlsOptions tls = {})
      : address_(std::move(address)), tls_(std::move(tls)) {}

  // For one call, or one stream. An error is of a socket only: kUnavailable where no process listens, kPermission where
  // one does that may be an impostor (os::CheckListener); it has not been told anything.
  Result<std::shared_ptr<grpc::Channel>> Get();
  // Whether the channels are to a socket. They are connected from the start, and gRPC knows no state of them.
  bool to_socket() const { return address_.starts_with(kUnixScheme); }
  // How that ended.
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
