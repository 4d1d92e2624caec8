// A directory as an object store: a file for each object. Several hosts may share it, over NFS, too.
#pragma once

#include <memory>
#include <string>

#include "common/objects/object_store.h"

namespace lockstep::objects {

class DirectoryStore final : public ObjectStore {
 public:
  // `path` is absolute, and a directory. kNotFound, kConfig.
  static Result<std::shared_ptr<ObjectStore>> Open(const std::string& path);

  const std::string& url() const override { return url_; }
  Status Read(const std::string& name, const Take& take, std::stop_token stop) override;
  Status Write(const std::string& name, ByteView bytes, std::stop_token stop) override;
  // A change by this host is seen at once; one by another host at the end of `wait`.
  Result<std::optional<TaggedObject>> ReadChanged(const std::string& name, const std::string& tag,
                                                  std::chrono::milliseconds wait, std::stop_token stop) override;
  Result<std::string> Replace(const std::string& name, const std::string& tag, ByteView bytes,
                              std::stop_token stop) override;
  Status CheckOwn(const std::string& directory) override;
  Result<std::vector<ListedObject>> List(const std::string& prefix, std::stop_token stop) override;
  Status Remove(const std::string& name, std::stop_token stop) override;

 private:
  explicit DirectoryStore(std::string path) : path_(std::move(path)), url_("file://" + path_) {}

  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  Result<TaggedObject> ReadTagged(const std::string& name, const std::stop_token& stop);

  const std::string path_;
  const std::string url_;
};

}  // namespace lockstep::objects
