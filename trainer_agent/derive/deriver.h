// Deriver: makes the versions of derived models (common/derive/FORMAT.md), away from the trainer, and publishes them as
// the only rank of their model. ModelRegistry opens and ends these models with their sources.
//
// A derived version has the number and the label of the version that it was made from. Every block of the source that
// is read is compared with its hash, so that a derived version follows from proved bytes. Trainers never wait: a source
// that is overtaken while it is read ends that derived version, and the newest one is next. What follows from blocks
// that did not change is not made again.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/worker_pool.h"
#include "common/derive/derivation.h"
#include "common/os/event.h"
#include "trainer_agent/run/model_registry.h"
#include "trainer_agent/run/scrubber.h"

namespace lockstep::derive {

// Has a thread of its own, and more once there is something to derive.
class Deriver {
 public:
  // REQUIRES all to outlive it. The scrubber is told of sources with damaged blocks.
  Deriver(const run::ModelRegistry* registry, run::VersionCatalog* catalog, run::Scrubber* scrubber, size_t threads);
  ~Deriver();

  // The version of the source that a derived model's newest version was made from. Any thread may ask.
  struct Origin {
    VersionRef version;
    ManifestDigest digest;
  };
  // No value: none was made yet.
  std::optional<Origin> OriginOf(const std::string& model) const;

  // What `verify` finds when it derives a version again.
  struct Comparison {
    std::string source;              // model
    std::vector<std::string> wrong;  // tensors that do not follow from the source
  };
  // Compares `version` of a derived model with what follows from its source now. Several threads, as long as the
  // version takes to derive. kNotFound: no derived model has that name. kState: the source, or the model, has gone on.
  // kCorrupt: a block of one of them is damaged.
  Result<Comparison> DeriveAgain(const std::string& model, Version version) const;

 private:
  struct Derived {
    std::shared_ptr<const Derivation> derivation;
    std::shared_ptr<run::ServedRun> source;
    std::shared_ptr<run::ModelPublisher> publisher;
    Version tried = 0;   // the newest version of the source that was begun
    Version failed = 0;  // the newest of these that was aborted, and may be tried once more
    // Of the version of the source that each slot's bytes were made from; null: not known.
    std::array<std::shared_ptr<const model::Manifest>, 2> made_of;
  };
  // What is to be done with each part for a version.
  struct Work {
    std::vector<uint32_t> make;
    std::vector<uint32_t> copy;   // from the version before
    std::vector<uint32_t> keep;   // the slot has the bytes already
    std::vector<bool> unchanged;  // by part: equal to the version before
  };

  void Run();
  // Takes up derived models that were opened, and drops those that ended.
  void FindDerived();
  // Brings one to the newest version of its source: the one that was left longest. False: none has a newer one.
  bool DeriveOne();
  void Derive(Derived& derived, const run::ServedVersion& version);
  Status MakeVersion(Derived& derived, const run::ServedVersion& version);
  void NoteOrigin(const Derived& derived, const model::Manifest& manifest);
  static Work WorkOf(const Derived& derived, const model::Manifest& manifest, size_t slot);

  const run::ModelRegistry* const registry_;
  run::VersionCatalog* const catalog_;
  run::Scrubber* const scrubber_;
  const size_t threads_;
  std::vector<Derived> derived_;      // the thread's, as those below
  std::unique_ptr<WorkerPool> pool_;  // null until there is something to derive

  mutable Mutex mutex_;
  std::map<std::string, Origin> origins_ LS_GUARDED_BY(mutex_);  // by derived model
  std::atomic<bool> stopping_ = false;
  const std::shared_ptr<os::Event> news_ = std::make_shared<os::Event>();  // of the catalog
  const std::shared_ptr<os::Event> turn_ = std::make_shared<os::Event>();  // of a publisher
  std::thread thread_;
};

}  // namespace lockstep::derive
