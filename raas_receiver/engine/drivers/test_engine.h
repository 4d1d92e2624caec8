// A conformance server (tests/engines/conformance_server.py) as a process, for tests of drivers.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/text.h"
#include "common/http/http_client.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/engine/drivers/driver.h"

namespace lockstep::engine {

// What a driver calls at the control port of one kind of server: paths.
struct ServerKind {
  std::string name;
  std::string runs;  // asked whether it makes tokens
  std::string pause;
  std::string update;  // reads a directory
  std::string drop;    // its caches
  std::string check;   // its weights
  std::string resume;
  std::string served_name;                // asked what it serves; empty: it keeps no names
  std::vector<std::string> resume_calls;  // all of EngineDriver::Resume, in order
  int drops_in_pause = 0;                 // calls of `drop` that a pause takes
  bool outlives_reads = true;             // that fail half-way

  bool keeps_names() const { return !served_name.empty(); }
};

inline std::vector<ServerKind> ServerKinds() {
  return {{.name = "sglang",
           .runs = "/ready",
           .pause = "/pause_generation",
           .update = "/update_weights_from_disk",
           .drop = "/flush_cache",
           .check = "/weights_checker",
           .resume = "/continue_generation",
           .served_name = "/model_info",
           .resume_calls = {"/flush_cache", "/update_weight_version", "/end_weight_update", "/continue_generation"},
           .drops_in_pause = 1,
           .outlives_reads = false},
          {.name = "vllm",
           .runs = "/is_paused",
           .pause = "/pause",
           .update = "/collective_rpc",
           .drop = "/reset_prefix_cache",
           .check = "/weight_checker",
           .resume = "/resume",
           .served_name = "/weight_info",
           .resume_calls = {"/reset_prefix_cache", "/update_weight_version", "/resume", "/is_paused"}}};
}

// Those that can be asked which version they serve.
inline std::vector<ServerKind> KindsWithNames() {
  std::vector<ServerKind> kinds = ServerKinds();
  std::erase_if(kinds, [](const ServerKind& kind) { return !kind.keeps_names(); });
  return kinds;
}

// Those that may come to hold parts of two versions.
inline std::vector<ServerKind> KindsThatMix() {
  std::vector<ServerKind> kinds = ServerKinds();
  std::erase_if(kinds, [](const ServerKind& kind) { return !kind.outlives_reads; });
  return kinds;
}

// For calls that are not to fail by their time, on however busy a machine.
inline constexpr int kPatient = 60'000;

class TestEngine {
 public:
  using Json = nlohmann::json;

  // It starts with Checkpoint(1).
  explicit TestEngine(const std::string& kind, const Json& options = Json::object()) : kind_(kind) {
    Start(Checkpoint(1), options.dump());
    auto client = http::Client::Create({.url = url_});
    REQUIRE(client.ok());
    client_ = *std::move(client);
  }
  ~TestEngine() { End(); }

