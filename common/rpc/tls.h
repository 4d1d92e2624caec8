// Mutual TLS of the control plane: a peer with a certificate that our CA signed gets in, on either side.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/net/networks.h"

namespace lockstep::rpc {

// PEM files of this process, as client and as server. They are read again within seconds of a change, for connections
// from then on; those that are there, and their calls, go on. Files that cannot be used, or do not fit each other, are
// logged, and what was there before stays.
struct TlsOptions {
  std::string cert;         // own certificate, and those between it and the CA's
  std::string key;          // its private key
  std::string ca;           // certificates that peers' must be signed by
  std::string server_name;  // for clients: the DNS name, IP or URI that a server must have; empty: the address's host
  net::Networks plain;      // without TLS: peers of these networks may speak in plaintext

  bool configured() const { return !cert.empty(); }
};

// OK when nothing is given, or all three files are there and fit each other, and from then on this process speaks no
// TLS below 1.3. kConfig names the file and what to do. REQUIRES that no other thread runs yet: it sets the
// environment.
Status PrepareTls(const TlsOptions& tls);

// Until when the own certificate is good, as its file has it now; nothing without TLS, or where the file cannot be
// read.
std::optional<std::chrono::system_clock::time_point> CertificateEnd(const TlsOptions& tls);

// Plaintext where TLS is not configured. REQUIRES PrepareTls(tls) before.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& tls);

}  // namespace lockstep::rpc
