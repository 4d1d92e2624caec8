// Origin: where a session's versions come from. A session asks one for what is new, and pulls from it; nothing of a
// session knows what the origin is. A trainer's agent is one (agent_origin.h).
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

// What an origin announces: its newest version.
struct Head {
  VersionRef held;                // nothing: there is none yet, or none any more
  ManifestDigest digest;          // zero: not known
  LayoutDigest layout;            // of the model as it is now
  int64_t committed_unix_ns = 0;  // when the trainer committed it; 0: not known
  int64_t written_unix_ns = 0;    // when the writer of the log wrote this; 0: it is of no log
  std::string withdrawn;          // why there is none any more; empty: there is one, or there never was
};

// What is there to start from.
struct Want {
  VersionRef held;        // nothing: no version
  ManifestDigest digest;  // of it
  Layout layout;          // of the model, as the caller knows it
  bool whole = false;     // every block, whatever is held
  VersionRef skipped;     // a version that is not to be held on the way to a newer one; nothing: any may be
};

// What a pull is to bring, checked: its numbers are within the layout and add up.
struct Plan {
  uint64_t transfer = 0;  // what logs and timelines of both ends call the pull
  bool full = false;      // every block; else `steps`
  VersionRef base;        // of the steps
  VersionRef target;      // equal to what is held: there is nothing newer
  ManifestDigest target_digest;
  std::vector<pull::DeltaStep> steps;  // from base to target
  int64_t committed_unix_ns = 0;       // of the target
  std::string label;                   // of the target
  uint64_t changed_elements = 0;       // by the steps
  bool goes_on = false;                // there are newer versions than the target: another pull has what leads there

  // "full", "delta", "chain" (of deltas), "up_to_date".
  std::string_view mode() const {
    if (full) return "full";
    return steps.empty() ? "up_to_date" : steps.size() == 1 ? "delta" : "chain";
  }
};

// One way to one version. What its plan names stays to be had as long as it lives and comes forward. Used by one
// thread, but for counters. Every call ends soon, with kCancelled, once a stop is requested of the token that the pull
// was opened with.
class Pull {
 public:
  virtual ~Pull() = default;

  // As it was when the pull was opened.
  virtual const Plan& plan() const = 0;

  // OK: every block of `request` is in `staging`, with its hash and its version. An error says why some are not;
  // what came stays.
  virtual Status FetchBlocks(pull::FullRequest request, FullStaging& staging) = 0;
  // OK: every step that `staging` misses is there.
  virtual Status FetchDeltas(DeltaStaging& staging) = 0;
  // The plan that brings blocks of several versions, `by_block`, to one version: that of a full pull, with the steps
  // from the oldest of these versions on. Called only when some blocks came in another version than the plan's.
  virtual Result<Plan> CatchUp(std::span<const Version> by_block) = 0;

  // Ends the pull: `held` is current now. The origin is told how it went, briefly, also after a stop.
  virtual void Close(const VersionRef& held, const Status& outcome) = 0;

  // Any thread.
  virtual pull::SourceCounters counters() const = 0;
};

// What an origin can do beyond bringing versions.
struct Abilities {
  bool follow = false;  // Follow is of use
  bool report = false;  // Report is
};

// Of one model. Open, Follow and the pulls belong to one thread at a time; the others may be called by any. Its pulls
// end before it does.
class Origin {
 public:
  virtual ~Origin() = default;

  // Its address, for status and messages: an agent's, or a URL.
  virtual std::string name() const = 0;

  virtual Abilities can() const = 0;

  // Calls `on_head` with the newest version at once and then with every newer one, until it ends: the answer is why.
  virtual Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) = 0;

  // The layout of the model as it is now, proved by its digest. kNotFound: there is none yet.
  virtual Result<Layout> GetLayout(std::stop_token stop) = 0;

  // A pull of the newest version, or of one on the way there. kState: the model has another layout than `want.layout`
  // by now, or no version.
  virtual Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) = 0;

  // What follows `from` may be sent while it is made: a pull opened later has it sooner. Nothing is waited for, and
  // nothing lost where the origin cannot. From nothing: no more is to be sent.
  virtual void Follow(const Want& from, std::stop_token stop) = 0;

  // Tells the origin what is held and served; the receiver's name is filled in. Answers why no version will come, as
  // far as the origin knows: empty, there is no such reason. An error: it was not told.
  virtual Result<std::string> Report(v1::ReportRequest report, std::stop_token stop) = 0;
};

}  // namespace lockstep::origin
