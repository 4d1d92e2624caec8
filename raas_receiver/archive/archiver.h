// Archiver: keeps the log of one model (common/versionlog/FORMAT.md) in step with what a receiver commits.
//
// Each delta that leads to a version is put aside before the commit (Spool), and written to the log after it, by a
// thread of the archiver's own: neither the session nor the trainer waits for the store. Between deltas it renews the
// chunks that are due, a few at a time, from the current replica.
//
// A history of the log goes on as long as deltas lead from its newest version to what is held, and the store has its
// objects. Else (the first version, another run or layout, a full pull, more waiting than half a model) another one is
// begun beside it, and takes its place once it is whole; a receiver that is killed goes on with either.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/objects/object_store.h"
#include "common/payload/payload.h"
#include "common/versionlog/keys.h"
#include "proto/lockstep/v1/log.pb.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::archive {

class LogWriter;
class Spool;

struct ArchiverOptions {
  std::shared_ptr<objects::ObjectStore> store;
  std::string model;
  std::string receiver;                              // this one's name
  std::optional<versionlog::SigningKey> key;         // nothing: heads are not signed
  std::string remembered_path;                       // file that remembers which log it is; empty: none
  uint64_t keep_bytes = 0;                           // that the log may have; 0: twice the model
  std::chrono::milliseconds keep_age{0};             // versions that are older go; 0: none does because of its age
  std::chrono::milliseconds sign_every{5 * 60'000};  // the head is written again, when there is nothing to write
  std::chrono::milliseconds grace{0};                // what the head does not name any more is removed so long after
  uint64_t bytes_per_s = 0;                          // that are written; 0: no limit
};

class Archiver {
 public:
  // `replicas` outlives the archiver. Returns the error of the spool's directory.
  static Result<std::unique_ptr<Archiver>> Create(ArchiverOptions options, replica::ReplicaPair& replicas);
  // Cancels the call to the store that runs, and waits for it.
  ~Archiver();

  // --- the session's thread ---
  // Puts `steps` into the spool. Called before the session commits them; the last one leads to a version with `label`.
  // Logs its errors: the archiver then begins a new history.
  void Keep(const payload::DeltaChain& steps, const std::string& label);
  // Allows the archiver to write. Called once the held version is in step with the origin.
  void InStep();

  // --- any thread ---
  v1::Archive Describe() const;

 private:
  Archiver(ArchiverOptions options, replica::ReplicaPair& replicas, std::unique_ptr<Spool> spool);

  void Loop(const std::stop_token& stop);
  // A task does one thing that is due, and returns whether there was one. A turn ends after the first that did.
  using Task = Result<bool> (Archiver::*)(const std::stop_token& stop);
  static const Task kTasks[];
  Result<bool> DoNext(const std::stop_token& stop);
  Result<bool> Offer(bool rolled_back, const std::stop_token& stop);
  Result<bool> Begin(const std::stop_token& stop);
  Result<bool> WriteDelta(const std::stop_token& stop);
  Result<bool> WriteChunks(const std::stop_token& stop);
  Result<bool> PutInPlace(const std::stop_token& stop);
  Result<bool> Shorten(const std::stop_token& stop);
  Result<bool> RemoveUnnamed(const std::stop_token& stop);
  Result<bool> SignAgain(const std::stop_token& stop);

  bool GoesOn(const v1::LogHistory& history) const;
  std::vector<uint32_t> WantedChunks() const;
  uint64_t ChunkCount() const;
  bool IsNext() const;
  void AddReady(v1::LogHistory& history);
  Status SetHistory(v1::LogHistory history, const std::stop_token& stop);
  Status LoadHashes(const std::stop_token& stop);
  void Show(const Status& outcome, bool taken_over);

  const ArchiverOptions options_;
  replica::ReplicaPair& replicas_;
  WorkerPool transfers_;
  const std::unique_ptr<Spool> spool_;
  const std::unique_ptr<LogWriter> writer_;

  // Of the thread.
  bool owns_ = false;                        // the log
  replica::PublishedVersion current_;        // when the turn began
  const v1::LogHistory* history_ = nullptr;  // of the head, that goes on; null: neither does
  VersionRef hashed_;                        // the version of hashes_
  std::vector<uint64_t> hashes_;
  std::vector<v1::LogChunk> ready_;  // written, and of versions that the log does not have yet
  bool chunks_first_ = false;        // a delta was written last

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  bool in_step_ LS_GUARDED_BY(mutex_) = false;
  bool notified_ LS_GUARDED_BY(mutex_) = false;
  v1::Archive shown_ LS_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace lockstep::archive
