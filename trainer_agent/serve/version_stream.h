// VersionStream: sends one receiver the newest version at once, then each that follows, until the call is cancelled or
// the catalog closes. A reader that is slow misses versions in between, never the newest.
//
// A stream costs no thread: gRPC and the catalog's wakes call it. It owns itself from the begin of the call to its end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/access/quota.h"
#include "common/base/mutex.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "trainer_agent/run/version_catalog.h"
#include "trainer_agent/serve/receiver_reports.h"

namespace lockstep::serve {

class VersionStream final : public grpc::ServerWriteReactor<v1::VersionEvent>,
                            public std::enable_shared_from_this<VersionStream> {
 public:
  // `owner` is the caller's identity. Ends at once with the error of `admitted`, with UNIMPLEMENTED for a receiver that
  // has no protocol in common with us, or with INVALID_ARGUMENT for one with a bad name or instance. Ends later
  // with UNAVAILABLE when the catalog closes, or with the error of `still` (null: none), which is called before each
  // version and says whether the caller would be admitted now. A receiver that gives its name is connected until the
  // end. REQUIRES catalog and reports to outlive it.
  static VersionStream* Start(const run::VersionCatalog* catalog, ReceiverReports* reports,
                              const v1::WatchVersionsRequest& request, const std::string& owner,
                              Result<access::Quota::Lease> admitted, std::function<Status()> still = {});

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  VersionStream(const run::VersionCatalog* catalog, ReceiverReports* reports, const v1::WatchVersionsRequest& request,
                const std::string& owner, Result<access::Quota::Lease> admitted, std::function<Status()> still);

  void Send();  // begins the next write when none is in progress and there is something new
  void End(const grpc::Status& why) LS_REQUIRES(mutex_);

  const run::VersionCatalog* const catalog_;
  const std::string model_;
  const Result<access::Quota::Lease> admitted_;
  const std::function<Status()> still_;
  // The receiver's connection, or why the stream ends at once; null: the caller gave no receiver's name.
  Result<std::unique_ptr<ReceiverReports::Connection>> met_;
  Mutex mutex_;
  bool writing_ LS_GUARDED_BY(mutex_) = false;
  bool ended_ LS_GUARDED_BY(mutex_) = false;
  VersionRef sent_ LS_GUARDED_BY(mutex_);
  v1::VersionEvent event_ LS_GUARDED_BY(mutex_);  // being written
  std::shared_ptr<VersionStream> self_;           // until the call is done
};

}  // namespace lockstep::serve
