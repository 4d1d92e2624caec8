#include "raas_receiver/engine/drivers/engine_server.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "common/base/text.h"
#include "common/json/json_reader.h"
#include "common/os/file.h"
#include "common/telemetry/log.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

constexpr size_t kSaidBytes = 400;  // of an answer, in a message
constexpr uint64_t kLongestKeyFile = 8192;
constexpr std::chrono::milliseconds kAsk{2'500};
constexpr size_t kChecksumsBytes = 256 << 20;  // of every parameter of every rank

// A path need not be UTF-8, and JSON must be: then the server says that it does not find it.
std::string TextOf(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Where servers put the sentence that matters: {"message"}, {"error": {"message"}}, {"error"}, {"detail"}.
std::string SentenceOf(const json& answer) {
  for (const char* name : {"message", "error", "detail"}) {
    const auto found = answer.find(name);
    if (found == answer.end()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_object()) return SentenceOf(*found);
  }
  return "";
}

std::string SaidIn(const std::string& body, const json& answer) {
  std::string said = answer.is_object() ? SentenceOf(answer) : "";
  if (said.empty()) said = body;
  said = CleanText(said, kSaidBytes);
  while (!said.empty() && (said.back() == '\n' || said.back() == ' ')) said.pop_back();
  return said;
}

// Nothing is no key. One line, perhaps ended; what it may hold is for the client to say.
Result<std::string> ReadKey(const std::string& path) {
  if (path.empty()) return std::string();
  Result<std::string> text = os::ReadSecretFile(path, kLongestKeyFile);
  if (!text.ok()) return Status(ErrorCode::kConfig, Cat("engine-key-file: ", text.status().message()));
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
  if (text->empty()) return Status(ErrorCode::kConfig, Cat("engine-key-file: ", path, " holds no key"));
  return text;
}

// By its name, or its number.
Result<uid_t> FindUser(const std::string& name) {
  uid_t user = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), user);
  if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size()) return user;
  std::vector<char> storage(1 << 16);
  passwd entry{};
  passwd* found = nullptr;
  (void)::getpwnam_r(name.c_str(), &entry, storage.data(), storage.size(), &found);
  if (found != nullptr) return entry.pw_uid;
  return Status(ErrorCode::kConfig, Cat("engine-user: there is no user ", CleanText(name, 80),
                                        " on this host; make it, or give its number"));
}

}  // namespace

bool ServerAnswer::refused() const {
  constexpr std::array kRefusals = {400, 401, 403, 404, 405, 413, 415, 422};
  return std::find(kRefusals.begin(), kRefusals.end(), status) != kRefusals.end();
}

std::optional<std::string> ServerAnswer::Text(const char* name) const {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
}

std::optional<bool> ServerAnswer::Flag(const char* name) const {
  const auto found = json.find(name);
  return found != json.end() && found->is_boolean() ? std::optional(found->get<bool>()) : std::nullopt;
}

Result<std::unique_ptr<EngineServer>> EngineServer::Create(const EngineOptions& options, std::string advice_404) {
  http::ClientOptions http{.url = options.url};
  if (!options.check.empty()) http.max_answer_bytes = kChecksumsBytes;
  LS_ASSIGN_OR_RETURN(http.token, ReadKey(options.key_file));
  if (!http.token.empty()) http.user = ::geteuid();
  if (!options.user.empty()) {
    LS_ASSIGN_OR_RETURN(http.user, FindUser(options.user));
  }
  auto client = http::Client::Create(std::move(http));
  if (!client.ok()) return client.status().WithContext(Cat("engine ", options.kind));
  return std::unique_ptr<EngineServer>(new EngineServer(*std::move(client), options, std::move(advice_404)));
}

EngineServer::EngineServer(std::unique_ptr<http::Client> http, const EngineOptions& options, std::string advice_404)
    : http_(std::move(http)),
      timeout_(options.timeout),
      load_timeout_(options.load_timeout),
      advice_404_(std::move(advice_404)) {}

Result<ServerAnswer> EngineServer::Get(const std::string& target) {
  return Call({.target = target, .timeout = timeout()});
}

Result<ServerAnswer> EngineServer::Post(const std::string& target, const json& body) {
  return Call({.target = target, .json = TextOf(body), .timeout = timeout()});
}

Result<ServerAnswer> EngineServer::PostLoad(const std::string& target, const json& body) {
  return Call({.target = target, .json = TextOf(body), .timeout = load_timeout_});
}

Result<ServerAnswer> EngineServer::Ask(const std::string& target, const std::optional<json>& body) {
  http::Request request{.target = target, .timeout = std::min(timeout(), kAsk)};
  if (body.has_value()) request.json = TextOf(*body);
  return Call(std::move(request));
}

Result<ServerAnswer> EngineServer::Call(http::Request request) {
  if (!after_cancel_.has_value()) {
    MutexLock lock(mutex_);
    request.stop = stop_.get_token();
    request.hang_ups = hang_ups_;
  }
  const std::string call = Cat(request.json.has_value() ? "POST " : "GET ", url(), request.target);
  const auto begin = std::chrono::steady_clock::now();
  const Result<http::Answer> answer = http_->Send(request);
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  if (answer.status().code() == ErrorCode::kCancelled) Cancel();  // by a hang-up, if by nothing else
  telemetry::Log(telemetry::LogLevel::kDebug, "engine_called",
                 {{"call", call},
                  {"answer", answer.ok() ? Cat(answer->status) : answer.status().ToString()},
                  {"duration_s", duration.count()}});
  if (answer.status().code() == ErrorCode::kPermission) {
    return Status(ErrorCode::kPermission,
                  Cat(call, ": ", answer.status().message(), "; nothing was sent; run the server ", "as uid ",
                      ::geteuid(), ", or name its user with --engine-user"));
  }
  if (!answer.ok()) return answer.status();
  Result<json> parsed = lockstep::json::ParseJson(answer->body, {.key = call}, answer->body.size());
  json object = parsed.ok() && parsed->is_object() ? *std::move(parsed) : json();
  std::string said = SaidIn(answer->body, object);
  return ServerAnswer{.call = call, .status = answer->status, .json = std::move(object), .said = std::move(said)};
}

Status EngineServer::Unexpected(const ServerAnswer& answer, std::string_view expected) const {
  const std::string said = answer.said.empty() ? "" : Cat(": ", answer.said);
  const std::string what = Cat(answer.call, " answered ", answer.status, said);
  switch (answer.status) {
    case 200:
      return {ErrorCode::kProtocol, Cat(what, "; ", expected, " was expected")};
    case 401:
    case 403:
      return {ErrorCode::kPermission, Cat(what, "; give the key of its control port with --engine-key-file")};
    case 404:
    case 405:
      return {ErrorCode::kProtocol, Cat(what, "; ", advice_404_)};
    default:
      return {ErrorCode::kAborted, what};
  }
}

void EngineServer::Cancel() {
  MutexLock lock(mutex_);
  stop_.request_stop();
}

void EngineServer::Reset() {
  after_cancel_.reset();
  MutexLock lock(mutex_);
  stop_ = {};
}

bool EngineServer::cancelled() const {
  MutexLock lock(mutex_);
  return stop_.stop_requested();
}

}  // namespace lockstep::engine
