#include <algorithm>
#include <map>

#include "common/base/text.h"
#include "raas_receiver/engine/drivers/drivers.h"
#include "raas_receiver/engine/drivers/http_driver.h"
#include "raas_receiver/engine/drivers/tensor_digests.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

class VllmSteps final : public EngineSteps {
 public:
  VllmSteps(EngineServer& server, std::string pause_mode) : server_(server), pause_mode_(std::move(pause_mode)) {}

  Result<bool> Runs() override {
    LS_ASSIGN_OR_RETURN(const bool paused, IsPaused());
    if (paused) clean_ = false;
    return !paused;
  }

  Status Pause() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post(Cat("/pause?mode=", pause_mode_, "&clear_cache=true")));
    if (!answer.ok() || answer.Text("status") != "paused") return server_.Unexpected(answer, "\"status\": \"paused\"");
    LS_ASSIGN_OR_RETURN(const bool paused, IsPaused());
    if (paused) return OkStatus();
    return {ErrorCode::kState, Cat(server_.url(), " says that it is not paused right after /pause")};
  }

  // A reload that failed leaves layers that were begun. The next one ends these with what it began, which may be wrong;
  // the one after that finds no layer begun and reads all of them.
  ReadOutcome Read(const std::string& directory, const std::string&) override {
    bool touched = false;
    while (true) {
      const bool last = clean_;
      ReadOutcome outcome = Reload(directory);
      touched = touched || outcome.touched;
      if (outcome.touched) clean_ = outcome.status.ok();
      if (!outcome.status.ok()) return {outcome.status, touched};
      if (last) return {OkStatus(), true};
    }
  }

  // By "dp0:pp0:pcp0:tp0:model.norm.weight".
  Result<std::vector<RankDigests>> Digests() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.PostLoad("/weight_checker", {{"action", "checksum"}}));
    const auto checksums = answer.json.find("checksums");
    if (!answer.ok() || checksums == answer.json.end() || !checksums->is_object()) {
      return server_.Unexpected(answer, "\"checksums\"");
    }
    std::map<std::string, RankDigests> ranks;
    for (const auto& [key, digest] : checksums->items()) {
      const size_t colon = key.rfind(':');
      if (colon == key.npos || !digest.is_string()) return server_.Unexpected(answer, "RANK:PARAMETER and its digest");
      RankDigests& rank = ranks[key.substr(0, colon)];
      rank.rank = key.substr(0, colon);
      rank.parameters[key.substr(colon + 1)] = digest.get<std::string>();
    }
    std::vector<RankDigests> digests;
    for (auto& [_, rank] : ranks) digests.push_back(std::move(rank));
    return digests;
  }

  std::vector<std::string> DigestsOf(ByteView bytes) const override { return {Sha256Hex(bytes)}; }

  Status DropCaches() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer,
                        server_.Post("/reset_prefix_cache?reset_running_requests=true&reset_external=true"));
    if (answer.ok() && answer.Flag("success") == true) return OkStatus();
    return server_.Unexpected(answer, "\"success\": true");
  }

  Result<bool> Name(const std::string& name) override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post("/update_weight_version", {{"new_version", name}}));
    if (answer.status == 404) return false;
    if (answer.ok() && answer.Flag("success") == true && answer.Text("new_version") == name) return true;
    return server_.Unexpected(answer, "\"success\": true and the version");
  }

  Status Answers() override { return ToStatus(server_.Ask("/health")); }

  Result<std::optional<std::string>> ServedName() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Ask("/weight_info"));
    if (answer.status != 200 && answer.refused()) return std::optional<std::string>();
    if (!answer.ok() || answer.json.is_null()) return server_.Unexpected(answer, "a JSON object");
    return answer.Text("weight_version");
  }

  Status Resume() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Post("/resume"));
    if (!answer.ok() || answer.Text("status") != "resumed") {
      return server_.Unexpected(answer, "\"status\": \"resumed\"");
    }
    LS_ASSIGN_OR_RETURN(const bool paused, IsPaused());
    if (!paused) return OkStatus();
    return {ErrorCode::kState, Cat(server_.url(), " says that it is paused right after /resume")};
  }

  // By a method that lockstep's plugin gives every worker.
  Result<std::vector<std::string>> Incarnations() override {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer,
                        server_.Post("/collective_rpc", {{"method", "lockstep_incarnation"}}));
    const auto results = answer.json.find("results");
    if (!answer.ok() || results == answer.json.end()) {
      return server_.Unexpected(answer, "\"results\" of lockstep's plugin, which the server needs");
    }
    std::vector<std::string> incarnations;
    for (const json& result : *results) {
      if (result.is_string()) incarnations.push_back(result.get<std::string>());
    }
    return incarnations;
  }

 private:
  // The server answers after the engine's work in progress. So a reload that lost its answer has ended by then.
  Result<bool> IsPaused() {
    LS_ASSIGN_OR_RETURN(const ServerAnswer answer, server_.Get("/is_paused"));
    const auto paused = answer.Flag("is_paused");
    if (!answer.ok() || !paused.has_value()) return server_.Unexpected(answer, "\"is_paused\"");
    return *paused;
  }

  // Without "timeout": after one, the worker's late answer would be taken for that to the next call.
  ReadOutcome Reload(const std::string& directory) {
    const auto answer =
        server_.PostLoad("/collective_rpc", {{"method", "reload_weights"}, {"kwargs", {{"weights_path", directory}}}});
    if (!answer.ok()) return {answer.status(), answer.status().code() != ErrorCode::kUnavailable};
    const auto results = answer->json.find("results");
    const bool from_workers = results != answer->json.end() && results->is_array() && !results->empty();
    const auto nothing = [](const json& result) { return result.is_null(); };
    if (answer->ok() && from_workers && std::all_of(results->begin(), results->end(), nothing)) {
      return {OkStatus(), true};
    }
    return {server_.Unexpected(*answer, "\"results\" with a null from every worker"), !answer->refused()};
  }

  EngineServer& server_;
  const std::string pause_mode_;
  bool clean_ = true;  // no layer is left begun
};

}  // namespace

Result<std::unique_ptr<EngineDriver>> NewVllmDriver(const DriverKind& kind, EngineOptions options) {
  LS_ASSIGN_OR_RETURN(
      auto server,
      EngineServer::Create(options, "recent vLLM servers have it, with VLLM_SERVER_DEV_MODE=1 in their environment"));
  auto steps = std::make_unique<VllmSteps>(*server, options.pause_mode);
  return std::unique_ptr<EngineDriver>(
      std::make_unique<HttpDriver>(kind, std::move(options), std::move(server), std::move(steps)));
}

}  // namespace lockstep::engine
