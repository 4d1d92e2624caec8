// TlsCopies: the last usable content of a daemon's PEM files: as a TLS context for servers, as copies that gRPC watches
// for clients. gRPC would use the files themselves even when they are of no use, and then reach no peer. Internal to
// common/rpc.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/tls_session.h"
#include "common/os/file.h"
#include "common/os/unique_fd.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

class TlsCopies {
 public:
  // Returns the copies of the files of `tls`, which live until the process ends. All callers with the same files share
  // one, so that an error of the files is logged once. REQUIRES PrepareTls(tls) before.
  static const TlsCopies& Of(const TlsOptions& tls);

  std::string cert() const { return PathOf(cert_); }
  std::string key() const { return PathOf(key_); }
  std::string ca() const { return PathOf(ca_); }
  // The context for connections that are accepted from now on. REQUIRES that the files could be used at least once.
  std::shared_ptr<const net::TlsContext> context() const;

 private:
  using Stamps = std::array<os::FileStamp, 3>;

  explicit TlsCopies(const TlsOptions& tls);
  static std::string PathOf(const os::UniqueFd& copy);
  Stamps StampsNow() const;
  void Look();
  Status Take();

  const TlsOptions tls_;
  const os::UniqueFd cert_;  // memory; the number stays, what it refers to is replaced
  const os::UniqueFd key_;
  const os::UniqueFd ca_;
  Stamps seen_;                    // at the last look; this and the next two are the looking thread's
  std::optional<Stamps> taken_;    // of what was copied
  std::optional<Stamps> refused_;  // of what was last said to be of no use
  mutable Mutex mutex_;
  std::shared_ptr<const net::TlsContext> context_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc
