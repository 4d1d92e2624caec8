// An inference server's control port as the drivers use it: JSON out, JSON back, and errors that say which call, what
// the server answered and what to do about it.
//
// Calls are made by one thread at a time; Cancel by any.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/http/http_client.h"
#include "raas_receiver/engine/drivers/driver.h"

namespace lockstep::engine {

struct ServerAnswer {
  std::string call;  // "POST http://127.0.0.1:30000/flush_cache", for messages
  int status = 0;
  nlohmann::json json;  // null when the body is no JSON object
  std::string said;     // what a person should read of it: the message inside, or the start of the body

  bool ok() const { return status == 200; }
  // The server did nothing of what was asked.
  bool refused() const;
  // The text or boolean under `name`; nothing when it is missing or something else.
  std::optional<std::string> Text(const char* name) const;
  std::optional<bool> Flag(const char* name) const;
};

class EngineServer {
 public:
  // `advice_404` says what a server needs that does not know an endpoint. kConfig for a wrong URL or key file, and for
  // a key that others may read.
  static Result<std::unique_ptr<EngineServer>> Create(const EngineOptions& options, std::string advice_404);

  // Errors are those of http::Client::Send: there was no answer.
  Result<ServerAnswer> Get(const std::string& target);
  Result<ServerAnswer> Post(const std::string& target, const nlohmann::json& body = nlohmann::json::object());
  // Post with the time that reading a whole model may take.
  Result<ServerAnswer> PostLoad(const std::string& target, const nlohmann::json& body);
  // Get and Post for a question that is no step: with little time.
  Result<ServerAnswer> Ask(const std::string& target, const std::optional<nlohmann::json>& body = std::nullopt);

  // What an answer that is not as it should be comes to: kPermission, kProtocol for what the server does not know or
  // says in another way than it should (`expected` names that), else kAborted.
  Status Unexpected(const ServerAnswer& answer, std::string_view expected = "") const;

  // From now on calls are made although Cancel was called, each with this much time: to leave the server as it was.
  void AllowAfterCancel(std::chrono::milliseconds timeout) { after_cancel_ = timeout; }

  // Ends the call under way and refuses later ones, until Reset.
  void Cancel();
  // As EngineDriver has it.
  void CancelAtHangUp(std::vector<int> sockets) { hang_ups_ = std::move(sockets); }
  // As before Cancel. REQUIRES that no call is under way.
  void Reset();
  bool cancelled() const;
  const std::string& url() const { return http_->url(); }
  std::chrono::milliseconds timeout() const { return std::min(timeout_, after_cancel_.value_or(timeout_)); }

 private:
  EngineServer(std::unique_ptr<http::Client> http, const EngineOptions& options, std::string advice_404);
  Result<ServerAnswer> Call(http::Request request);

  const std::unique_ptr<http::Client> http_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds load_timeout_;
  const std::string advice_404_;
  mutable Mutex mutex_;
  std::vector<int> hang_ups_;
  std::stop_source stop_ LS_GUARDED_BY(mutex_);
  std::optional<std::chrono::milliseconds> after_cancel_;  // calls are made all the same, each with this much time
};

}  // namespace lockstep::engine
