#include "common/http/http_client.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/ip/address.hpp>
#include <cctype>
#include <cstring>
#include <string_view>

#include "common/base/freed.h"
#include "common/base/text.h"
#include "common/net/server_user.h"
#include "common/os/deadline.h"

namespace lockstep::http {
namespace {

using std::chrono::milliseconds;

constexpr size_t kLongestUrl = 2048;
constexpr size_t kLongestToken = 4096;

using Easy = std::unique_ptr<CURL, Freed<curl_easy_cleanup>>;
using Headers = std::unique_ptr<curl_slist, Freed<curl_slist_free_all>>;

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
  return {ErrorCode::kConfig, Cat("the URL ", CleanText(WithoutPasswords(url), 200), " ", why)};
}

// One request in libcurl's hands: what it points into lives as long as this.
struct Call {
  Call(const Request& made, const ClientOptions& with) : request(made), options(with) {}

  const Request& request;
  const ClientOptions& options;
  Easy easy{curl_easy_init()};
  Headers headers;
  size_t sent = 0;   // of the body
  std::string body;  // what came of the answer's
  bool too_long = false;
  Status refused;                               // by `take`, or the server's user is another
  Status not_called;                            // an address that plaintext is not spoken to
  std::map<std::string, std::string> answered;  // headers
  std::array<char, CURL_ERROR_SIZE> reason{};
  CURLcode outcome = CURLE_OPERATION_TIMEDOUT;

  int status() const {
    long status = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }
};

size_t TakeBody(char* bytes, size_t, size_t count, void* to) {
  Call& call = *static_cast<Call*>(to);
  const int status = call.status();
  if (call.request.take && (status == 200 || status == 206)) {
    call.refused = call.request.take(status, AsBytes(std::string_view(bytes, count)));
    return call.refused.ok() ? count : 0;
  }
  call.too_long = count > call.options.max_answer_bytes - call.body.size();
  if (call.too_long) return 0;
  call.body.append(bytes, count);
  return count;
}

size_t TakeHeader(char* bytes, size_t, size_t count, void* to) {
  Call& call = *static_cast<Call*>(to);
  std::string_view line(bytes, count);
  if (line.starts_with("HTTP/")) call.answered.clear();  // another answer follows 100 Continue
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return count;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  line.remove_prefix(colon + 1);
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n' || line.back() == ' ')) line.remove_suffix(1);
  call.answered[std::move(name)] = std::string(line);
  return count;
}

size_t GiveBody(char* to, size_t, size_t count, void* from) {
  Call& call = *static_cast<Call*>(from);
  const ByteView rest = call.request.body->subspan(call.sent);
  const size_t given = std::min(count, rest.size());
  std::memcpy(to, rest.data(), given);
  call.sent += given;
  return given;
}

int SeekBody(void* from, curl_off_t offset, int) {
  static_cast<Call*>(from)->sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

asio::ip::address AddressOf(const curl_sockaddr& called) {
  if (called.family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &called.addr, sizeof v4);
    return asio::ip::address_v4(ntohl(v4.sin_addr.s_addr));
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &called.addr, std::min<size_t>(sizeof v6, called.addrlen));
  asio::ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  return asio::ip::address_v6(bytes);
}

// Makes the socket to an address that the host's name stands for.
curl_socket_t OpenSocket(void* of, curlsocktype, curl_sockaddr* called) {
  Call& call = *static_cast<Call*>(of);
  const asio::ip::address address = AddressOf(*called);
  if (call.options.plain && !call.options.plain->Contain(address) && call.options.url.starts_with("http://")) {
    call.not_called = net::NotInPlaintext(call.options.url, address.to_string());
    return CURL_SOCKET_BAD;
  }
  return ::socket(called->family, called->socktype | SOCK_CLOEXEC, called->protocol);
}

// Called when the connection is there, and nothing was sent.
int CheckUser(void* of, char* server, char* here, int server_port, int here_port) {
  Call& call = *static_cast<Call*>(of);
  asio::error_code none;
  const auto to = asio::ip::make_address(server, none), from = asio::ip::make_address(here, none);
  if (!to.is_loopback() && to != from) return CURL_PREREQFUNC_OK;  // another host's
  call.refused = net::CheckServerUser({from, static_cast<uint16_t>(here_port)},
                                      {to, static_cast<uint16_t>(server_port)}, *call.options.user);
  return call.refused.ok() ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

Headers HeadersOf(const ClientOptions& options, const Request& request) {
  curl_slist* list = nullptr;
  const auto add = [&](const std::string& header) { list = curl_slist_append(list, header.c_str()); };
  if (request.signing == nullptr) add("Accept: application/json");
  if (!options.token.empty()) add("Authorization: Bearer " + options.token);
  if (request.json.has_value()) add("Content-Type: application/json");
  if (request.signing == nullptr) add("Expect:");  // nothing is gained by asking first; all that is named is signed
  for (const std::string& header : request.headers) add(header);
  if (request.signing != nullptr && !request.signing->session_token.empty()) {
    add("x-amz-security-token: " + request.signing->session_token);
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
  // A name server that does not answer must not keep us past the deadline: its thread ends by itself.
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
}

void SetBody(Call& call) {
  CURL* const easy = call.easy.get();
  const Request& request = call.request;
  if (request.json.has_value()) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.json->size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.json->c_str());
  } else if (request.body.has_value()) {
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, &GiveBody);
    curl_easy_setopt(easy, CURLOPT_READDATA, &call);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, &SeekBody);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, &call);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
  }
  if (!request.method.empty()) curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
}

