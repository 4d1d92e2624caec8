#include "common/rpc/tls_copies.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/rpc/tls_files.h"
#include "common/telemetry/log.h"

namespace lockstep::rpc {
namespace {

constexpr std::chrono::seconds kLookInterval{1};

os::UniqueFd NewCopy() {
  return os::UniqueFd(::memfd_create("tls", MFD_CLOEXEC));
}

Result<os::UniqueFd> CopyOf(const std::string& content) {
  os::UniqueFd copy = NewCopy();
  if (::write(copy.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size())) return copy;
  return ErrnoStatus(errno, "copy a file of TLS into memory");
}

// All of it at once: a reader has the content before, or this one.
void Replace(const os::UniqueFd& copy, const os::UniqueFd& next) {
  (void)::dup3(next.get(), copy.get(), O_CLOEXEC);  // both are open, so that it works
}

}  // namespace

const TlsCopies& TlsCopies::Of(const TlsOptions& tls) {
  static Mutex mutex;
  static auto& all = *new std::map<std::array<std::string, 3>, TlsCopies*>;  // as long as the threads below
  MutexLock lock(mutex);
  TlsCopies*& copies = all[{tls.cert, tls.key, tls.ca}];
  if (copies == nullptr) {
    copies = new TlsCopies(tls);
    std::thread([copies] {
      while (true) {
        std::this_thread::sleep_for(kLookInterval);
        copies->Look();
      }
    }).detach();
  }
  return *copies;
}

TlsCopies::TlsCopies(const TlsOptions& tls)
    : tls_(tls), cert_(NewCopy()), key_(NewCopy()), ca_(NewCopy()), seen_(StampsNow()) {
  const Status taken = Take();
  if (taken.ok()) {
    taken_ = seen_;
  } else {
    refused_ = seen_;
    telemetry::LogWarn("tls_files_refused", taken);
  }
}

std::string TlsCopies::PathOf(const os::UniqueFd& copy) {
  return Cat("/proc/self/fd/", copy.get());
}

std::shared_ptr<const net::TlsContext> TlsCopies::context() const {
  MutexLock lock(mutex_);
  return context_;
}

TlsCopies::Stamps TlsCopies::StampsNow() const {
  return {os::StampOf(tls_.cert), os::StampOf(tls_.key), os::StampOf(tls_.ca)};
}

void TlsCopies::Look() {
  const Stamps now = StampsNow();
  const bool settled = now == std::exchange(seen_, now);  // they are not just being replaced one after the other
  if (!settled || now == taken_) return;
  const Status taken = Take();
  if (taken.ok()) {
    taken_ = now;
    telemetry::Log(telemetry::LogLevel::kInfo, "tls_files_reloaded", {{"path", tls_.cert}});
  } else if (std::exchange(refused_, now) != now) {
    telemetry::LogWarn("tls_files_refused", taken);
  }
}

Status TlsCopies::Take() {
  LS_ASSIGN_OR_RETURN(const TlsFiles files, ReadTlsFiles(tls_.cert, tls_.key, tls_.ca));
  LS_ASSIGN_OR_RETURN(std::shared_ptr<const net::TlsContext> context,
                      net::TlsContext::Create(files.cert, files.key, files.ca));
  // Nothing is replaced before there is room for all.
  LS_ASSIGN_OR_RETURN(const os::UniqueFd ca, CopyOf(files.ca));
  LS_ASSIGN_OR_RETURN(const os::UniqueFd key, CopyOf(files.key));
  LS_ASSIGN_OR_RETURN(const os::UniqueFd cert, CopyOf(files.cert));
  Replace(ca_, ca);
  Replace(key_, key);
  Replace(cert_, cert);
  MutexLock lock(mutex_);
  context_ = std::move(context);
  return OkStatus();
}

}  // namespace lockstep::rpc
