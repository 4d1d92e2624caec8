#include "common/objects/s3_store.h"

#include <expat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "common/base/ids.h"
#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/objects/s3_url.h"
#include "common/objects/sha256.h"

namespace lockstep::objects {
namespace {

using std::chrono::milliseconds;

constexpr int kAttempts = 6;
constexpr milliseconds kFirstWait{100};
constexpr milliseconds kLongestWait{5'000};
constexpr milliseconds kCallTime{600'000};  // an object of 64 MiB over a slow link
constexpr std::chrono::seconds kStall{20};
constexpr size_t kMostListed = 4'000'000;
constexpr size_t kMostPages = 20'000;

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (IsPlain(std::string_view(&c, 1)) && c != '/') {
      escaped += c;
    } else {
      const auto byte = static_cast<uint8_t>(c);
      std::string hex = HexEncode({&byte, 1});
      std::ranges::transform(hex, hex.begin(), [](unsigned char digit) { return std::toupper(digit); });
      escaped += "%" + hex;
    }
  }
  return escaped;
}

// --- XML ---

// Calls `take` with the name and the text of every element that has no elements in it, and with "/NAME" and nothing at
// the end of each that has.
using TakeElement = std::function<void(std::string_view name, const std::string& text)>;

struct XmlReading {
  const TakeElement& take;
  std::string text;
  bool leaf = false;
};

bool ReadXml(const std::string& document, const TakeElement& take) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate(nullptr), XML_ParserFree);
  XmlReading reading{take, {}};
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(
      parser.get(),
      [](void* user, const char*, const char**) {
        auto& reading = *static_cast<XmlReading*>(user);
        reading.text.clear();
        reading.leaf = true;
      },
      [](void* user, const char* name) {
        auto& reading = *static_cast<XmlReading*>(user);
        reading.take(reading.leaf ? name : Cat("/", name), reading.leaf ? reading.text : std::string());
        reading.leaf = false;
      });
  XML_SetCharacterDataHandler(parser.get(), [](void* user, const char* text, int length) {
    static_cast<XmlReading*>(user)->text.append(text, static_cast<size_t>(length));
  });
  return XML_Parse(parser.get(), document.data(), static_cast<int>(document.size()), 1) == XML_STATUS_OK;
}

// --- Answers ---

// "ExpiredToken", and what it says of it.
struct StoreError {
  std::string code;
  std::string message;
};

StoreError ErrorIn(const http::Answer& answer) {
  StoreError error;
  ReadXml(answer.body, [&](std::string_view name, const std::string& text) {
    if (name == "Code") error.code = CleanText(text, 100);
    if (name == "Message") error.message = CleanText(text, 300);
  });
  return error;
}

bool IsBusy(int status) {
  return status == 408 || status == 409 || status == 425 || status == 429 || (status >= 500 && status != 501);
}

// The keys have ended or were changed: newer ones may do.
bool RefusesKeys(const http::Answer& answer) {
  if (answer.status != 401 && answer.status != 403 && answer.status != 400) return false;
  const std::string code = ErrorIn(answer).code;
  return code == "ExpiredToken" || code == "InvalidToken" || code == "InvalidAccessKeyId" ||
         code == "TokenRefreshRequired";
}

Status StatusOf(const http::Answer& answer) {
  const StoreError error = ErrorIn(answer);
  const std::string said = Cat("the store answered ", answer.status, error.code.empty() ? "" : " ", error.code,
                               error.message.empty() ? "" : ": ", error.message);
  switch (answer.status) {
    case 404:
      if (error.code == "NoSuchBucket") return {ErrorCode::kConfig, Cat(said, "; make the bucket")};
      return {ErrorCode::kNotFound, said};
    case 301:
    case 307:
      return {ErrorCode::kConfig, Cat(said, "; name the bucket's region, ?region=REGION")};
    case 401:
    case 403:
      return {ErrorCode::kPermission, Cat(said, "; do the credentials allow this, of this bucket and prefix?")};
    case 412:
      return {ErrorCode::kAborted, Cat(said, ": it was written by another process")};
    default:
      return {IsBusy(answer.status) ? ErrorCode::kUnavailable : ErrorCode::kProtocol, said};
  }
}

bool Succeeded(const http::Answer& answer) {
  return answer.status >= 200 && answer.status < 300;
}

std::string TagIn(const http::Answer& answer) {
  const auto tag = answer.headers.find("etag");
  return tag == answer.headers.end() ? "" : tag->second;
}

Status Wait(milliseconds time, const std::stop_token& stop) {
  return WaitForStop(time, stop) ? Status(ErrorCode::kCancelled, "it is not needed any more") : OkStatus();
}

}  // namespace

