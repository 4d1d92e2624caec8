// Client channels to our daemons.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/rpc/tls.h"

namespace lockstep::rpc {

// Connects to HOST:PORT, by TLS where it is configured, or to a socket of this host, unix:PATH, which is plaintext.
// Does so when first used and again, at most 2 s apart, whenever the connection is lost. Never goes through an HTTP
// proxy.
//
// A call fails at once (kUnavailable) where nobody listens. Where somebody does and is silent, while connecting or
// later, it waits for its own deadline (kDeadline), but no longer than 20 s: by then the peer counts as gone.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const TlsOptions& tls = {});

// The channel of a client that lives long: one that found nobody is not used again. gRPC 1.51 can lose a channel's
// credentials for ever, when what watches certificates for a lost connection leaves while that for the next one comes:
// all calls fail from then on ("Failed to create security handshaker"). Thread-safe.
class LastingChannel {
 public:
  explicit LastingChannel(std::string address, TlsOptions tls = {})
      : address_(std::move(address)), tls_(std::move(tls)), channel_(MakeChannel(address_, tls_)) {}

  // For one call, or one stream.
  std::shared_ptr<grpc::Channel> Get() const;
  // How that ended.
  void Ended(const std::shared_ptr<grpc::Channel>& channel, const grpc::Status& status);

 private:
  const std::string address_;
  const TlsOptions tls_;
  mutable std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace lockstep::rpc
