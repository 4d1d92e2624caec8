// The options of TlsOptions, alike in both daemons.
#pragma once

#include "common/config/config.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

inline void AddTlsOptions(config::ConfigParser& parser, TlsOptions& tls) {
  parser.Add("tls-cert", &tls.cert, "own certificate, PEM, as server and client; empty: plaintext");
  parser.Add("tls-key", &tls.key, "its private key, PEM, unreadable for others");
  parser.Add("tls-ca", &tls.ca, "certificates, PEM, one of which must have signed a peer's");
}

}  // namespace lockstep::rpc
