// ModelRegistry: which models are open, by which ranks, and in which run.
//
// A rank that names a run resumes it: the agent holds it, or the rank returns its buffers. A rank that names none
// starts a new run, unless another rank of the same trainer has just done so. Old runs of the model end then.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/derive/derivation.h"
#include "trainer_agent/run/model_publisher.h"
#include "trainer_agent/run/segments.h"

namespace lockstep::run {

struct RegistryOptions {
  uint32_t block_bytes = model::kDefaultBlockBytes;
  uint64_t retain_bytes = 2ull << 30;
  telemetry::Timeline* timeline = nullptr;  // where spans go, when not null
};

struct OpenRequest {
  std::string model;
  std::shared_ptr<const model::ModelLayout> layout;  // its block size is the rank's; the registry's own is used
  uint32_t rank = 0;
  uint32_t ranks = 1;
  RunId run;                      // zero: none
  wire::Share share;              // what the rank writes
  std::vector<os::UniqueFd> fds;  // returned by the rank: none or three
  std::function<bool()> gone;     // whether the rank's connection has ended; asked by any thread until Close()
};

struct ModelSnapshot {
  std::shared_ptr<ModelPublisher> publisher;
  uint32_t ranks_connected = 0;
  // Of a derived model (common/derive/FORMAT.md), whose only rank is this process; else null.
  std::shared_ptr<ServedRun> source;
  std::shared_ptr<const derive::Derivation> derivation;
};

// Thread-safe.
class ModelRegistry {
 public:
  ModelRegistry(const SegmentHome* home, RegistryOptions options, DiffOptions diff, VersionCatalog* catalog);

  // Opens the runs that an earlier agent left, and what derives from them. Call once, before ranks are let in. Errors
  // are SegmentHome::FindAll's.
  Status Recover();

  // First waits, 5 s at most, until Close() was called for each rank that has gone, so that a rank's successor may come
  // at once. kState: the rank, or another trainer, is connected already, or the model was opened otherwise. kNotFound:
  // neither the agent nor the rank has the run's buffers. kResourceExhausted: no memory for the slots. Models that
  // derive from it are opened with it, or it is not opened; kBadData: one of them cannot be made.
  Result<std::shared_ptr<ModelPublisher>> Open(OpenRequest request);
  // The connection of a rank that Open() let in has ended; `process` made it.
  void Close(const std::shared_ptr<ModelPublisher>& publisher, uint32_t rank,
             std::shared_ptr<const os::PeerProcess> process);

  struct DroppedRun {
    RunId run;
    uint64_t bytes = 0;  // of both slots and of deltas
  };
  // Ends the model's run, and those of what derives from it, and frees their memory; waits for ranks as Open does. A
  // trainer that is away and still has the buffers may resume the run with them. kNotFound: the model is not open.
  // kState: ranks are connected, or it is derived.
  Result<DroppedRun> Drop(const std::string& model);

  std::vector<ModelSnapshot> Snapshot() const;
  void Stop();

 private:
  struct Entry {
    std::shared_ptr<ModelPublisher> publisher;
    std::shared_ptr<ServedRun> source;  // as in ModelSnapshot
    std::shared_ptr<const derive::Derivation> derivation;
    bool joinable = false;                                // started by ranks that named no run, of which more may come
    std::map<uint32_t, std::function<bool()>> connected;  // by rank: whether it has gone
    std::set<uint32_t> seen;                              // ranks that have been connected to this run
  };
  enum class OpenAction { kJoin, kResume, kStart };

  void AwaitLeaving(const std::string& model);
  Result<OpenAction> Decide(const OpenRequest& request) const;
  Result<std::shared_ptr<ModelPublisher>> Resume(OpenRequest& request);
  Result<std::shared_ptr<ModelPublisher>> Start(OpenRequest& request);
  std::shared_ptr<ModelPublisher> Install(SegmentHome::StoredRun stored, bool joinable);
  Result<std::shared_ptr<ModelPublisher>> Connect(OpenRequest& request);
  using Derivations = std::vector<std::shared_ptr<const derive::Derivation>>;
  // kState: the name of a model that would derive from run `run` (zero: a new one) of `source` is taken.
  Status CheckNames(const std::string& source, const RunId& run, const Derivations& derivations) const;
  // Opens what derives from `source`: runs that the agent has, and new ones.
  Status OpenDerived(const ModelPublisher& source);
  Status OpenDerived(const ModelPublisher& source, const Derivations& derivations);
  Status OpenDerived(const ModelPublisher& source, const std::shared_ptr<const derive::Derivation>& derivation);
  void EndRun(const std::string& model);

  const SegmentHome* const home_;
  const RegistryOptions options_;
  const DiffOptions diff_;
  VersionCatalog* const catalog_;

  Mutex open_mutex_;  // one opening at a time: it may allocate for seconds; taken before mutex_
  mutable Mutex mutex_;
  std::condition_variable left_;
  std::map<std::string, Entry> entries_ LS_GUARDED_BY(mutex_);
  bool stopped_ LS_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::run
