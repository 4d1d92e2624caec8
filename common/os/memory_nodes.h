// Machines with memory on more than one node (NUMA): where new pages go.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::os {

// "0-3,8" as a mask of nodes, as the kernel lists them; only the first 64 count. No value for anything else.
std::optional<uint64_t> ParseNodeList(std::string_view list);

// While it lives, pages that this thread makes are spread over all nodes in turn, so that threads of every node see the
// same bandwidth: slots and replicas are read by all of them. Without effect on machines with one node, where the
// process was given a policy of its own (numactl), and where the system does not allow it.
class SpreadOverNodes {
 public:
  SpreadOverNodes();
  ~SpreadOverNodes();
  SpreadOverNodes(const SpreadOverNodes&) = delete;
  SpreadOverNodes& operator=(const SpreadOverNodes&) = delete;

  bool active() const { return active_; }

 private:
  bool active_ = false;
};

}  // namespace lockstep::os
