// An S3-compatible object store. Requests are signed (AWS's signature version 4), made on kept connections, and made
// again, with growing waits, when the store is busy or does not answer: each may be made twice.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/backoff.h"
#include "common/http/http_client.h"
#include "common/objects/object_store.h"
#include "common/objects/s3_credentials.h"

namespace lockstep::objects {

class S3Store final : public ObjectStore {
 public:
  // kConfig as ParseS3Url (s3_url.h). Nothing is asked of the store yet.
  static Result<std::shared_ptr<ObjectStore>> Open(const std::string& url, net::Networks plain);

  const std::string& url() const override { return url_; }
  std::string plain_host() const override;
  Status Read(const std::string& name, const Take& take, std::stop_token stop) override;
  Status Write(const std::string& name, ByteView bytes, std::stop_token stop) override;
  Result<std::optional<TaggedObject>> ReadChanged(const std::string& name, const std::string& tag,
                                                  std::chrono::milliseconds wait, std::stop_token stop) override;
  // Atomic where the store has conditional writes; elsewhere a change between a look and the write is not seen.
  Result<std::string> Replace(const std::string& name, const std::string& tag, ByteView bytes,
                              std::stop_token stop) override;
  Result<std::vector<ListedObject>> List(const std::string& prefix, std::stop_token stop) override;
  Status Remove(const std::string& name, std::stop_token stop) override;

 private:
  S3Store(std::string url, std::string prefix, std::unique_ptr<http::Client> client, S3CredentialsOptions credentials)
      : url_(std::move(url)),
        prefix_(std::move(prefix)),
        client_(std::move(client)),
        credentials_(std::move(credentials)) {}

  std::string TargetOf(const std::string& name) const { return "/" + prefix_ + name; }
  Result<http::Answer> Send(http::Request request, std::stop_token stop);
  Result<http::Answer> SendOnce(http::Request& request);
  Result<std::optional<TaggedObject>> Look(const std::string& name, const std::string& tag,
                                           const std::stop_token& stop);

  const std::string url_;
  const std::string prefix_;  // empty, or ends with '/'
  const std::unique_ptr<http::Client> client_;
  S3Credentials credentials_;
};

}  // namespace lockstep::objects
