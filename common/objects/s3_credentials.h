// The keys that requests to an object store are signed with: from the environment, or from a file in the format of
// AWS's, which may name a command. They are read again when they change, end, or are refused.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "common/base/status.h"
#include "common/http/http_client.h"

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

  // kConfig names what is missing or wrong, and no key.
  Result<http::Signing> Get();
  // The store does not take `used` any more: the next Get reads them again.
  void Refused(const http::Signing& used);

 private:
  struct Found {
    http::Signing keys;
    std::string file;         // that they are of; empty: of none
    std::string stamp;        // of the file, when it was read
    int64_t ends_unix_s = 0;  // 0: they do not
  };
  Result<Found> Find() const;
  Result<Found> FromFile(const std::string& path) const;
  Status RunCommand(const std::string& command, Found& found) const;

  const S3CredentialsOptions options_;
  std::mutex mutex_;
  Found found_;        // guarded by mutex_
  bool have_ = false;  // guarded by mutex_
};

}  // namespace lockstep::objects