Result<std::shared_ptr<ObjectStore>> S3Store::Open(const std::string& url, net::Networks plain) {
  LS_ASSIGN_OR_RETURN(const S3Location location, ParseS3Url(url));
  auto client = http::Client::Create({.url = location.base_url,
                                      .ca_file = location.ca_file,
                                      .connect_timeout = milliseconds(5'000),
                                      .max_answer_bytes = kMaxTaggedBytes,
                                      .keep_connections = true,
                                      .plain = std::move(plain)});
  if (!client.ok()) return client.status().WithContext("endpoint");
  return std::shared_ptr<ObjectStore>(
      new S3Store(*http::CheckUrl(Cat(location.base_url, "/", location.prefix)), location.prefix, *std::move(client),
                  {.file = location.credentials_file, .profile = location.profile, .region = location.region}));
}

std::string S3Store::plain_host() const {
  const std::string& base = client_->url();
  if (!base.starts_with("http://")) return "";
  const std::string host = base.substr(7, base.find('/', 7) - 7);
  const auto written = net::ParseHostPort(host);
  const net::HostPort address = written.ok() ? *written : net::HostPort{host};
  return address.IsLoopback() ? "" : address.host;
}

// One attempt, with the keys as they are now, and with newer ones when those are refused.
Result<http::Answer> S3Store::SendOnce(http::Request& request) {
  for (bool again = false;; again = true) {
    LS_ASSIGN_OR_RETURN(const http::Signing signing, credentials_.Get(request.stop));
    request.signing = &signing;
    Result<http::Answer> answer = client_->Send(request);
    request.signing = nullptr;
    if (!answer.ok() || again || !RefusesKeys(*answer)) return answer;
    credentials_.Refused(signing);
  }
}

// Errors are those of the connection and of a store that stays busy; else an answer, whatever its status says.
Result<http::Answer> S3Store::Send(http::Request request, std::stop_token stop) {
  const ByteView body = request.body.value_or(ByteView());
  const Sha256 sum = Sha256Of(body);
  request.headers.push_back("x-amz-content-sha256: " + HexEncode(sum));
  request.timeout = kCallTime;
  request.stall = kStall;
  request.stop = stop;
  // An answer that broke off is asked for from there on.
  uint64_t taken = 0;
  const auto take = std::move(request.take);
  const std::vector<std::string> headers = request.headers;
  Status refused;
  Backoff backoff(kLongestWait, kFirstWait);
  for (int attempt = 1;; ++attempt) {
    if (take) {
      request.headers = headers;
      if (taken > 0) request.headers.push_back(Cat("Range: bytes=", taken, "-"));
      uint64_t skip = taken;  // of an answer that starts from its first byte
      request.take = [&, skip](int status, ByteView bytes) mutable -> Status {
        if (status == 206) skip = 0;
        const uint64_t skipped = std::min<uint64_t>(skip, bytes.size());
        skip -= skipped;
        bytes = bytes.subspan(skipped);
        if (bytes.empty()) return OkStatus();
        taken += bytes.size();
        refused = take(status, bytes);
        return refused;
      };
    }
    Result<http::Answer> answer = SendOnce(request);
    const bool busy = answer.ok() && IsBusy(answer->status);
    const bool broken = answer.status().code() == ErrorCode::kUnavailable ||
                        answer.status().code() == ErrorCode::kAborted || answer.status().code() == ErrorCode::kDeadline;
    if (!refused.ok() || (!busy && !broken)) return answer;
    if (attempt == kAttempts) {
      return busy ? StatusOf(*answer) : Status(ErrorCode::kUnavailable, answer.status().message());
    }
    LS_RETURN_IF_ERROR(Wait(backoff.Next(), stop));
  }
}

Status S3Store::Read(const std::string& name, const Take& take, std::stop_token stop) {
  const auto taken = [&](int, ByteView bytes) { return take(bytes); };
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Send({.target = TargetOf(name), .take = taken}, std::move(stop)));
  if (answer.status == 416) return OkStatus();  // it broke off at its end: nothing is left to be asked for
  return Succeeded(answer) ? OkStatus() : StatusOf(answer);
}

Status S3Store::Write(const std::string& name, ByteView bytes, std::stop_token stop) {
  http::Request request{.target = TargetOf(name), .method = "PUT"};
  request.body = bytes;
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Send(std::move(request), std::move(stop)));
  return Succeeded(answer) ? OkStatus() : StatusOf(answer);
}

// The whole of it in one answer: between two it may have changed.
Result<std::optional<TaggedObject>> S3Store::Look(const std::string& name, const std::string& tag,
                                                  const std::stop_token& stop) {
  http::Request request{.target = TargetOf(name)};
  if (!tag.empty()) request.headers.push_back("If-None-Match: " + tag);
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Send(std::move(request), stop));
  if (answer.status == 304 && !tag.empty()) return std::optional<TaggedObject>();
  if (!Succeeded(answer)) return StatusOf(answer);
  const std::string now = TagIn(answer);
  if (now.empty()) return Status(ErrorCode::kProtocol, "the store gave no ETag");
  if (now == tag) return std::optional<TaggedObject>();
  const ByteView bytes = AsBytes(std::string_view(answer.body));
  return std::optional(TaggedObject{{bytes.begin(), bytes.end()}, now});
}

