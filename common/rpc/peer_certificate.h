// Passes a peer's certificate on from the TLS handshake of its connection to the calls that come over it.
//
// TLS ends before gRPC (grpc_port.h), which knows a connection only by the name of the socket that it came by. So each
// connection with a certificate gets a name that is given once, and this finds the certificate by it.
#pragma once

#include <openssl/x509.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace lockstep::rpc {

struct PeerCertificate {
  std::vector<std::string> names;  // URIs, then DNS names
  std::string serial;              // hexadecimal digits
  std::chrono::system_clock::time_point valid_until;
};

PeerCertificate ReadPeerCertificate(const X509& certificate);

// The certificate of one connection, which is found while this lives, and for some connections more: calls may outlive
// their connection for a moment.
class CertifiedPeer {
 public:
  explicit CertifiedPeer(const PeerCertificate& certificate);
  CertifiedPeer(const CertifiedPeer&) = delete;
  CertifiedPeer& operator=(const CertifiedPeer&) = delete;
  ~CertifiedPeer();

  // Gives `socket`, one end of a pair, the name by which gRPC calls the peer at the other end.
  Status Name(int socket) const;

  const PeerCertificate& certificate() const { return certificate_; }

 private:
  const PeerCertificate certificate_;
  const std::string name_;
};

// Whether a call from `peer` (ServerContext::peer()) came over a connection with a certificate.
bool HasCertificate(const std::string& peer);
// The certificate of the connection that a call from `peer` came over; no value when the connection has ended.
std::optional<PeerCertificate> CertificateOf(const std::string& peer);

}  // namespace lockstep::rpc
