// Origin: the interface of whatever a session's versions come from. A session watches its origin for newer versions and
// pulls them, and does not know of what kind the origin is. An origin is an agent (agent_origin.h) or a log.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "raas_receiver/origin/staging.h"
#include "raas_receiver/pull/block_source.h"

namespace lockstep::origin {

using Layout = std::shared_ptr<const model::ModelLayout>;

// An origin's announcement of its newest version.
struct Head {
  VersionRef held;                // version 0: there is none yet, or none any more
  ManifestDigest digest;          // zero: not known
  LayoutDigest layout;            // of the model as it is now
  int64_t committed_unix_ns = 0;  // when the trainer committed it; 0: not known
  int64_t written_unix_ns = 0;    // when the log's writer wrote this head; 0: the origin is no log
  std::string withdrawn;          // why there is no version any more; empty: there is one, or there never was
};

// A receiver's request for newer versions: the version to start from, and what may be pulled.
struct Want {
  VersionRef held;                   // that the receiver has; version 0: none
  ManifestDigest digest;             // of `held`
  Layout layout;                     // of the model, as the caller knows it
  std::span<const uint64_t> hashes;  // of the blocks of `held`, in memory of the caller; none: it has another layout
  std::span<const std::byte> data;   // the data section of `held`, likewise
  bool whole = false;                // every block, whatever is held
  VersionRef skipped;                // a version that must not become the target of a pull; version 0: any may
};

// The plan of one pull, checked: its numbers are within the layout and add up.
struct Plan {
  uint64_t transfer = 0;  // what logs and timelines of both ends call the pull
  bool full = false;      // the pull brings every block; else it brings `steps`
  VersionRef base;        // of the steps
  VersionRef target;      // equal to what is held: there is nothing newer
  ManifestDigest target_digest;
  std::vector<pull::DeltaStep> steps;  // from base to target
  int64_t committed_unix_ns = 0;       // of the target
  std::string label;                   // of the target
  uint64_t changed_elements = 0;       // by the steps
  bool goes_on = false;                // there are newer versions than the target; another pull brings them

  // "full", "delta", "chain" (of deltas), "up_to_date".
  std::string_view mode() const {
    if (full) return "full";
    return steps.empty() ? "up_to_date" : steps.size() == 1 ? "delta" : "chain";
  }
};

// Pull: brings the blocks or deltas of one version. The origin keeps what the plan names available as long as the pull
// lives and makes progress. Used by one thread, except for counters. Once a stop is requested of the token that the
// pull was opened with, every call ends soon with kCancelled.
class Pull {
 public:
  virtual ~Pull() = default;

  // The plan as it was when the pull was opened.
  virtual const Plan& plan() const = 0;

  // Fetches the blocks of `request` into `staging`. OK: every block is there, with its hash and its version. An error
  // says why some are not; the blocks that came stay there.
  virtual Status FetchBlocks(pull::FullRequest request, FullStaging& staging) = 0;
  // Fetches the steps that `staging` misses. OK: every step is there. After an error, whole steps that came stay there.
  virtual Status FetchDeltas(DeltaStaging& staging) = 0;
  // Returns the plan that brings the blocks of a full pull to one version. `by_block` has the version that each block
  // came in; the steps begin at the oldest of them. REQUIRES that some block's version is not the plan's target.
  virtual Result<Plan> CatchUp(std::span<const Version> by_block) = 0;

  // Ends the pull, and tells the origin `outcome` and that `held` is current now. Waits briefly, even after a stop.
  virtual void Close(const VersionRef& held, const Status& outcome) = 0;

  // Has the origin keep the pull open, where nothing of it is fetched for long.
  virtual void Touch() {}

  // Any thread.
  virtual pull::SourceCounters counters() const = 0;
};

// The optional calls that an origin supports.
struct Abilities {
  bool follow = false;  // Follow is of use
  bool report = false;  // Report is
};

// The origin of one model. One thread at a time calls Open, Follow and the pulls; any thread calls the others. REQUIRES
// every pull to end before its origin.
class Origin {
 public:
  virtual ~Origin() = default;

  // The origin's address, for status and messages: an agent's, or a URL.
  virtual std::string name() const = 0;

  // Which parts of the model it has, as last known, where it has not all of them: "parts 0, 2 of 4". Else empty.
  virtual std::string share() const { return {}; }

  virtual Abilities can() const = 0;

  // Calls `on_head` with the newest version at once, and then with newer ones as they come. Returns only when that
  // ends, with the reason.
  virtual Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) = 0;

  // The layout of the model as it is now, proved by its digest. kNotFound: there is none yet.
  virtual Result<Layout> GetLayout(std::stop_token stop) = 0;

  // Opens a pull of the newest version, or of one on the way there. kState: the model has another layout than
  // `want.layout` by now, or no version.
  virtual Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) = 0;

  // Allows the origin to send the delta that follows `from` while the delta is made, so that a later pull has it
  // sooner. With version 0 as from.held, the origin stops sending. Never waits for the delta; failure costs only time.
  virtual void Follow(const Want& from, std::stop_token stop) = 0;

  // Reports what is held and served to the origin; fills in the receiver's name. Returns why no newer version will
  // come, as far as the origin knows; empty when it knows of no reason. After an error the origin may lack it.
  virtual Result<std::string> Report(v1::ReportRequest report, std::stop_token stop) = 0;
};

}  // namespace lockstep::origin
