// The HTTP client: calls that end within a deadline or when they are told to, with bodies that stream both ways. The
// engines' control ports and object stores are called by it.
//
// Proxies, redirects, cookies and .netrc are not followed, whatever the environment says. https:// proves the server by
// `ca_file`, or the system's certificates. HTTP/1.1 is spoken: it is what all of these servers speak.
//
// Thread-safe: each call runs on its caller's thread, so that hashing and TLS take as many cores as there are callers.
// Each has a multi handle of its own meanwhile, and its connections with it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/networks.h"

namespace lockstep::http {

struct ClientOptions {
  std::string url;      // http:// or https://, host, perhaps a port and a path before all others; nothing else
  std::string token;    // sent as a bearer token; empty: none
  std::string ca_file;  // PEM; empty: the system's
  std::chrono::milliseconds connect_timeout{5'000};
  size_t max_answer_bytes = 1 << 20;  // of an answer that no `take` takes
  // For calls that may be made twice: on a kept connection that has died, libcurl sends a request again by itself.
  bool keep_connections = false;
  std::optional<net::Networks> plain;  // http:// is spoken to addresses in these, and this host's; nothing: to any
  std::optional<uid_t> user;  // http:// is spoken to a server of this host that is its, ours or root's; nothing: to any
};

// A request is signed with these, as AWS's signature version 4 of the service "s3".
struct Signing {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: none
  std::string region;
};

struct Request {
  std::string target;                // from the first '/', with the query; its parts are in order of name if signed
  std::string method;                // empty: GET, POST with `json`
  std::optional<std::string> json;   // the body
  std::optional<ByteView> body;      // instead: lent until the call ends
  std::vector<std::string> headers;  // "Name: value"
  const Signing* signing = nullptr;  // lent likewise; needs the header x-amz-content-sha256
  // Gets the body of an answer 200 or 206, in order. An error ends the call and is its answer.
  std::function<Status(int status, ByteView bytes)> take;
  std::chrono::milliseconds timeout{60'000};
  std::chrono::seconds stall{0};  // without a byte for so long it has failed; 0: as long as `timeout`
  std::stop_token stop;
  std::vector<int> hang_ups;  // sockets: one whose peer hangs up is a stop
};

struct Answer {
  int status = 0;
  std::string body;                            // what was not taken
  std::map<std::string, std::string> headers;  // by lower-case name
};

class Client {
 public:
  // kConfig for a wrong URL or token.
  static Result<std::unique_ptr<Client>> Create(ClientOptions options);
  ~Client();

  // OK is a whole answer, whatever its status says.
  //   kUnavailable        there was no connection: the server has not seen the request
  //   kPermission         likewise, as no address of it is in `plain`, or it is not `user`'s
  //   kDeadline           no whole answer in time
  //   kCancelled          a stop was requested, or one of `hang_ups` was one
  //   kResourceExhausted  the answer is longer than max_answer_bytes
  //   kProtocol           the answer is not HTTP
  //   kAborted            the connection ended before the answer did
  // After all but the first two, the server may be doing what it was asked.
  Result<Answer> Send(const Request& request);

  const std::string& url() const { return options_.url; }  // without a '/' at its end

 private:
  struct Multi;
  explicit Client(ClientOptions options);
  std::unique_ptr<Multi> TakeMulti();

  const ClientOptions options_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Multi>> idle_ LS_GUARDED_BY(mutex_);  // with their connections
};

// The URL without a '/' at its end. kConfig, saying why, when it is none that ClientOptions::url allows.
Result<std::string> CheckUrl(const std::string& url);

}  // namespace lockstep::http
