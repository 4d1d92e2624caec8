// The options of TLS, alike in both daemons.
#pragma once

#include <string>
#include <vector>

#include "common/base/text.h"
#include "common/config/config.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

struct DaemonTls {
  TlsOptions files;
  std::vector<std::string> plain;  // networks in which there is none, as they are written
  std::string policy;  // file that says which peer may do what on a port (common/access/policy.h); empty: no port
};

inline void AddTlsOptions(config::ConfigParser& parser, DaemonTls& tls) {
  parser.Add("tls-cert", &tls.files.cert, "own certificate, PEM, as server and client; empty: plaintext");
  parser.Add("tls-key", &tls.files.key, "its private key, PEM, unreadable for others");
  parser.Add("tls-ca", &tls.files.ca, "certificates, PEM, one of which must have signed a peer's");
  parser.Add("tls-policy", &tls.policy, "TOML file that says which names of certificates may do what");
  parser.Add("allow-insecure-network", &tls.plain,
             "CIDR, a network beyond loopback whose peers are spoken to in plaintext; repeat for several");
}

// As PrepareTls, once the options are parsed. `listens`: on TCP, where certificates need a policy.
inline Status PrepareDaemonTls(const config::ConfigParser& parser, DaemonTls& tls, bool listens) {
  const std::string policy = parser.WrittenAs("tls-policy");
  if (!tls.files.configured() && !tls.policy.empty()) {
    return {ErrorCode::kConfig,
            Cat(policy, " is about the names in certificates; give tls-cert, too, or leave it out")};
  }
  if (tls.files.configured() && tls.policy.empty() && listens) {
    return {ErrorCode::kConfig,
            "tls-policy is missing: it says which certificates may do what on the port of --listen"};
  }
  const std::string plain = parser.WrittenAs("allow-insecure-network");
  if (tls.files.configured() && !tls.plain.empty()) {
    return {ErrorCode::kConfig, Cat(plain, " is for a daemon without tls-cert: with it nothing is in plaintext")};
  }
  Result<net::Networks> networks = net::Networks::Parse(tls.plain);
  if (!networks.ok()) return {ErrorCode::kConfig, Cat(plain, ": ", networks.status().message())};
  tls.files.plain = *std::move(networks);
  return PrepareTls(tls.files);
}

}  // namespace lockstep::rpc
