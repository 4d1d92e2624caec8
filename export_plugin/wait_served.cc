#include "export_plugin/wait_served.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/base/text.h"
#include "export_plugin/abi.h"
#include "export_plugin/client/agent_connection.h"

namespace lockstep::abi {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr milliseconds kAgentsWait{10'000};  // the longest (AwaitServedRequest)
constexpr milliseconds kAnswerTimeout{5'000};
constexpr milliseconds kPause{200};

// An AwaitServedRequest (proto/lockstep/v1/agent.proto).
Result<Json> ToQuestion(const lockstep_served_query& query) {
  if (query.abi_version != LOCKSTEP_ABI_VERSION) {
    return Status(ErrorCode::kProtocol,
                  Cat("built against ABI version ", query.abi_version, "; this library has ", LOCKSTEP_ABI_VERSION));
  }
  if (query.socket_path == nullptr || query.model == nullptr || (query.names == nullptr && query.name_count > 0)) {
    return Status(ErrorCode::kBadData, "socket_path, model and names must be given");
  }
  return Json{{"model", query.model},
              {"run", TextOrEmpty(query.run)},
              {"version", query.version},
              {"label", TextOrEmpty(query.label)},
              {"receivers", query.receivers},
              {"engines", query.engines},
              {"names", std::vector<std::string>(query.names, query.names + query.name_count)}};
}

Result<Json> Ask(const std::string& path, const Json& question, milliseconds agents_wait,
                 const os::Interrupted& interrupted) {
  LS_ASSIGN_OR_RETURN(os::UnixConnection connection,
                      client::ConnectToAgent(path, kAnswerTimeout, kAnswerTimeout, interrupted));
  const std::string text = question.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Status sent = wire::SendRankMessage(connection, wire::RankMessageType::kAwaitServed,
                                            AsBytes(std::string_view(text)), {}, kAnswerTimeout);
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply, client::AnswerTo(connection, sent, agents_wait + kAnswerTimeout));
  if (reply.type != wire::RankMessageType::kServed) return client::Unexpected(reply);
  Json answer = Json::parse(AsText(reply.body), nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("served") && answer.contains("text") && answer.contains("run") &&
      answer.contains("version")) {
    return answer;
  }
  return Status(ErrorCode::kProtocol, "rank protocol: a malformed SERVED");
}

std::string Seconds(milliseconds time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

}  // namespace

Status WaitServed(const lockstep_served_query& query, std::string* answer) {
  LS_ASSIGN_OR_RETURN(Json question, ToQuestion(query));
  const bool for_ever = query.timeout_ms == std::numeric_limits<uint32_t>::max();
  const milliseconds timeout{query.timeout_ms};
  const auto deadline = Clock::now() + timeout;
  os::Interrupted interrupted;
  if (query.interrupted != nullptr) interrupted = [&query] { return query.interrupted(query.context) > 0; };
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const milliseconds agents_wait = for_ever ? kAgentsWait : std::clamp(left, milliseconds(0), kAgentsWait);
    question["timeout_ms"] = agents_wait.count();
    const Result<Json> answered = Ask(query.socket_path, question, agents_wait, interrupted);
    Status status = answered.status();
    if (answered.ok()) {
      *answer = answered->dump();
      if (answered->at("served").get<bool>()) return OkStatus();
      // The first answer's run and version are kept: a newer version must not move the goal.
      question["run"] = answered->at("run");
      if (TextOrEmpty(query.label).empty()) question["version"] = answered->at("version");
      status = {ErrorCode::kDeadline, answered->at("text").get<std::string>()};
    } else if (status.code() == ErrorCode::kUnavailable) {
      status = {ErrorCode::kUnavailable, Cat("no agent answers on ", query.socket_path, ": ", status.message())};
    }
    if (interrupted && interrupted()) return {ErrorCode::kDeadline, "interrupted"};
    // An agent that was restarted is asked again.
    if (status.code() != ErrorCode::kDeadline && status.code() != ErrorCode::kUnavailable) return status;
    if (!for_ever && Clock::now() >= deadline) return status.WithContext(Cat("not within ", Seconds(timeout)));
    if (!answered.ok()) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep::abi
