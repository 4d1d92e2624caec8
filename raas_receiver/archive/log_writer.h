// LogWriter: writes a model's log (common/versionlog/FORMAT.md): objects first, then the head that names them.
//
// One writer owns a log: the last one to take it over. Taking a log over raises the epoch of its head. An earlier owner
// learns of that when it writes the head next.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/net/rate_limit.h"
#include "common/objects/object_store.h"
#include "common/versionlog/keys.h"
#include "proto/lockstep/v1/log.pb.h"

namespace lockstep::archive {

struct LogWriterOptions {
  std::shared_ptr<objects::ObjectStore> store;
  std::string model;
  std::string writer;                            // this receiver's name
  std::optional<versionlog::SigningKey> key;     // nothing: heads are not signed
  std::string remembered_path;                   // file that remembers the log's id and epoch; empty: none
  uint64_t bytes_per_s = 0;                      // of what is written; 0: no limit
  std::chrono::milliseconds grace{15 * 60'000};  // what is not named any more is removed so long after
};

// Used by one thread, but for bytes_written.
class LogWriter {
 public:
  // `transfers` runs the writes, one on each thread; it outlives the writer.
  LogWriter(LogWriterOptions options, WorkerPool& transfers);

  // Reads the head, and writes it again with a higher epoch: this writer then owns the log. Begins an empty log when
  // the store has no head or, with a key, none that the key has signed; the log keeps the id of the remembered one.
  // kState: the head is of another log than the remembered one. kPermission: without a key, other users may write the
  // head. kCorrupt, kProtocol: the head is damaged, or of another format.
  Status TakeOver(std::stop_token stop);
  // The head as this writer last wrote it. REQUIRES TakeOver.
  const v1::LogHead& head() const { return head_; }
  // Whether another writer was found to own the log.
  bool taken_over() const { return taken_over_; }

  // Writes `bytes` as pieces of `piece_bytes`, several at a time, except for pieces that the log has. Returns the entry
  // that names them in a head.
  Result<v1::LogBytes> Put(std::string_view kind, ByteView bytes, uint64_t piece_bytes, std::stop_token stop);

  // Fills in the format, model, epoch, serial, writer and time of `next`, and writes it as the head. With `new_epoch`
  // the epoch rises. kAborted: another writer has taken the log over; the message names it if its head can be read.
  // After any other error the store may have `next` as its head or not; the next SetHead() finds out.
  Status SetHead(v1::LogHead next, bool new_epoch, std::stop_token stop);

  // Removes the objects that no head has named for the grace time. Lists the store on the first call after TakeOver and
  // then hourly, to find objects that the head does not name, and named objects that are lost. Returns whether this
  // call found lost ones where none were known. Logs objects that it cannot remove, and tries again later. Fails only
  // when another writer has taken the log over, or the log is gone.
  Result<bool> RemoveUnnamed(std::stop_token stop);
  // Whether the store lacks an object that `history` names, as far as this writer knows.
  bool HasLost(const v1::LogHistory& history) const;
  // Forgets the objects that were put and not named in a head: RemoveUnnamed() may remove them.
  void ForgetPut() { put_.clear(); }

  uint64_t bytes_written() const { return bytes_written_; }  // any thread

 private:
  using Clock = std::chrono::steady_clock;
  versionlog::TrustedKeys Own() const;
  Result<v1::LogHead> Known() const;
  Status FindUnnamed(const std::stop_token& stop);
  Status TryRemove(const std::stop_token& stop);
  Status WriteObject(const std::string& name, ByteView bytes, const std::stop_token& stop);
  Status FindOut(const Bytes& encoded, uint64_t epoch, const std::stop_token& stop);

  const LogWriterOptions options_;
  WorkerPool& transfers_;
  net::RateLimit rate_;
  std::atomic<uint64_t> bytes_written_ = 0;
  bool taken_over_ = false;
  v1::LogHead head_;
  std::string tag_;                  // of head_
  std::set<std::string> attempted_;  // heads that were sent since the last one that is known to be written
  std::set<std::string> named_;      // objects that head_ names
  std::set<std::string> put_;        // objects that were put and are not named yet
  std::set<std::string> lost_;       // objects that head_ names and the store lacks
  std::map<std::string, Clock::time_point> unnamed_;  // objects, and when to remove each
  Clock::time_point find_again_{};
  Clock::time_point remove_again_{};
};

}  // namespace lockstep::archive
