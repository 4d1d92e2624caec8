// The daemon: replicas, sessions, threads and the gRPC server put together.
#pragma once

#include <memory>
#include <string>

#include "common/access/access.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/metrics/common_metrics.h"
#include "common/metrics/metrics_port.h"
#include "common/net/io_threads.h"
#include "common/os/owners.h"
#include "common/os/signals.h"
#include "common/os/unix_server.h"
#include "common/rpc/rpc_server.h"
#include "common/telemetry/address_file.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/engine/ranks/rank_server.h"
#include "raas_receiver/receiver/engine_health.h"
#include "raas_receiver/receiver/receiver_config.h"
#include "raas_receiver/receiver/receiver_service.h"
#include "raas_receiver/session/sync_feed.h"

namespace lockstep::receiver {

class Receiver {
 public:
  // Takes over every model's directory and listens; nothing is pulled yet. kPermission for a root that may not be
  // written, kState for one that another receiver owns, kUnavailable for an address that is in use.
  static Result<std::unique_ptr<Receiver>> Create(ReceiverConfig config);
  ~Receiver();

  // Follows its sources until SIGTERM or SIGINT, or until its owners are gone, then drains. A second signal ends the
  // process at once.
  void Run(os::SignalWaiter& signals, const os::Owners& owners);

 private:
  Receiver(ReceiverConfig config, std::unique_ptr<access::AccessControl> access);

  Status OpenModels();
  std::string LedgerPath(const std::string& model) const;
  std::string RememberedPath(std::string_view what, const std::string& model, const objects::ObjectStore& log) const;
  std::unique_ptr<origin::Origin> OpenSource(const Source& source, const std::string& model);
  // Opens the archive of `model`; null when none is configured.
  Result<std::unique_ptr<archive::Archiver>> OpenArchive(const std::string& model, replica::ReplicaPair& replicas);
  Status Listen();
  // Reloads the access policy, sets health by the state of the sessions, and notifies the service manager's watchdog.
  void Tick();
  std::string MetricsPage() const;
  void Drain();

  const ReceiverConfig config_;
  metrics::CommonMetrics metrics_{"raas_receiver"};
  telemetry::Timeline timeline_;
  const std::unique_ptr<access::AccessControl> access_;
  session::SyncFeed feed_;
  WorkerPool workers_;
  net::IoThreads io_;
  ReceiverService::Sessions sessions_;
  const std::string instance_;  // tells this process from others of its name
  EngineHealth engine_health_;
  ReceiverService service_;
  std::unique_ptr<os::UnixServer> engine_ranks_;
  std::unique_ptr<rpc::RpcServer> server_;
  std::unique_ptr<metrics::MetricsPort> metrics_port_;  // null: --metrics-listen is empty
  std::unique_ptr<telemetry::AddressFile> address_file_;
};

}  // namespace lockstep::receiver
