#include "export_plugin/questions.h"

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

constexpr milliseconds kAgentsWait{10'000};  // the longest (AwaitServedRequest, AwaitChangesRequest)
constexpr milliseconds kAnswerTimeout{5'000};
constexpr milliseconds kPause{200};

template <typename Query>
Status Check(const Query& query) {
  if (query.abi_version != LOCKSTEP_ABI_VERSION) {
    return {ErrorCode::kProtocol,
            Cat("built against ABI version ", query.abi_version, "; this library has ", LOCKSTEP_ABI_VERSION)};
  }
  if (query.socket_path != nullptr && query.model != nullptr) return OkStatus();
  return {ErrorCode::kBadData, "socket_path and model must be given"};
}

Result<Json> Ask(const std::string& path, wire::RankMessageType type, const Json& question, milliseconds agents_wait,
                 const os::Interrupted& interrupted) {
  LS_ASSIGN_OR_RETURN(os::UnixConnection connection,
                      client::ConnectToAgent(path, kAnswerTimeout, kAnswerTimeout, interrupted));
  const std::string text = question.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Status sent = wire::SendRankMessage(connection, type, AsBytes(std::string_view(text)), {}, kAnswerTimeout);
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply, client::AnswerTo(connection, sent, agents_wait + kAnswerTimeout));
  if (reply.type != wire::RankMessageType::kAnswer) return client::Unexpected(reply);
  Json answer = Json::parse(AsText(reply.body), nullptr, /*allow_exceptions=*/false);
  if (answer.is_object()) return answer;
  return Status(ErrorCode::kProtocol, "rank protocol: a malformed ANSWER");
}

std::string Seconds(milliseconds time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

// Asks until an answer is taken or the query's time is up. The agent answers within kAgentsWait; one that was restarted
// is asked again. `take` is given each answer and the question, which it may change: OK ends this, kDeadline goes on.
template <typename Query, typename Take>
Status AskUntil(const Query& query, wire::RankMessageType type, Json question, const Take& take) {
  const bool for_ever = query.timeout_ms == std::numeric_limits<uint32_t>::max();
  const milliseconds timeout{query.timeout_ms};
  const auto deadline = Clock::now() + timeout;
  os::Interrupted interrupted;
  if (query.interrupted != nullptr) interrupted = [&query] { return query.interrupted(query.context) > 0; };
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const milliseconds agents_wait = for_ever ? kAgentsWait : std::clamp(left, milliseconds(0), kAgentsWait);
    question["timeout_ms"] = agents_wait.count();
    const Result<Json> answered = Ask(query.socket_path, type, question, agents_wait, interrupted);
    Status status = answered.ok() ? take(*answered, question) : answered.status();
    if (status.code() == ErrorCode::kUnavailable) {
      status = {ErrorCode::kUnavailable, Cat("no agent answers on ", query.socket_path, ": ", status.message())};
    }
    if (interrupted && interrupted() && !status.ok()) return {ErrorCode::kDeadline, "interrupted"};
    if (status.code() != ErrorCode::kDeadline && status.code() != ErrorCode::kUnavailable) return status;
    if (!for_ever && Clock::now() >= deadline) return status.WithContext(Cat("not within ", Seconds(timeout)));
    if (!answered.ok()) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

Status WaitServed(const lockstep_served_query& query, std::string* answer) {
  LS_RETURN_IF_ERROR(Check(query));
  if (query.names == nullptr && query.name_count > 0) return {ErrorCode::kBadData, "names must be given"};
  const Json question{{"model", query.model},
                      {"run", TextOrEmpty(query.run)},
                      {"version", query.version},
                      {"label", TextOrEmpty(query.label)},
                      {"receivers", query.receivers},
                      {"engines", query.engines},
                      {"names", std::vector<std::string>(query.names, query.names + query.name_count)}};
  return AskUntil(query, wire::RankMessageType::kAwaitServed, question,
                  [&](const Json& answered, Json& next) -> Status {
                    for (const char* field : {"served", "text", "run", "version"}) {
                      if (!answered.contains(field)) return {ErrorCode::kProtocol, "rank protocol: a malformed ANSWER"};
                    }
                    *answer = answered.dump();
                    if (answered["served"].get<bool>()) return OkStatus();
                    // The first answer's run and version are kept: a newer version must not move the goal.
                    next["run"] = answered["run"];
                    if (TextOrEmpty(query.label).empty()) next["version"] = answered["version"];
                    return {ErrorCode::kDeadline, answered["text"].get<std::string>()};
                  });
}

Status WaitChanges(const lockstep_changes_query& query, std::string* answer) {
  LS_RETURN_IF_ERROR(Check(query));
  const Json question{{"model", query.model}, {"run", TextOrEmpty(query.run)}, {"version", query.version}};
  return AskUntil(query, wire::RankMessageType::kAwaitChanges, question, [&](const Json& answered, Json&) {
    *answer = answered.dump();
    return OkStatus();
  });
}

}  // namespace lockstep::abi
