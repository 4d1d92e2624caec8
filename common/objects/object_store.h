// ObjectStore: objects under names, in a directory or an object store.
//
// Objects are written whole or not at all. All but a few are immutable: their names say what they hold, so that it does
// no harm to write one twice. The few that change have a tag, which is another whenever they hold something else, and
// are written only over what the writer has seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/net/networks.h"

namespace lockstep::objects {

inline constexpr uint64_t kMaxTaggedBytes = 16 << 20;  // of an object that changes

struct TaggedObject {
  Bytes bytes;
  std::string tag;  // not empty
};

struct ListedObject {
  std::string name;
  uint64_t bytes = 0;
  int64_t written_unix_ns = 0;  // by the store's clock
};

// Names are relative, of [A-Za-z0-9._-] and '/'. Thread-safe. Every call ends soon, with kCancelled, once a stop is
// requested.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Where its objects are, without credentials: each at url() + "/" + name. Two stores of one URL are the same.
  virtual const std::string& url() const = 0;

  // The host beyond loopback that it is reached at in plaintext, as the URL has it; empty: it is not reached so.
  virtual std::string plain_host() const { return ""; }

  // Hands the object's bytes over, in order. An error of `take` ends the call and is its answer. kNotFound.
  using Take = std::function<Status(ByteView)>;
  virtual Status Read(const std::string& name, const Take& take, std::stop_token stop) = 0;

  virtual Status Write(const std::string& name, ByteView bytes, std::stop_token stop) = 0;

  // Reads an object that changes, once its tag is another than `tag`; no value when it still has `tag` after `wait`.
  // kNotFound: there is no object, also after `wait`. kResourceExhausted: it is longer than kMaxTaggedBytes.
  virtual Result<std::optional<TaggedObject>> ReadChanged(const std::string& name, const std::string& tag,
                                                          std::chrono::milliseconds wait, std::stop_token stop) = 0;
  // Writes an object that changes if its tag is `tag` (empty: if there is no object), and returns the new tag.
  // kAborted: another writer has written it since.
  virtual Result<std::string> Replace(const std::string& name, const std::string& tag, ByteView bytes,
                                      std::stop_token stop) = 0;

  // kPermission, naming what to do: users other than this process's own and root may put objects into `directory`, a
  // name's first part. A store that is no directory says by rules of its own who may.
  virtual Status CheckOwn(const std::string& directory) {
    (void)directory;
    return OkStatus();
  }

  // All objects with names that begin with `prefix`, also the unfinished ones that killed writers left.
  virtual Result<std::vector<ListedObject>> List(const std::string& prefix, std::stop_token stop) = 0;
  // Removes the object. OK, too, when there is none.
  virtual Status Remove(const std::string& name, std::stop_token stop) = 0;
};

// Of file:///an/absolute/directory, which exists, or s3://bucket/prefix (s3_url.h), which is spoken to in plaintext
// only where it is on this host or in one of `plain`. kConfig: `url` is of no kind that is known.
Result<std::shared_ptr<ObjectStore>> OpenObjectStore(const std::string& url, net::Networks plain = {});

// As Read, of an object of at most `max_bytes`: kResourceExhausted where it is longer.
Result<Bytes> ReadWhole(ObjectStore& store, const std::string& name, uint64_t max_bytes, std::stop_token stop);

}  // namespace lockstep::objects
