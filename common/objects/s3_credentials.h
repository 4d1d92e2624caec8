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

  // kConfig names what is missing or wrong, and no key. One caller looks; the others have what it finds.
  Result<http::Signing> Get(const std::stop_token& stop);
  // The store does not take `used` any more: the next Get reads them again.
  void Refused(const http::Signing& used);

 private:
  struct Found {
    http::Signing keys;
    std::string file;         // that they are of; empty: of none
    os::FileStamp stamp;      // of the file, when it was read
    int64_t ends_unix_s = 0;  // 0: they do not
    int64_t unix_s = 0;       // when they were found
  };
  bool AreGood() const LS_REQUIRES(mutex_);
  Result<Found> Find(const std::stop_token& stop) const;
  Result<Found> FromFile(const std::string& path, const std::stop_token& stop) const;
  Status RunCommand(const std::string& command, Found& found, const std::stop_token& stop) const;

  const S3CredentialsOptions options_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  Found found_ LS_GUARDED_BY(mutex_);
  bool have_ LS_GUARDED_BY(mutex_) = false;
  bool looking_ LS_GUARDED_BY(mutex_) = false;  // a caller is
  uint64_t looks_ LS_GUARDED_BY(mutex_) = 0;    // that are over
  Status failed_ LS_GUARDED_BY(mutex_);         // the last one
};

}  // namespace lockstep::objects
