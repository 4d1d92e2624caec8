// The options of TLS, alike in both daemons.
#pragma once

#include "common/config/config.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

struct DaemonTls {
  TlsOptions files;
  std::string policy;  // file that says who may do what (common/access/policy.h); with TLS, and only then
};

inline void AddTlsOptions(config::ConfigParser& parser, DaemonTls& tls) {
  parser.Add("tls-cert", &tls.files.cert, "own certificate, PEM, as server and client; empty: plaintext");
  parser.Add("tls-key", &tls.files.key, "its private key, PEM, unreadable for others");
  parser.Add("tls-ca", &tls.files.ca, "certificates, PEM, one of which must have signed a peer's");
  parser.Add("tls-policy", &tls.policy, "TOML file that says which names of certificates may do what");
}

// As PrepareTls.
inline Status PrepareDaemonTls(const DaemonTls& tls) {
  if (tls.files.configured() != tls.policy.empty()) return PrepareTls(tls.files);
  return {ErrorCode::kConfig, "tls-policy, which says who may do what, and tls-cert go together: give both or neither"};
}

}  // namespace lockstep::rpc
