// Exchange: how ranks on other hosts get their bytes to a rank on the agent's host. Messages between two ranks arrive
// in the order in which they were sent, and both ends know every size from the plan.
//
// Implementations: InProcessExchange (tests), the callbacks of the C ABI (torch.distributed from Python), NCCL.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/status.h"

namespace lockstep::exporter {

class Exchange {
 public:
  virtual ~Exchange() = default;

  // A transfer that was started. 0 is none.
  using Transfer = uint64_t;

  // The GPU with all messages in its memory; none: they are in host memory.
  virtual std::optional<int> device() const { return std::nullopt; }

  // Start and return; the memory must stay as it is until Wait() of the transfer. kUnavailable names the peer.
  virtual Result<Transfer> StartSend(uint32_t peer, const void* data, uint64_t bytes) = 0;
  virtual Result<Transfer> StartReceive(uint32_t peer, void* data, uint64_t bytes) = 0;
  // Until it is done, or failed: a peer that died or does not answer in the exchange's own time is a failure.
  virtual Status Wait(Transfer transfer) = 0;
};

}  // namespace lockstep::exporter
