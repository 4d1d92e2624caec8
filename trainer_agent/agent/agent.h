// The trainer_agent daemon: its parts in the order in which data flows, and their life from start to drain.
#pragma once

#include <memory>

#include "common/access/access.h"
#include "common/base/worker_pool.h"
#include "common/metrics/common_metrics.h"
#include "common/metrics/metrics_port.h"
#include "common/rpc/rpc_server.h"
#include "common/telemetry/address_file.h"
#include "common/telemetry/timeline.h"
#include "trainer_agent/agent/options.h"
#include "trainer_agent/derive/deriver.h"
#include "trainer_agent/run/rank_server.h"
#include "trainer_agent/run/scrubber.h"
#include "trainer_agent/serve/agent_service.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/local_server.h"

namespace lockstep::agent {

class Agent {
 public:
  // Recovers what an earlier agent left, listens, and is ready. Errors say which address, path or memory is in the way.
  static Result<std::unique_ptr<Agent>> Start(const AgentOptions& options);
  ~Agent();

  // Reports to health watchers, ends streams and waits for calls in progress up to the drain timeout. The buffers stay
  // for the next agent.
  void Drain();

  // To be called twice a second: health follows from what it sees, and the service manager's watchdog from its return.
  void Tick();

 private:
  explicit Agent(const AgentOptions& options);
  Status Listen();
  Status Announce();
  std::vector<v1::AgentModel> Facts() const;
  Result<v1::DropModelResponse> Drop(const std::string& model);
  Status DeriveAgain(const std::string& model, Version version, v1::VerifyResult* result) const;
  std::string MetricsPage() const;

  const AgentOptions options_;
  metrics::CommonMetrics metrics_{"trainer_agent"};
  telemetry::Timeline timeline_;
  std::unique_ptr<access::AccessControl> access_;
  std::unique_ptr<run::SegmentHome> home_;
  run::VersionCatalog catalog_;
  WorkerPool pool_;  // diffs: a trainer may wait for these
  std::unique_ptr<run::ModelRegistry> registry_;
  run::Scrubber scrubber_;
  std::unique_ptr<derive::Deriver> deriver_;
  serve::PullTable pulls_;
  std::unique_ptr<serve::AgentService> service_;
  std::unique_ptr<serve::LaneServer> lanes_;
  std::unique_ptr<os::UnixServer> local_;  // null: --local-socket none
  std::unique_ptr<rpc::RpcServer> rpc_;
  std::unique_ptr<os::UnixServer> ranks_;
  std::unique_ptr<metrics::MetricsPort> metrics_port_;  // null: --metrics-listen is empty
  std::unique_ptr<telemetry::AddressFile> address_file_;
};

}  // namespace lockstep::agent
