// VersionCatalog: lists what the agent can serve: for each model one run (ServedRun), with its newest version, the
// version's manifest and deltas, and a reader of its blocks.
//
// ModelPublisher publishes versions here. The serve side reads them, and watches for newer ones. The catalog knows
// neither sockets nor protos.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/model/manifest.h"
#include "trainer_agent/run/delta_store.h"
#include "trainer_agent/run/double_buffer.h"
#include "trainer_agent/run/streaming_delta.h"
#include "trainer_agent/run/version_labels.h"

namespace lockstep::run {

struct ServedVersion {
  std::shared_ptr<const model::Manifest> manifest;  // its `held` is the version
  int64_t committed_unix_ns = 0;
  std::string label = {};  // empty: none (common/model/label.h)
};

// ServedRun: one run of one model, as receivers get it. Thread-safe.
class ServedRun {
 public:
  ServedRun(std::string model, RunId run, std::shared_ptr<const model::ModelLayout> layout,
            std::shared_ptr<BlockReader> blocks, StoreOptions store);

  const std::string& model() const { return model_; }
  const RunId& run() const { return run_; }
  const model::ModelLayout& layout() const { return *layout_; }
  DeltaStore& deltas() { return deltas_; }
  DeltaFeed& feed() { return feed_; }

  std::optional<ServedVersion> Newest() const;
  // Returns the newest version. kState when none is committed yet. kCorrupt, with the reason, when the newest version
  // was retracted.
  Result<ServedVersion> RequireNewest() const;
  // OK when a version that was compared with `base` (null: with none) may follow. kAborted when `base` was retracted.
  Status CheckBase(const model::Manifest* base) const;
  // Returns the manifest of the newest version (also for 0) or of the one before it; null for any other version.
  std::shared_ptr<const model::Manifest> FindManifest(Version version) const;

  // As VersionLabels::Of and Newest, for the versions that this agent published.
  std::string LabelOf(Version version) const;
  Version NewestLabelled(const std::string& label) const;

  // Calls `use` with `count` blocks from `first` on, and with the manifest of their version. That is `wanted`, or the
  // newest version when `wanted` is gone and `exact` is false. `use` must keep the rules of BlockReader::UseBytes.
  // kState when no such version is in memory; `use` is not called then.
  using UseOfBlocks = std::function<void(const model::Manifest& manifest, ByteView bytes)>;
  Status UseBlocks(Version wanted, bool exact, BlockIndex first, uint32_t count, const UseOfBlocks& use);

  // Opens the memory of `wanted` (0: of the newest version) and returns the manifest to check its blocks with: a
  // trainer may write over them at any time. kState when the version is gone.
  struct Slot {
    VersionFile memory;
    std::shared_ptr<const model::Manifest> manifest;
  };
  Result<Slot> OpenSlot(Version wanted) const;

  // Ends the run: releases its memory, even while callers keep this object. Every later read fails with kState.
  void End();

 private:
  friend class VersionCatalog;
  std::shared_ptr<BlockReader> Blocks() const;
  Status CheckBaseLocked(const model::Manifest* base) const LS_REQUIRES(mutex_);

  const std::string model_;
  const RunId run_;
  const std::shared_ptr<const model::ModelLayout> layout_;
  DeltaStore deltas_;
  DeltaFeed feed_;
  mutable Mutex mutex_;
  std::shared_ptr<BlockReader> blocks_ LS_GUARDED_BY(mutex_);  // null once ended
  std::optional<ServedVersion> newest_ LS_GUARDED_BY(mutex_);
  Status withdrawn_ LS_GUARDED_BY(mutex_);  // why there is no newest_ any more
  std::shared_ptr<const model::Manifest> previous_ LS_GUARDED_BY(mutex_);
  VersionLabels labels_ LS_GUARDED_BY(mutex_);
};

// Thread-safe.
class VersionCatalog {
 public:
  VersionCatalog() : notifier_([this] { Notify(); }) {}
  // Calls the watches for what was announced before, then stops the notifier thread.
  ~VersionCatalog();

  // Makes `run` the model's run, in place of an earlier one.
  void Open(std::shared_ptr<ServedRun> run);
  // Makes `version` the run's newest. When run->CheckBase(base) fails, returns its error and publishes nothing.
  Status Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version, const model::Manifest* base = nullptr);
  // Stops serving `version` and the run's deltas, because its bytes are damaged. RequireNewest() returns `why`, which
  // is kCorrupt, until a version is published. Does nothing when `version` is not the newest.
  void Retract(const std::shared_ptr<ServedRun>& run, Version version, const Status& why);
  // Ends the model's run, if there is one.
  void Withdraw(const std::string& model);

  std::vector<std::shared_ptr<ServedRun>> Runs() const;
  std::shared_ptr<ServedRun> Find(const std::string& model) const;              // null: it is not open
  Result<std::shared_ptr<ServedRun>> FindOpen(const std::string& model) const;  // kNotFound likewise

  // The open run of a model, and its newest version.
  struct Update {
    VersionRef newest;  // version 0 before the first
    std::shared_ptr<ServedRun> run;
    std::optional<ServedVersion> version;  // none before the first
  };
  // Returns the model's update when its `newest` differs from `seen`; else, and when the model is not open, no value.
  std::optional<Update> UpdateSince(const std::string& model, const VersionRef& seen) const;

  // A watch has the catalog's notifier thread call `changed` soon after there may be an update of `model`, and after
  // Close(). No publish waits for a watch. `changed` must not make or end a watch, and must not block, because the
  // other watches wait for it. Nothing calls `changed` once the destructor has returned. REQUIRES the catalog to
  // outlive the watch.
  class Watch {
   public:
    Watch(const VersionCatalog* catalog, std::string model, std::function<void()> changed);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class VersionCatalog;
    const VersionCatalog* const catalog_;
    const std::string model_;
    const std::function<void()> changed_;
  };

  // Notifies every watch. Called when no version will be published any more.
  void Close();
  bool closed() const;

 private:
  // Has the notifier thread call the watches of `model`; all watches when `model` is empty.
  void Announce(const std::string& model);
  void Notify();
  void CallWatches(const std::string& model) const;

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<ServedRun>> runs_ LS_GUARDED_BY(mutex_);
  bool closed_ LS_GUARDED_BY(mutex_) = false;
  mutable Mutex watches_mutex_;  // held while they are called, which take mutex_; so never taken after it
  mutable std::set<const Watch*> watches_ LS_GUARDED_BY(watches_mutex_);
  Mutex announced_mutex_;  // taken after no other
  std::condition_variable announced_changed_;
  std::set<std::string> announced_ LS_GUARDED_BY(announced_mutex_);  // models with watches to call; an empty name: all
  bool ending_ LS_GUARDED_BY(announced_mutex_) = false;
  std::thread notifier_;
};

}  // namespace lockstep::run