void Prepare(Call& call) {
  CURL* const easy = call.easy.get();
  const ClientOptions& options = call.options;
  const Request& request = call.request;
  call.headers = HeadersOf(options, request);
  SetPolicy(easy);
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, &call);
  if (options.user && options.url.starts_with("http://")) {
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, &CheckUser);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, &call);
  }
  if (!options.keep_connections) {
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
  }
  if (!options.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_file.c_str());
  curl_easy_setopt(easy, CURLOPT_URL, (options.url + request.target).c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call.headers.get());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &call);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &TakeHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &call);
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call.reason.data());
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  const milliseconds connect = std::min(options.connect_timeout, request.timeout);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect.count()));
  if (request.stall.count() > 0) {
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall.count()));
  }
  if (const Signing* signing = request.signing) {
    curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 100L);  // of a server that does not answer that
    curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, Cat("aws:amz:", signing->region, ":s3").c_str());
    curl_easy_setopt(easy, CURLOPT_USERNAME, signing->access_key.c_str());
    curl_easy_setopt(easy, CURLOPT_PASSWORD, signing->secret_key.c_str());
  }
  SetBody(call);
}

// The request is on its way once the connection is there, TLS and all; this is when, or 0.
bool WasSent(const Call& call) {
  curl_off_t microseconds = 0;
  curl_easy_getinfo(call.easy.get(), CURLINFO_PRETRANSFER_TIME_T, &microseconds);
  return microseconds > 0;
}

ErrorCode CodeOf(const Call& call) {
  if (call.too_long) return ErrorCode::kResourceExhausted;
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

Result<Answer> AnswerOf(Call& call, std::string_view what) {
  if (call.outcome == CURLE_OK) return Answer{call.status(), std::move(call.body), std::move(call.answered)};
  if (!call.refused.ok()) return call.refused;
  if (!call.not_called.ok() && !WasSent(call)) return call.not_called;
  if (call.too_long) {
    return Status(CodeOf(call), Cat(what, ": the answer has more than ", HumanBytes(call.options.max_answer_bytes)));
  }
  const char* const reason = call.reason[0] != '\0' ? call.reason.data() : curl_easy_strerror(call.outcome);
  return Status(CodeOf(call), Cat(what, ": ", CleanText(reason, 300)));
}

}  // namespace

struct Client::Multi {
  std::unique_ptr<CURLM, Freed<curl_multi_cleanup>> handle{curl_multi_init()};
};

