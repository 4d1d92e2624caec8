// What can be served: for each model the run, the newest version with its manifest and deltas, and a way to read its
// blocks.
//
// The publish side puts versions in; the serve side takes them out and waits for more. Nothing here knows of sockets or
// protos.
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
#include "common/os/unique_fd.h"
#include "trainer_agent/store/delta_store.h"
#include "trainer_agent/store/streaming_delta.h"
#include "trainer_agent/store/version_labels.h"

namespace lockstep::store {

// A version's blocks as a file: readable through `file`, without a promise that they stay.
struct VersionFile {
  os::UniqueFd file;
  uint64_t data_offset = 0;  // of the first block
};

// Reads versions in memory. Implemented over the double buffer.
class BlockReader {
 public:
  virtual ~BlockReader() = default;
  // Calls `use` with those bytes of the data section, which stay while it runs: it must be done within the copy of a
  // few blocks, for a trainer may wait for it. kState when `version` is no longer in memory.
  virtual Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) = 0;
  // The memory that holds `version` now. Holds nothing up: it may be written into as soon as this returns. kState as
  // above.
  virtual Result<VersionFile> OpenFile(Version version) = 0;
};

struct ServedVersion {
  std::shared_ptr<const model::Manifest> manifest;  // its `held` is the version
  int64_t committed_unix_ns = 0;
  std::string label = {};  // empty: none (common/model/label.h)
};

// One run of one model. Thread-safe.
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
  // The same. kState: nothing is committed yet; kCorrupt: why what was is withdrawn.
  Result<ServedVersion> RequireNewest() const;
  // Whether a version that was compared with `base` (null: with none) may follow. kAborted: `base` was withdrawn.
  Status CheckBase(const model::Manifest* base) const;
  // Of the newest version or the one before it, or of the newest for 0; null for any other.
  std::shared_ptr<const model::Manifest> FindManifest(Version version) const;

  // As VersionLabels has them, of versions that were published here.
  std::string LabelOf(Version version) const;
  Version NewestLabelled(const std::string& label) const;

  // Calls `use` with consecutive blocks of `wanted`, or, when that is gone and `exact` is false, of the newest version,
  // and with the manifest of the one they are of. The bytes stay while it runs: as BlockReader::UseBytes. kState when
  // there are none; then it is not called.
  using UseOfBlocks = std::function<void(const model::Manifest& manifest, ByteView bytes)>;
  Status UseBlocks(Version wanted, bool exact, BlockIndex first, uint32_t count, const UseOfBlocks& use);

  // The memory of `wanted`, or of the newest version when that is 0, and what its blocks are as long as no trainer
  // writes there. kState when it is gone.
  struct Slot {
    VersionFile memory;
    std::shared_ptr<const model::Manifest> manifest;
  };
  Result<Slot> OpenSlot(Version wanted) const;

  // The run is over: releases its memory, also while this object is held. Reads fail with kState from now on.
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

// All models. Thread-safe.
class VersionCatalog {
 public:
  VersionCatalog() : notifier_([this] { Notify(); }) {}
  // Watches are told what is new before it returns.
  ~VersionCatalog();

  // `run` replaces the model's earlier run.
  void Open(std::shared_ptr<ServedRun> run);
  // `version` is the run's newest from now on, unless CheckBase(base) fails.
  Status Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version, const model::Manifest* base = nullptr);
  // `version` of the run, if it is the newest, is not served any more, nor are its deltas: its bytes are not what they
  // were. `why` is kCorrupt.
  void Retract(const std::shared_ptr<ServedRun>& run, Version version, const Status& why);
  // Ends the model's run, if there is one.
  void Withdraw(const std::string& model);

  std::vector<std::shared_ptr<ServedRun>> Runs() const;
  std::shared_ptr<ServedRun> Find(const std::string& model) const;              // null: it is not open
  Result<std::shared_ptr<ServedRun>> FindOpen(const std::string& model) const;  // kNotFound likewise

  // What is new of a model: which run is open, and its newest version.
  struct Update {
    VersionRef newest;  // version 0 before the first
    std::shared_ptr<ServedRun> run;
    std::optional<ServedVersion> version;  // none before the first
  };
  // No value while that is `seen`, or the model is not open.
  std::optional<Update> UpdateSince(const std::string& model, const VersionRef& seen) const;

  // Has `changed` called soon after there may be an update of `model`, and after Close(), on the catalog's own thread:
  // a publish waits for no watch, however many there are. It must not make or end a watch, nor block, which would
  // hold up the others. Once the destructor has returned nothing is called any more. REQUIRES the catalog to outlive
  // it.
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

  // Nothing will be published any more: notifies every watch.
  void Close();
  bool closed() const;

 private:
  // Has the watches of `model` called; all of them when it is empty.
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

}  // namespace lockstep::store
