// ServingLedger: which engine served which version, from when to when. Engines note it (raas_receiver/engine); the
// receiver makes receipts of it.
//
// An interval says less than was, never more: it begins once an engine has resumed, and ends before the engine is
// paused, or when its loss is seen. What is between two intervals is not known.
//
// The file is a sequence of Receipts (proto/lockstep/v1/receiver.proto), each behind its length: one when an interval
// begins, one more when it ends. The file's time of modification says until when an interval that has no end was seen.
// A receiver that starts again ends such intervals there, and what follows the first record that is no whole one is
// dropped.
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
  explicit ServingLedger(std::string path = {});

  // From now on `engine` serves what `serves` says, but for the engine and the times; nothing: that is not known. Does
  // nothing but remember the time when that is what it serves already.
  void Note(const std::string& engine, const std::optional<v1::Receipt>& serves);
  // What the engine's open interval says; nothing: none is open.
  std::optional<v1::Receipt> Open(const std::string& engine) const;
  // The newest that `request` is about, by the time at which they begin. An open one lasts until now.
  std::vector<v1::Receipt> Find(const v1::GetReceiptsRequest& request) const;

 private:
  void Load();
  void Append(const v1::Receipt& receipt) LS_REQUIRES(mutex_);
  void Rewrite() LS_REQUIRES(mutex_);
  void End(v1::Receipt receipt, int64_t unix_ns) LS_REQUIRES(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  os::UniqueFd file_ LS_GUARDED_BY(mutex_);   // invalid: nothing is written
  size_t records_ LS_GUARDED_BY(mutex_) = 0;  // in the file
  int64_t touched_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  std::deque<v1::Receipt> ended_ LS_GUARDED_BY(mutex_);
  std::map<std::string, v1::Receipt> open_ LS_GUARDED_BY(mutex_);  // by engine
};

}  // namespace lockstep::receipts
