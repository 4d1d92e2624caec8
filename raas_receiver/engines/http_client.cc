#include "raas_receiver/engines/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "common/base/text.h"
#include "common/os/deadline.h"

namespace lockstep::engines {
namespace {

using std::chrono::milliseconds;

constexpr size_t kLongestUrl = 2048;
constexpr size_t kLongestToken = 4096;

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
struct FreeEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Easy = std::unique_ptr<CURL, FreeEasy>;
using Headers = std::unique_ptr<curl_slist, FreeList>;

// Once in a process, and never undone: other libraries may use libcurl too.
bool InitCurl() {
  static const bool done = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return done;
}

bool HasPart(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  const bool has = curl_url_get(url, part, &text, 0) == CURLUE_OK;
  curl_free(text);
  return has;
}

Status WrongUrl(const std::string& url, std::string_view why) {
  return {ErrorCode::kConfig, Cat("the URL ", CleanText(url, 200), " ", why)};
}

// What the write callback fills.
struct Body {
  std::string text;
  size_t limit = 0;
  bool too_long = false;
};

size_t TakeBody(char* bytes, size_t, size_t count, void* to) {
  Body& body = *static_cast<Body*>(to);
  body.too_long = count > body.limit - body.text.size();
  if (body.too_long) return 0;
  body.text.append(bytes, count);
  return count;
}

Headers HeadersOf(const HttpOptions& options, const HttpRequest& request) {
  curl_slist* list = curl_slist_append(nullptr, "Accept: application/json");
  if (!options.token.empty()) list = curl_slist_append(list, ("Authorization: Bearer " + options.token).c_str());
  if (request.json.has_value()) {
    list = curl_slist_append(list, "Content-Type: application/json");
    list = curl_slist_append(list, "Expect:");  // bodies are short: nothing is gained by asking first
  }
  return Headers(list);
}

void SetPolicy(CURL* easy) {
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
  curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
  // A name server that does not answer must not keep us past the deadline: its thread ends by itself.
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
}

// One request in libcurl's hands: what it points into lives as long as this.
struct Call {
  Easy easy{curl_easy_init()};
  Headers headers;
  Body body;
  std::array<char, CURL_ERROR_SIZE> reason{};
  CURLcode outcome = CURLE_OPERATION_TIMEDOUT;
};

void Prepare(Call& call, const HttpOptions& options, const HttpRequest& request) {
  CURL* const easy = call.easy.get();
  call.headers = HeadersOf(options, request);
  call.body.limit = options.max_answer_bytes;
  SetPolicy(easy);
  curl_easy_setopt(easy, CURLOPT_URL, (options.url + request.target).c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call.headers.get());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &call.body);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call.reason.data());
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  const milliseconds connect = std::min(options.connect_timeout, request.timeout);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect.count()));
  if (request.json.has_value()) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.json->size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.json->c_str());
  }
}

// The request is on its way once the connection is there, TLS and all; this is when, or 0.
bool WasSent(const Call& call) {
  curl_off_t microseconds = 0;
  curl_easy_getinfo(call.easy.get(), CURLINFO_PRETRANSFER_TIME_T, &microseconds);
  return microseconds > 0;
}

ErrorCode CodeOf(const Call& call) {
  if (call.body.too_long) return ErrorCode::kResourceExhausted;
  if (!WasSent(call)) return ErrorCode::kUnavailable;
  switch (call.outcome) {
    case CURLE_OPERATION_TIMEDOUT:
      return ErrorCode::kDeadline;
    case CURLE_UNSUPPORTED_PROTOCOL:  // an answer without an HTTP status line
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
      return ErrorCode::kProtocol;
    default:
      return ErrorCode::kAborted;
  }
}

