// LogWriter: writes a model's log (common/versionlog/FORMAT.md): objects first, then the head that names them.
//
// One writer owns a log: the one that took it over last, which raised its epoch. The others find out when they write
// the head next.
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
  // `transfers` runs the writes, a thread each; it outlives this.
  LogWriter(LogWriterOptions options, WorkerPool& transfers);

  // Reads the head and writes it again with a higher epoch. Where there is none that goes on, the log begins anew: as
  // the one that was written here before, if one was. kPermission, kCorrupt, kProtocol, kState: there is a head that is
  // not to be built upon, and why; or, without a key, other users may write it.
  Status TakeOver(std::stop_token stop);
  // As it was written last. REQUIRES TakeOver.
  const v1::LogHead& head() const { return head_; }
  // Another writer was seen to have it.
  bool taken_over() const { return taken_over_; }

  // Writes `bytes` in pieces, side by side, but for those that lie there, and answers what the head calls them.
  Result<v1::LogBytes> Put(std::string_view kind, ByteView bytes, uint64_t piece_bytes, std::stop_token stop);

  // Fills in the format, model, epoch, serial, writer and time of `next`, and makes it the head. With `new_epoch` the
  // epoch rises. kAborted: another writer has taken the log over; the message names it if its head can be read. After
  // any other error `next` may be the head or not: the next call finds out.
  Status SetHead(v1::LogHead next, bool new_epoch, std::stop_token stop);

  // Removes what no head has named for the grace time. Does it now and then; what the store has that no head names, and
  // what it lacks that the head names, it finds every hour, and first after TakeOver. What cannot be removed is logged
  // and tried again later, as nothing is to wait for it; an error says that the log was taken over, or is gone. Answers
  // whether something was found to be lost.
  Result<bool> RemoveUnnamed(std::stop_token stop);
  // Whether the store lacks an object that `history` names, as far as is known.
  bool HasLost(const v1::LogHistory& history) const;
  // What was put and not named yet is of no use.
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
  std::set<std::string> named_;      // by head_
  std::set<std::string> put_;        // and not named yet
  std::set<std::string> lost_;       // by the store, and named by head_
  std::map<std::string, Clock::time_point> unnamed_;  // when to be removed
  Clock::time_point find_again_{};
  Clock::time_point remove_again_{};
};

}  // namespace lockstep::archive