  // As when it is killed: it listens no more.
  void End() {
    if (process_ < 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  // Ends it and starts it again at the same port, with Checkpoint(1).
  void Restart() {
    End();
    const std::string port = url_.substr(url_.rfind(':') + 1);
    url_.clear();
    Start(Checkpoint(1), "{}", port);
  }

  const std::string& url() const { return url_; }

  // A directory of three layers with three tensors each, all bytes `fill`.
  std::string Checkpoint(uint8_t fill) {
    constexpr int kTensors = 9, kBytes = 64;
    const std::string directory = files_.File(Cat("v", int{fill}));
    Json header;
    for (int i = 0; i < kTensors; ++i) {
      header[Cat("model.layers.", i / 3, ".part", i % 3, ".weight")] = {
          {"dtype", "U8"}, {"shape", {kBytes}}, {"data_offsets", {i * kBytes, (i + 1) * kBytes}}};
    }
    const std::string text = header.dump();
    std::string file(8, '\0');
    file[0] = static_cast<char>(text.size() & 0xff);
    file[1] = static_cast<char>(text.size() >> 8);
    file += text + std::string(kTensors * kBytes, static_cast<char>(fill));
    REQUIRE(os::MakeDirs(directory).ok());
    REQUIRE(os::WriteFileAtomic(directory + "/model.safetensors", file).ok());
    return directory;
  }

  EngineVersion VersionOf(uint8_t fill) {
    return {"actor", {RunId{{0x0a, 0x1b, 0x2c, 0x3d}}, fill}, Checkpoint(fill), "delta"};
  }

  std::unique_ptr<EngineDriver> Driver(int attempts = 1, int timeout_ms = kPatient,
                                       std::optional<int> load_timeout_ms = std::nullopt, std::string_view check = "") {
    auto driver = NewEngineDriver({.kind = kind_,
                                   .url = url_,
                                   .check = std::string(check),
                                   .timeout = std::chrono::milliseconds(timeout_ms),
                                   .load_timeout = std::chrono::milliseconds(load_timeout_ms.value_or(timeout_ms)),
                                   .attempts = attempts,
                                   .first_backoff = std::chrono::milliseconds(1)});
    REQUIRE(driver.ok());
    return *std::move(driver);
  }

  std::unique_ptr<EngineDriver> CheckingDriver() { return Driver(1, kPatient, std::nullopt, kCheckChecksums); }

  // See Fault in http_plumbing.py.
  void SetFaults(const std::vector<Json>& faults) { Ask(Json(faults).dump()); }
  Json State() { return Ask(std::nullopt); }
  // The control calls so far, as "/path" each.
  std::vector<std::string> Paths() {
    std::vector<std::string> paths;
    const Json log = State()["log"];
    for (const Json& call : log) paths.push_back(call["path"]);
    return paths;
  }
  // What a server serves that holds Checkpoint(fill) and nothing else.
  std::string Served(uint8_t fill) {
    if (fill == 1) return first_digest_;
    TestEngine other(kind_);
    REQUIRE(other.Driver()->Load(VersionOf(fill), std::nullopt).status.ok());
    return other.State()["digest"];
  }

 private:
  void Start(const std::string& checkpoint, const std::string& options, const std::string& port = "0") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    os::UniqueFd output(ends[0]), input(ends[1]);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      ::dup2(input.get(), STDOUT_FILENO);
      ::execlp("python3", "python3", "tests/engines/conformance_server.py", "--kind", kind_.c_str(), "--directory",
               checkpoint.c_str(), "--port", port.c_str(), "--options", options.c_str(), nullptr);
      ::_exit(127);
    }
    input.Reset();
    char letter = 0;
    while (::read(output.get(), &letter, 1) == 1 && letter != '\n') url_ += letter;
    REQUIRE(url_.starts_with("http://"));
  }

  Json Ask(std::optional<std::string> faults) {
    const auto answer = client_->Send({.target = "/conformance", .json = std::move(faults)});
    REQUIRE(answer.ok());
    REQUIRE(answer->status == 200);
    const Json state = Json::parse(answer->body);
    if (first_digest_.empty() && state.contains("digest")) first_digest_ = state["digest"];
    return state;
  }

  const os::TempDir files_;
  const std::string kind_;
  pid_t process_ = -1;
  std::string url_;
  std::string first_digest_;
  std::unique_ptr<http::Client> client_;
};

inline nlohmann::json Fault(const std::string& endpoint, const nlohmann::json& more) {
  nlohmann::json fault = {{"endpoint", endpoint}};
  fault.update(more);
  return fault;
}

inline size_t CountOf(const std::vector<std::string>& paths, const std::string& path) {
  return static_cast<size_t>(std::count(paths.begin(), paths.end(), path));
}

// It has `name` for what it serves, if it is of a kind that keeps names.
inline void CheckNamed(TestEngine& engine, const ServerKind& kind, const std::string& name) {
  CHECK(engine.State()["weight_version"] == (kind.keeps_names() ? nlohmann::json(name) : nlohmann::json()));
}

// It serves `fill`, whole, and nothing went wrong on the way.
inline void CheckServes(TestEngine& engine, uint8_t fill) {
  const nlohmann::json state = engine.State();
  CHECK_FALSE(state["paused"].get<bool>());
  CHECK_FALSE(state["mixed"].get<bool>());
  CHECK(state["digest"] == engine.Served(fill));
  CHECK(state["violations"] == nlohmann::json::array());
}

}  // namespace lockstep::engine