Result<std::optional<TaggedObject>> S3Store::ReadChanged(const std::string& name, const std::string& tag,
                                                         milliseconds wait, std::stop_token stop) {
  const auto look = [&] {
    auto found = Look(name, tag, stop);
    return found.ok() ? std::move(found) : found.status().WithContext(Cat(url_, "/", name));
  };
  // One that is known is asked for once in that time.
  if (tag.empty() || wait.count() == 0) {
    auto found = look();
    if (found.status().code() != ErrorCode::kNotFound || wait.count() == 0) return found;
  }
  LS_RETURN_IF_ERROR(Wait(wait, stop));
  return look();
}

Result<std::string> S3Store::Replace(const std::string& name, const std::string& tag, ByteView bytes,
                                     std::stop_token stop) {
  // A store without conditional writes takes what it is not to take: so it is looked at before.
  const auto present = Look(name, tag, stop);
  const bool there = present.ok();
  if (!there && present.status().code() != ErrorCode::kNotFound) return present.status();
  if ((there && present->has_value()) || (!there && !tag.empty())) {
    return Status(ErrorCode::kAborted, Cat(url_, "/", name, " was written by another process"));
  }
  http::Request request{.target = TargetOf(name), .method = "PUT"};
  request.headers.push_back(tag.empty() ? "If-None-Match: *" : "If-Match: " + tag);
  request.body = bytes;
  LS_ASSIGN_OR_RETURN(http::Answer answer, Send(request, stop));
  if (answer.status == 412 && !tag.empty()) {
    // Ceph's gateway compares with the tag's text, and calls what is in quotes another one.
    const auto still = Look(name, tag, stop);
    if (still.ok() && !still->has_value() && tag.size() > 2 && tag.front() == '"') {
      request.headers = {"If-Match: " + tag.substr(1, tag.size() - 2)};
      LS_ASSIGN_OR_RETURN(answer, Send(request, stop));
    }
  }
  if (answer.status == 501) {  // it does not know conditional writes, and says so
    request.headers.clear();
    LS_ASSIGN_OR_RETURN(answer, Send(request, stop));
  }
  if (!Succeeded(answer)) return StatusOf(answer).WithContext(Cat(url_, "/", name));
  if (TagIn(answer).empty()) return Status(ErrorCode::kProtocol, "the store gave no ETag");
  return TagIn(answer);
}

Result<std::vector<ListedObject>> S3Store::List(const std::string& prefix, std::stop_token stop) {
  std::vector<ListedObject> objects;
  std::string more;  // where the next page begins
  size_t pages = 0;
  do {
    // In the order that is signed.
    const std::string from = more.empty() ? "" : Cat("continuation-token=", Escaped(more), "&");
    const std::string target = Cat("/?", from, "list-type=2&prefix=", Escaped(prefix_ + prefix));
    LS_ASSIGN_OR_RETURN(const http::Answer answer, Send({.target = target}, stop));
    if (!Succeeded(answer)) return StatusOf(answer).WithContext(url_);
    std::string next;
    ListedObject object;
    bool dated = true;
    const bool whole = ReadXml(answer.body, [&](std::string_view name, const std::string& text) {
      if (name == "Key") object.name = text.starts_with(prefix_) ? text.substr(prefix_.size()) : "";
      if (name == "Size") object.bytes = std::strtoull(text.c_str(), nullptr, 10);
      if (name == "LastModified") {
        const std::optional<int64_t> seconds = UnixSeconds(text);
        dated &= seconds.has_value();
        object.written_unix_ns = seconds.value_or(0) * 1'000'000'000;
      }
      if (name == "NextContinuationToken") next = text;
      if (name == "/Contents" && !object.name.empty()) objects.push_back(std::exchange(object, {}));
    });
    if (!whole || !dated) {
      return Status(ErrorCode::kProtocol, Cat(url_, ": the store's list is no XML, or has times that are none"));
    }
    if (++pages == kMostPages || objects.size() > kMostListed) {
      return Status(ErrorCode::kProtocol, Cat(url_, ": the store's list does not end"));
    }
    more = std::move(next);
  } while (!more.empty());
  return objects;
}

Status S3Store::Remove(const std::string& name, std::stop_token stop) {
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Send({.target = TargetOf(name), .method = "DELETE"}, std::move(stop)));
  if (Succeeded(answer) || answer.status == 404) return OkStatus();
  return StatusOf(answer);
}

}  // namespace lockstep::objects