Result<HttpAnswer> AnswerOf(Call& call, std::string_view what) {
  if (call.outcome == CURLE_OK) {
    long status = 0;
    curl_easy_getinfo(call.easy.get(), CURLINFO_RESPONSE_CODE, &status);
    return HttpAnswer{static_cast<int>(status), std::move(call.body.text)};
  }
  if (call.body.too_long) {
    return Status(CodeOf(call), Cat(what, ": the answer has more than ", HumanBytes(call.body.limit)));
  }
  const char* const reason = call.reason[0] != '\0' ? call.reason.data() : curl_easy_strerror(call.outcome);
  return Status(CodeOf(call), Cat(what, ": ", CleanText(reason, 300)));
}

}  // namespace

struct HttpClient::Curl {
  std::unique_ptr<CURLM, FreeMulti> multi{curl_multi_init()};
};

Result<std::string> CheckHttpUrl(const std::string& url) {
  if (url.size() > kLongestUrl) return WrongUrl(url, "is too long");
  const bool printable = std::all_of(url.begin(), url.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!printable) return WrongUrl(url, "has blanks or characters that are not ASCII");
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return WrongUrl(url, "must start with http:// or https://");
  }
  const std::unique_ptr<CURLU, FreeUrl> parsed(curl_url());
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return WrongUrl(url, "is not a URL");
  if (HasPart(parsed.get(), CURLUPART_USER) || HasPart(parsed.get(), CURLUPART_PASSWORD)) {
    return WrongUrl(url, "names a user; a key belongs in a key file");
  }
  if (url.find_first_of("?#") != std::string::npos) return WrongUrl(url, "must have no query and no fragment");
  return url.substr(0, url.find_last_not_of('/') + 1);
}

Result<std::unique_ptr<HttpClient>> HttpClient::Create(HttpOptions options) {
  LS_ASSIGN_OR_RETURN(options.url, CheckHttpUrl(options.url));
  const std::string& token = options.token;
  const bool visible = std::all_of(token.begin(), token.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!visible || token.size() > kLongestToken) {
    return Status(ErrorCode::kConfig, "the key is no bearer token: one line of visible ASCII characters is needed");
  }
  if (!InitCurl()) return Status(ErrorCode::kInternal, "libcurl cannot be initialised");
  std::unique_ptr<HttpClient> client(new HttpClient(std::move(options)));
  if (client->curl_->multi == nullptr) return Status(ErrorCode::kResourceExhausted, "no memory for an HTTP client");
  return client;
}

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)), curl_(std::make_unique<Curl>()) {}

HttpClient::~HttpClient() = default;

Result<HttpAnswer> HttpClient::Send(const HttpRequest& request) {
  const std::string what = Cat(request.json.has_value() ? "POST " : "GET ", options_.url, request.target);
  const auto is_cancelled = [&] { return cancelled_ && !request.after_cancel; };
  Call call;
  if (call.easy == nullptr) return Status(ErrorCode::kResourceExhausted, Cat(what, ": no memory for a call"));
  Prepare(call, options_, request);
  CURLM* const multi = curl_->multi.get();
  if (curl_multi_add_handle(multi, call.easy.get()) != CURLM_OK) {
    return Status(ErrorCode::kInternal, Cat(what, ": libcurl refuses the call"));
  }
  // libcurl has the same time limit; ours also holds when it does not come to check its own.
  const os::Deadline deadline(request.timeout + milliseconds(100));
  int running = 1;
  while (running > 0 && !is_cancelled() && !deadline.Passed()) {
    if (curl_multi_perform(multi, &running) != CURLM_OK) break;
    if (running > 0) curl_multi_poll(multi, nullptr, 0, deadline.PollTimeoutMs(), nullptr);
  }
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
    if (message->msg == CURLMSG_DONE) call.outcome = message->data.result;
  }
  curl_multi_remove_handle(multi, call.easy.get());
  if (running > 0 && is_cancelled()) return Status(ErrorCode::kCancelled, Cat(what, ": cancelled"));
  return AnswerOf(call, what);
}

void HttpClient::Cancel() {
  cancelled_ = true;
  curl_multi_wakeup(curl_->multi.get());
}

}  // namespace lockstep::engines
