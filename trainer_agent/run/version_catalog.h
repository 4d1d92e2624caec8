// VersionCatalog: lists what the agent can serve: for each model one run (ServedRun), with its newest version, the
// version's manifest and deltas, and the buffer that has its blocks.
//
// ModelPublisher publishes versions here. The serve side reads them, and watches for newer ones. The catalog knows
// neither sockets nor protos.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/changes/version_changes.h"
#include "common/model/manifest.h"
#include "trainer_agent/run/delta_store.h"
#include "trainer_agent/run/double_buffer.h"
#include "trainer_agent/run/streaming_delta.h"
#include "trainer_agent/run/wake_list.h"

namespace lockstep::run {

struct ServedVersion {
  std::shared_ptr<const model::Manifest> manifest;  // its `held` is the version
  int64_t committed_unix_ns = 0;
  std::string label = {};                                       // empty: none (common/model/label.h)
  std::shared_ptr<const changes::VersionChanges> changes = {};  // null: not counted
};

// ServedRun: one run of one model, as receivers get it. Thread-safe.
class ServedRun {
 public:
  ServedRun(std::shared_ptr<DoubleBuffer> buffer, StoreOptions store);

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

  // Of the labels that this agent's versions got, the newest this many are known.
  static constexpr size_t kRememberedLabels = 4096;
  // The label of `version`; empty: none that is known.
  std::string LabelOf(Version version) const;
  // The newest version that has `label`; 0: none that is known. Of a derived model that is its source's: it may have
  // skipped the version itself.
  Version NewestLabelled(const std::string& label) const;

  // What `version` changed; null: not known any more, or not yet. As many are
  // remembered as have kRememberedChanges bytes.
  static constexpr size_t kRememberedChanges = 64 << 20;
  std::shared_ptr<const changes::VersionChanges> ChangesOf(Version version) const;

  // Calls `use` with `count` blocks from `first` on, and with the manifest of their version. That is `wanted`, or the
  // newest version when `wanted` is gone and `exact` is false. `use` must keep the rules of DoubleBuffer::UseBytes.
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

  // Makes this the run of a model that derives from `source`.
  void SetSource(const std::shared_ptr<ServedRun>& source);
  // Whether ranks write a version now.
  bool IsWritten() const;

  // Ends the run: releases its memory, even while callers keep this object. Every later read fails with kState.
  void End();

 private:
  friend class VersionCatalog;
  std::shared_ptr<DoubleBuffer> Buffer() const;
  Status CheckBaseLocked(const model::Manifest* base) const LS_REQUIRES(mutex_);
  void Remember(const ServedVersion& version) LS_REQUIRES(mutex_);

  const std::string model_;
  const RunId run_;
  const std::shared_ptr<const model::ModelLayout> layout_;
  DeltaStore deltas_;
  DeltaFeed feed_;
  mutable Mutex mutex_;
  std::shared_ptr<DoubleBuffer> buffer_ LS_GUARDED_BY(mutex_);  // null once ended
  std::optional<ServedVersion> newest_ LS_GUARDED_BY(mutex_);
  Status withdrawn_ LS_GUARDED_BY(mutex_);  // why there is no newest_ any more
  std::shared_ptr<const model::Manifest> previous_ LS_GUARDED_BY(mutex_);
  std::weak_ptr<ServedRun> source_ LS_GUARDED_BY(mutex_);
  std::deque<std::pair<Version, std::string>> labels_ LS_GUARDED_BY(mutex_);                  // versions rise
  std::deque<std::shared_ptr<const changes::VersionChanges>> changes_ LS_GUARDED_BY(mutex_);  // likewise
};

// Thread-safe.
class VersionCatalog {
 public:
  // Makes `run` the model's run, in place of an earlier one.
  void Open(std::shared_ptr<ServedRun> run);
  // Makes `version` the run's newest. When run->CheckBase(base) fails, returns its error and publishes nothing. Wakes
  // who waits for a version; with `wakes` the caller must do that.
  Status Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version, const model::Manifest* base = nullptr,
                 std::vector<Wake>* wakes = nullptr);
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

  // Has `wake` called once there may be an update of `model`, and at Close(). False, and `wake` is never called: there
  // is one now, or the catalog is closed.
  bool WakeOnUpdate(const std::string& model, const VersionRef& seen, std::weak_ptr<const void> reader,
                    Wake wake) const;

  // Wakes everyone who waits, to look again.
  void WakeAll();
  // Likewise, for ever. Called when no version will be published any more.
  void Close();
  bool closed() const;

 private:
  std::optional<Update> UpdateSinceLocked(const std::string& model, const VersionRef& seen) const LS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<ServedRun>> runs_ LS_GUARDED_BY(mutex_);
  mutable WakeList waiting_ LS_GUARDED_BY(mutex_);  // for versions of whatever model
  bool closed_ LS_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::run
