// ServingLedger: which engine served which version, from when to when. Engines note it (raas_receiver/engine); the
// receiver makes receipts of it.
//
// An interval says less than was, never more: it begins once an engine has resumed, and ends before the engine is
// paused, or where it was last seen to serve. What is between two intervals is not known.
//
// The file is a sequence of records: 4 bytes, how many follow the next 8; 8 bytes, their xxh3-64; a Receipt
// (proto/lockstep/v1/receiver.proto). Little-endian. Records of one engine and one beginning are of one interval, and
// the last of them counts: one when it begins, one a minute while it is seen, and one when it ends. A receiver that
// starts again ends what has no end at its last record. What follows the first record that is none is dropped.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/os/unique_fd.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::receipts {

inline constexpr size_t kMostAnswered = 1000;      // by Find
inline constexpr size_t kMostRemembered = 32'768;  // that have ended

// Thread-safe.
class ServingLedger {
 public:
  // `path` is read, and written from now on; empty, or where that fails, which is logged: the ledger is in memory only.
  // Records of another model or receiver are dropped.
  explicit ServingLedger(std::string path = {}, std::string model = {}, std::string receiver = {});

  // `engine` is seen to serve what `serves` says, but for the engine and the times; nothing: it is not seen to serve
  // anything, and its interval ends where it was seen last.
  void Note(const std::string& engine, const std::optional<v1::Receipt>& serves);
  // `engine`, which served until now, is about to be paused.
  void End(const std::string& engine);
  // What the engine's open interval says; nothing: none is open.
  std::optional<v1::Receipt> Open(const std::string& engine) const;
  // The newest that `request` is about, by the time at which they begin. An open one lasts until it was seen last.
  std::vector<v1::Receipt> Find(const v1::GetReceiptsRequest& request) const;

 private:
  void Load();
  int64_t Now() LS_REQUIRES(mutex_);
  void Append(const v1::Receipt& receipt) LS_REQUIRES(mutex_);
  void Rewrite() LS_REQUIRES(mutex_);
  void EndOpen(const std::string& engine, int64_t unix_ns) LS_REQUIRES(mutex_);

  const std::string path_;
  const std::string model_;
  const std::string receiver_;
  mutable Mutex mutex_;
  os::UniqueFd file_ LS_GUARDED_BY(mutex_);           // invalid: nothing is written
  size_t records_ LS_GUARDED_BY(mutex_) = 0;          // in the file
  int64_t newest_unix_ns_ LS_GUARDED_BY(mutex_) = 0;  // of all times so far: a clock may be set back
  std::deque<v1::Receipt> ended_ LS_GUARDED_BY(mutex_);
  // By engine, each until it was seen last; and when a record last said so.
  std::map<std::string, v1::Receipt> open_ LS_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> recorded_unix_ns_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::receipts
