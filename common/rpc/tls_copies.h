// Internal to common/rpc: PEM files as gRPC gets to see them. It watches files by itself, but takes whatever it finds,
// and then lets no peer in; so it watches copies, which change when the files have changed to what can be used.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "common/base/status.h"
#include "common/os/unique_fd.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

class TlsCopies {
 public:
  // Those of `tls`, one for all that use the same files, so that what is wrong with them is said once; from its first
  // use to the process's end. REQUIRES PrepareTls(tls) before.
  static const TlsCopies& Of(const TlsOptions& tls);

  std::string cert() const { return PathOf(cert_); }
  std::string key() const { return PathOf(key_); }
  std::string ca() const { return PathOf(ca_); }

 private:
  // What tells one content of the files, and their permissions, from the next without reading them.
  using Stamp = std::array<std::tuple<uint64_t, uint64_t, int64_t, int64_t>, 3>;

  explicit TlsCopies(const TlsOptions& tls);
  static std::string PathOf(const os::UniqueFd& copy);
  Stamp StampNow() const;
  void Look();
  Status Take();

  const TlsOptions tls_;
  const os::UniqueFd cert_;  // memory; the number stays, what it refers to is replaced
  const os::UniqueFd key_;
  const os::UniqueFd ca_;
  Stamp seen_;                    // at the last look
  std::optional<Stamp> taken_;    // of what was copied
  std::optional<Stamp> refused_;  // of what was last said to be of no use
};

}  // namespace lockstep::rpc
