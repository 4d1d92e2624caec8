// One pull of a whole of parts: a pull of each part, side by side, as one. For parted_origin.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "raas_receiver/origin/joined_plan.h"
#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

// For parts that were asked at different moments to be at one version. Agents commit within moments of each other.
inline constexpr std::chrono::seconds kPartsPatience{20};
inline constexpr std::chrono::milliseconds kFirstPartsPause{20};
inline constexpr std::chrono::milliseconds kLongestPartsPause{500};

// The parts of one layout of the whole, in their order.
struct Whole {
  Layout layout;              // joined
  std::vector<Layout> parts;  // of each part, alone
  std::vector<size_t> from;   // of each part: which origin has it
  std::string share;          // which parts these are; empty: all

  BlockIndex first_block(size_t part) const { return layout->parts()[part].first_block; }
  BlockIndex end_block(size_t part) const {
    return part + 1 < parts.size() ? layout->parts()[part + 1].first_block : layout->block_count();
  }
};
using WholePtr = std::shared_ptr<const Whole>;

// Calls `what` for each part, all at once. Returns the first error by time. `failed` is called after it, so that the
// others end.
Status ForEach(size_t parts, const std::function<Status(size_t)>& what, const std::function<void()>& failed);

// At once: an agent that is away takes its time.
void CloseAll(const std::vector<std::unique_ptr<Pull>>& pulls, const VersionRef& held, const Status& outcome);

// That the plans' targets are no version of the whole.
Status Apart(const std::vector<Plan>& plans);

// What the receiver holds, where parts that have deltas lead on from it while others come in full. Its memory is the
// caller's, and outlives the pull.
struct HeldWhole {
  VersionRef held;
  std::span<const uint64_t> hashes;
  std::span<const std::byte> data;
};

// `pulls` of the parts of `whole`, which `joined` was made of. `cancel` ends them; `stop` is the caller's.
std::unique_ptr<Pull> NewPartedPull(WholePtr whole, std::vector<std::unique_ptr<Pull>> pulls, JoinedPlan joined,
                                    const HeldWhole& held, std::stop_source cancel, const std::stop_token& stop);

}  // namespace lockstep::origin
