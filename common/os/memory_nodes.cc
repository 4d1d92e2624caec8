#include "common/os/memory_nodes.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <string>

namespace lockstep::os {
namespace {

constexpr char kOnline[] = "/sys/devices/system/node/online";
constexpr unsigned kMaskBits = 64;

// Takes a node's number off the front of `list`.
bool TakeNode(std::string_view& list, unsigned& node) {
  const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), node);
  if (error != std::errc()) return false;
  list.remove_prefix(static_cast<size_t>(end - list.data()));
  return true;
}

// The kernel counts one bit more than the mask has.
bool SetPolicy(int mode, const uint64_t* nodes) {
  return ::syscall(SYS_set_mempolicy, mode, nodes, nodes == nullptr ? 0 : kMaskBits + 1) == 0;
}

// Another one was set by an operator (numactl).
bool HasDefaultPolicy() {
  int mode = -1;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode == MPOL_DEFAULT;
}

}  // namespace

std::optional<uint64_t> ParseNodeList(std::string_view list) {
  uint64_t mask = 0;
  while (!list.empty()) {
    unsigned first = 0;
    if (!TakeNode(list, first)) return std::nullopt;
    unsigned last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      if (!TakeNode(list, last) || last < first) return std::nullopt;
    }
    for (unsigned node = first; node <= last && node < kMaskBits; ++node) mask |= uint64_t{1} << node;
    if (list.empty()) break;
    if (!list.starts_with(',') || list.size() == 1) return std::nullopt;
    list.remove_prefix(1);
  }
  return mask;
}

SpreadOverNodes::SpreadOverNodes() {
  std::ifstream file(kOnline);
  std::string line;
  if (!std::getline(file, line)) return;
  const std::optional<uint64_t> nodes = ParseNodeList(line);
  const bool several = nodes.has_value() && (*nodes & (*nodes - 1)) != 0;
  if (several && HasDefaultPolicy()) active_ = SetPolicy(MPOL_INTERLEAVE, &*nodes);
}

SpreadOverNodes::~SpreadOverNodes() {
  if (active_) SetPolicy(MPOL_DEFAULT, nullptr);
}

}  // namespace lockstep::os