Result<std::string> CheckUrl(const std::string& url) {
  if (url.size() > kLongestUrl) return WrongUrl(url, "is too long");
  const bool printable = std::all_of(url.begin(), url.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!printable) return WrongUrl(url, "has blanks or characters that are not ASCII");
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return WrongUrl(url, "must start with http:// or https://");
  }
  const std::unique_ptr<CURLU, Freed<curl_url_cleanup>> parsed(curl_url());
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return WrongUrl(url, "is not a URL");
  if (HasPart(parsed.get(), CURLUPART_USER) || HasPart(parsed.get(), CURLUPART_PASSWORD)) {
    return WrongUrl(url, "names a user; a key belongs in a key file");
  }
  if (url.find_first_of("?#") != std::string::npos) return WrongUrl(url, "must have no query and no fragment");
  return url.substr(0, url.find_last_not_of('/') + 1);
}

Result<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  LS_ASSIGN_OR_RETURN(options.url, CheckUrl(options.url));
  const std::string& token = options.token;
  const bool visible = std::all_of(token.begin(), token.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!visible || token.size() > kLongestToken) {
    return Status(ErrorCode::kConfig, "the key is no bearer token: one line of visible ASCII characters is needed");
  }
  if (!InitCurl()) return Status(ErrorCode::kInternal, "libcurl cannot be initialised");
  return std::unique_ptr<Client>(new Client(std::move(options)));
}

Client::Client(ClientOptions options) : options_(std::move(options)) {}

Client::~Client() = default;

std::unique_ptr<Client::Multi> Client::TakeMulti() {
  MutexLock lock(mutex_);
  if (idle_.empty()) return std::make_unique<Multi>();
  std::unique_ptr<Multi> multi = std::move(idle_.back());
  idle_.pop_back();
  return multi;
}

Result<Answer> Client::Send(const Request& request) {
  const std::string method = !request.method.empty() ? request.method : request.json.has_value() ? "POST" : "GET";
  const std::string what = Cat(method, " ", options_.url, request.target);
  std::unique_ptr<Multi> multi = TakeMulti();
  Call call(request, options_);
  if (call.easy == nullptr || multi->handle == nullptr) {
    return Status(ErrorCode::kResourceExhausted, Cat(what, ": no memory for a call"));
  }
  Prepare(call);
  CURLM* const handle = multi->handle.get();
  if (curl_multi_add_handle(handle, call.easy.get()) != CURLM_OK) {
    return Status(ErrorCode::kInternal, Cat(what, ": libcurl refuses the call"));
  }
  const std::stop_callback on_stop(request.stop, [handle] { curl_multi_wakeup(handle); });
  // libcurl has the same time limit; ours also holds when it does not come to check its own.
  const os::Deadline deadline(request.timeout + milliseconds(100));
  std::vector<curl_waitfd> hang_ups;
  for (const int socket : request.hang_ups) hang_ups.push_back({socket, 0, 0});  // poll tells of a hang-up unasked
  const auto stopped = [&] {
    return request.stop.stop_requested() || std::ranges::any_of(request.hang_ups, [](int socket) {
             pollfd polled{socket, POLLRDHUP, 0};
             return ::poll(&polled, 1, 0) > 0;
           });
  };
  int running = 1;
  while (running > 0 && !stopped() && !deadline.Passed()) {
    if (curl_multi_perform(handle, &running) != CURLM_OK) break;
    if (running == 0) break;
    curl_multi_poll(handle, hang_ups.data(), static_cast<unsigned>(hang_ups.size()), deadline.PollTimeoutMs(), nullptr);
  }
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(handle, &left)) {
    if (message->msg == CURLMSG_DONE) call.outcome = message->data.result;
  }
  curl_multi_remove_handle(handle, call.easy.get());
  if (running > 0 && stopped()) return Status(ErrorCode::kCancelled, Cat(what, ": cancelled"));
  if (options_.keep_connections) {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(multi));
  }
  return AnswerOf(call, what);
}

}  // namespace lockstep::http
