// A client for the few HTTP calls that control an inference server: JSON there, a bounded answer back, all within a
// deadline, and cancelled from another thread.
//
// Every call has a connection of its own: on a reused one that has died, libcurl would send a request again by itself,
// and a load that is sent twice is loaded twice. Proxies, redirects, cookies and .netrc are not for an engine's control
// port and are not followed, whatever the environment says. https:// proves the server by the system's certificates.
//
// Send is called by one thread at a time, everything else by any.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace lockstep::engines {

struct HttpOptions {
  std::string url;    // http:// or https://, host, perhaps a port and a path before all others; nothing else
  std::string token;  // sent as a bearer token; empty: none
  std::chrono::milliseconds connect_timeout{5'000};
  size_t max_answer_bytes = 1 << 20;
};

struct HttpRequest {
  std::string target;               // from the first '/', with the query
  std::optional<std::string> json;  // POST with this body; nothing: GET
  std::chrono::milliseconds timeout{60'000};
  bool after_cancel = false;  // is sent although Cancel() was called, and is not cancelled by it
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

class HttpClient {
 public:
  // kConfig for a wrong URL or token.
  static Result<std::unique_ptr<HttpClient>> Create(HttpOptions options);
  ~HttpClient();

  // OK is a whole answer, whatever its status says.
  //   kUnavailable        there was no connection: the server has not seen the request
  //   kDeadline           no whole answer in time
  //   kCancelled          Cancel() was called
  //   kResourceExhausted  the answer is longer than max_answer_bytes
  //   kProtocol           the answer is not HTTP
  //   kAborted            the connection ended before the answer did
  // After all but the first, the server may be doing what it was asked.
  Result<HttpAnswer> Send(const HttpRequest& request);

  // Cancels the call under way and refuses later ones, until Reset.
  void Cancel();
  void Reset() { cancelled_ = false; }
  bool cancelled() const { return cancelled_; }

  const std::string& url() const { return options_.url; }  // without a '/' at its end

 private:
  struct Curl;

  explicit HttpClient(HttpOptions options);

  const HttpOptions options_;
  const std::unique_ptr<Curl> curl_;
  std::atomic<bool> cancelled_ = false;
};

// The URL without a '/' at its end. kConfig, saying why, when it is none that HttpOptions::url allows.
Result<std::string> CheckHttpUrl(const std::string& url);

}  // namespace lockstep::engines
