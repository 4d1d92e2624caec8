// The keys that requests to an object store are signed with: from the environment, or from a file in the format of
// AWS's, which may name a command. They are read again when they change, end, or are refused.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <stop_token>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/http/http_client.h"
#include "common/os/file.h"

namespace lockstep::objects {

struct S3CredentialsOptions {
  std::string file;     // empty: $AWS_SHARED_CREDENTIALS_FILE, then the environment's keys, then ~/.aws/credentials
  std::string profile;  // empty: $AWS_PROFILE, or "default"
  std::string region;
};

// Thread-safe.
class S3Credentials {
 public:
  explicit S3Credentials(S3CredentialsOptions options) : options_(std::move(options)) {}

  // Returns the keys, and loads them first when they have changed or ended. One caller loads; the others wait for it.
  // kConfig names the setting that is missing or wrong; no message has a key.
  Result<http::Signing> Get(const std::stop_token& stop);
  // Records that the store refused `used`: the next Get() loads the keys again.
  void Refused(const http::Signing& used);

 private:
  struct LoadedKeys {
    http::Signing keys;
    std::string file;         // that the keys came from; empty: from the environment
    os::FileStamp stamp;      // of the file, when it was read
    int64_t ends_unix_s = 0;  // when the keys end; 0: never
    int64_t unix_s = 0;       // when they were loaded
  };
  bool AreGood() const LS_REQUIRES(mutex_);
  Result<LoadedKeys> Find(const std::stop_token& stop) const;
  Result<LoadedKeys> FromFile(const std::string& path, const std::stop_token& stop) const;
  Status RunCommand(const std::string& command, LoadedKeys& found, const std::stop_token& stop) const;

  const S3CredentialsOptions options_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  LoadedKeys loaded_ LS_GUARDED_BY(mutex_);
  bool have_ LS_GUARDED_BY(mutex_) = false;
  bool looking_ LS_GUARDED_BY(mutex_) = false;  // a caller is
  uint64_t looks_ LS_GUARDED_BY(mutex_) = 0;    // that are over
  Status failed_ LS_GUARDED_BY(mutex_);         // the last one
};

}  // namespace lockstep::objects
