#include <thread>

#include "common/base/text.h"
#include "common/os/deadline.h"
#include "raas_receiver/engine/drivers/drivers.h"
#include "raas_receiver/engine/drivers/http_driver.h"
#include "raas_receiver/engine/drivers/tensor_digests.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kFlushAgain{200};

class SglangSteps final : public EngineSteps {
 public:
  SglangSteps(EngineServer& server, std::string pause_mode) : server_(server), pause_mode_(std::move(pause_mode)) {}

  Result<bool> Runs() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Get("/ready"));
    if (answer.ok()) return true;
    if (answer.status == 404) return MakesToken();
    if (answer.status != 503) return server_.Unexpected(answer);
    LS_ASSIGN_OR_RETURN(const bool healthy, Healthy());
    if (!healthy) return false;
    LS_ASSIGN_OR_RETURN(const ServerAnswer again, server_.Get("/ready"));
    return again.ok();
  }

  Status Pause() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post("/pause_generation", {{"mode", pause_mode_}}));
    LS_RETURN_IF_ERROR(CheckOk(answer));
    // The answer comes before the scheduler has acted. Its answer to a flush comes after it, and says that nothing
    // runs.
    return DropCaches();
  }

  // The server makes what it packs writable, and at the session's end packs it again and computes what it keeps beside
  // its parameters. Servers without sessions do neither.
  Status BeginWrites() override {
    in_session_ = true;  // also when the answer is lost
    LS_ASSIGN_OR_RETURN(ServerAnswer answer, server_.Post("/begin_weight_update"));
    if (answer.Flag("success") == false) {  // a receiver that ended in a session left it open
      LS_RETURN_IF_ERROR(EndSession());
      in_session_ = true;
      LS_ASSIGN_OR_RETURN(answer, server_.Post("/begin_weight_update"));
    }
    if (answer.ok() && answer.Flag("success") == true) return OkStatus();
    if (answer.status != 404) return server_.Unexpected(answer, "\"success\": true");
    in_session_ = false;
    return OkStatus();
  }

  ReadOutcome Read(const std::string& directory, const std::string& name) override {
    // A flush of its own kills older servers when a request is pending.
    const auto answer = server_.PostLoad("/update_weights_from_disk",
                                         {{"model_path", directory}, {"flush_cache", false}, {"weight_version", name}});
    if (!answer.ok()) return {answer.status(), answer.status().code() != ErrorCode::kUnavailable};
    const auto success = answer->Flag("success");
    if (answer->ok() && success == true) return {OkStatus(), true};
    // "success" comes from the scheduler, which may have read some of it.
    return {server_.Unexpected(*answer, "\"success\": true"), success.has_value() || !answer->refused()};
  }

  Result<std::vector<RankDigests>> Digests() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.PostLoad("/weights_checker", {{"action", "checksum"}}));
    const auto ranks = answer.json.find("ranks");
    if (!answer.ok() || ranks == answer.json.end() || !ranks->is_array()) {
      return server_.Unexpected(answer, "\"ranks\"");
    }
    std::vector<RankDigests> digests;
    for (const json& rank : *ranks) {
      digests.push_back({.rank = Cat("rank ", digests.size()), .parameters = {}});
      const auto checksums = rank.find("checksums");
      if (checksums == rank.end() || !checksums->is_object()) return server_.Unexpected(answer, "\"checksums\"");
      for (const auto& [name, digest] : checksums->items()) {
        if (digest.is_string()) digests.back().parameters[name] = digest.get<std::string>();
      }
    }
    return digests;
  }

  // The beginning of a SHA-256 on a CPU.
  std::vector<std::string> DigestsOf(ByteView bytes) const override {
    return {SglangGpuHash(bytes), Sha256Hex(bytes).substr(0, 16)};
  }

  // Refused while something runs: asked again until the time of a call is over.
  Status DropCaches() override {
    const os::Deadline deadline(server_.timeout());
    while (true) {
      LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post("/flush_cache"));
      if (answer.ok()) return OkStatus();
      if (answer.status != 400 || deadline.Passed()) return server_.Unexpected(answer);
      std::this_thread::sleep_for(kFlushAgain);
    }
  }

  Result<bool> Name(const std::string& name) override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer,
                        server_.Post("/update_weight_version", {{"new_version", name}, {"abort_all_requests", false}}));
    if (answer.status == 404) return false;
    if (answer.ok() && answer.Flag("success") == true && answer.Text("new_version").value_or(name) == name) {
      return true;
    }
    return server_.Unexpected(answer, "\"success\": true");
  }

  // Not /health, which waits while it is paused.
  Status Answers() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Ask("/ready"));
    return answer.status == 503 ? ToStatus(Healthy()) : OkStatus();
  }

  Result<std::optional<std::string>> ServedName() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Ask("/model_info"));
    if (answer.status != 200 && answer.refused()) return std::optional<std::string>();
    if (!answer.ok() || answer.json.is_null()) return server_.Unexpected(answer, "a JSON object");
    return answer.Text("weight_version");
  }

  Status Resume() override {
    LS_RETURN_IF_ERROR(EndSession());
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post("/continue_generation"));
    return CheckOk(answer);
  }

  // By what lockstep's plugin adds to each scheduler's state.
  Result<std::vector<std::string>> Incarnations() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Get("/server_info"));
    const auto states = answer.json.find("internal_states");
    if (!answer.ok() || states == answer.json.end()) return server_.Unexpected(answer, "\"internal_states\"");
    std::vector<std::string> incarnations;
    for (const json& state : *states) {
      const auto own = state.find("lockstep");
      if (own != state.end() && own->is_string()) incarnations.push_back(own->get<std::string>());
    }
    return incarnations;
  }

 private:
  // False where none is open, 404 where there are no sessions: then the answer to the call before was lost.
  Status EndSession() {
    if (!in_session_) return OkStatus();
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post("/end_weight_update"));
    if (answer.status != 404 && !answer.Flag("success").has_value()) return server_.Unexpected(answer, "\"success\"");
    in_session_ = false;
    return OkStatus();
  }

  // For servers that are too old for /ready.
  Result<bool> MakesToken() {
    const json one = {{"input_ids", {0}}, {"sampling_params", {{"max_new_tokens", 1}, {"temperature", 0}}}};
    const auto answer = server_.Ask("/generate", one);
    if (answer.status().code() == ErrorCode::kCancelled) return answer.status();
    return answer.ok() && answer->ok();
  }

  // /ready says 503 of a server that starts, of one that is paused, and of one whose last /health failed, as it does
  // amid a long pause. /health says 503 at once of the first, and nothing in our time of the second; of the third it
  // says 200 after a second, which /ready believes from then on.
  Result<bool> Healthy() {
    const auto answer = server_.Ask("/health");
    if (answer.status().code() == ErrorCode::kDeadline) return false;
    LS_RETURN_IF_ERROR(answer.status());
    if (answer->status != 503) return answer->ok();
    return Status(ErrorCode::kUnavailable, Cat(answer->call, " answered 503: the server is starting, or ends"));
  }

  Status CheckOk(const ServerAnswer& answer) const {
    if (answer.ok() && answer.Text("status") == "ok") return OkStatus();
    return server_.Unexpected(answer, "\"status\": \"ok\"");
  }

  EngineServer& server_;
  const std::string pause_mode_;
  bool in_session_ = false;
};

}  // namespace

Result<std::unique_ptr<EngineDriver>> NewSglangDriver(const DriverKind& kind, EngineOptions options) {
  LS_ASSIGN_OR_RETURN(auto server, EngineServer::Create(options, "recent SGLang servers have it"));
  auto steps = std::make_unique<SglangSteps>(*server, options.pause_mode);
  return std::unique_ptr<EngineDriver>(
      std::make_unique<HttpDriver>(kind, std::move(options), std::move(server), std::move(steps)));
}

}  // namespace lockstep::engine
