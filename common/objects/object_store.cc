#include "common/objects/object_store.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/objects/directory_store.h"
#include "common/objects/s3_store.h"

namespace lockstep::objects {

Result<std::shared_ptr<ObjectStore>> OpenObjectStore(const std::string& url, net::Networks plain) {
  constexpr std::string_view kFile = "file://";
  if (url.starts_with(Cat(kFile, "/"))) return DirectoryStore::Open(url.substr(kFile.size()));
  if (url.starts_with("s3://")) return S3Store::Open(url, std::move(plain));
  return Status(ErrorCode::kConfig, Cat("\"", CleanText(WithoutPasswords(url), 200),
                                        "\" is neither file:///DIRECTORY nor s3://BUCKET/PREFIX"));
}

Result<Bytes> ReadWhole(ObjectStore& store, const std::string& name, uint64_t max_bytes, std::stop_token stop) {
  Bytes bytes;
  const auto take = [&](ByteView more) -> Status {
    if (more.size() > max_bytes - bytes.size()) {
      return {ErrorCode::kResourceExhausted, Cat(store.url(), "/", name, " is longer than ", max_bytes, " bytes")};
    }
    AppendBytes(bytes, more);
    return OkStatus();
  };
  LS_RETURN_IF_ERROR(store.Read(name, take, std::move(stop)));
  return bytes;
}

}  // namespace lockstep::objects
