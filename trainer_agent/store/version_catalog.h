// What can be served: per model the run, the newest version with its manifest and deltas, and a way to read its blocks.
//
// The publish side puts versions in; the serve side takes them out and waits for more. Nothing here knows of sockets or
// protos.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "common/model/manifest.h"
#include "common/os/unique_fd.h"
#include "trainer_agent/store/delta_store.h"

namespace lockstep {

// A version's blocks as a file: readable through `file`, and nobody's promise that they stay.
struct VersionFile {
  UniqueFd file;
  uint64_t data_offset = 0;  // of the first block
};

// Reads whole blocks of versions in memory. Implemented over the double buffer.
class BlockReader {
 public:
  virtual ~BlockReader() = default;
  // kState when `version` is no longer in memory. Never blocks for longer than a block's copy.
  virtual Status ReadBlock(Version version, BlockIndex block, std::span<std::byte> out) = 0;
  // The memory that holds `version` now. Holds nothing up: it may be written into as soon as this returns. kState as
  // above.
  virtual Result<VersionFile> OpenFile(Version version) = 0;
};

struct ServedVersion {
  std::shared_ptr<const Manifest> manifest;  // its `held` is the version
  int64_t committed_unix_ns = 0;
};

// One run of one model. Thread-safe.
class ServedRun {
 public:
  ServedRun(std::string model, RunId run, std::shared_ptr<const ModelLayout> layout,
            std::shared_ptr<BlockReader> blocks, StoreOptions store);

  const std::string& model() const { return model_; }
  const RunId& run() const { return run_; }
  const ModelLayout& layout() const { return *layout_; }
  const std::shared_ptr<const ModelLayout>& shared_layout() const { return layout_; }
  DeltaStore& deltas() { return deltas_; }

  std::optional<ServedVersion> Newest() const;
  // The newest or the one before it; no value for any other.
  std::shared_ptr<const Manifest> FindManifest(Version version) const;

  // A block of `wanted`, or, when that is gone and `exact` is false, of the newest version. Fills `out` and says which
  // version and hash it has. kState when it cannot.
  struct BlockInfo {
    Version version = 0;
    uint64_t hash = 0;
  };
  Result<BlockInfo> ReadBlock(Version wanted, bool exact, BlockIndex block, std::span<std::byte> out);

  // The memory of `wanted`, or of the newest version when that is 0, and what its blocks are as long as nobody writes
  // there. kState when it is gone.
  struct Half {
    VersionFile memory;
    std::shared_ptr<const Manifest> manifest;
  };
  Result<Half> OpenHalf(Version wanted) const;

  // The run is over: lets go of its memory, whoever still holds this object. Reads fail with kState from now on.
  void End();

 private:
  friend class VersionCatalog;
  std::shared_ptr<BlockReader> Blocks() const;

  const std::string model_;
  const RunId run_;
  const std::shared_ptr<const ModelLayout> layout_;
  DeltaStore deltas_;
  mutable std::mutex mutex_;
  std::shared_ptr<BlockReader> blocks_;  // null once ended
  std::optional<ServedVersion> newest_;
  std::shared_ptr<const Manifest> previous_;
};

// All models. Thread-safe.
class VersionCatalog {
 public:
  // `run` replaces the model's earlier run.
  void Open(std::shared_ptr<ServedRun> run);
  void Publish(const std::shared_ptr<ServedRun>& run, ServedVersion version);
  // Ends the model's run, if there is one.
  void Withdraw(const std::string& model);

  std::shared_ptr<ServedRun> Find(const std::string& model) const;  // null: nobody opened it

  // Waits until what can be told of the model is another than `seen`: which run is open, and its newest version (0
  // before the first). No value after `timeout`, when `give_up` says so (asked every 100 ms), or after Close().
  struct News {
    Held newest;
    std::shared_ptr<ServedRun> run;
    std::optional<ServedVersion> version;  // none before the first
  };
  std::optional<News> WaitForNews(const std::string& model, const Held& seen, std::chrono::milliseconds timeout,
                                  const std::function<bool()>& give_up) const;
  void Close();

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<ServedRun>> runs_;
  bool closed_ = false;
};

}  // namespace lockstep
