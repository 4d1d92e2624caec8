#include "raas_receiver/engines/driver.h"

#include "common/base/text.h"
#include "raas_receiver/engines/hook_driver.h"
#include "raas_receiver/engines/sglang_driver.h"
#include "raas_receiver/engines/vllm_driver.h"

namespace lockstep {
namespace {

// Nobody is told: engines open the published directory whenever they like, or their memory is all there is.
class NoDriver final : public EngineDriver {
 public:
  std::string_view kind() const override { return "none"; }
  LoadOutcome Load(const EngineVersion&, const std::optional<EngineVersion>&) override {
    return {OkStatus(), Serving::kNew};
  }
  Status Pause(const EngineVersion&) override { return OkStatus(); }
  Status Resume(const EngineVersion&) override { return OkStatus(); }
  Result<bool> StillServes(const EngineVersion&) override { return true; }
  void Cancel() override {}
  uint64_t failures() const override { return 0; }
};

Status Missing(std::string_view option, const std::string& kind) {
  return {ErrorCode::kConfig, Cat("engine ", kind, " needs ", option)};
}

Status CheckUnused(std::string_view option, const std::string& value, const std::string& kind) {
  if (value.empty()) return OkStatus();
  return {ErrorCode::kConfig, Cat(option, " is given, and engine ", kind, " has no use for it")};
}

// An option that the kind has no use for is a mistake that would be noticed too late.
Status CheckOptions(const EngineOptions& options) {
  const bool http = options.kind == "sglang" || options.kind == "vllm";
  if (!http && options.kind != "none" && options.kind != "hook") {
    const std::string kind = CleanText(options.kind, 40);
    return {ErrorCode::kConfig, Cat("engine is ", kind, "; it must be none, hook, sglang or vllm")};
  }
  if (options.kind == "hook" && options.command.empty()) return Missing("a command, --hook CMD", options.kind);
  if (options.kind != "hook") LS_RETURN_IF_ERROR(CheckUnused("hook", options.command, options.kind));
  if (http && options.url.empty()) return Missing("--engine-url, as http://HOST:PORT", options.kind);
  if (!http) {
    LS_RETURN_IF_ERROR(CheckUnused("engine-url", options.url, options.kind));
    LS_RETURN_IF_ERROR(CheckUnused("engine-key-file", options.key_file, options.kind));
    LS_RETURN_IF_ERROR(CheckUnused("engine-pause-mode", options.pause_mode, options.kind));
  }
  if (options.timeout.count() < 1) return {ErrorCode::kConfig, "engine-timeout-ms must be at least 1"};
  if (options.load_timeout.count() < 1) return {ErrorCode::kConfig, "engine-load-timeout-ms must be at least 1"};
  if (options.attempts < 1) return {ErrorCode::kConfig, "engine-attempts must be at least 1"};
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<EngineDriver>> NewEngineDriver(EngineOptions options) {
  LS_RETURN_IF_ERROR(CheckOptions(options));
  if (options.kind == "sglang") return NewSglangDriver(std::move(options));
  if (options.kind == "vllm") return NewVllmDriver(std::move(options));
  if (options.kind == "none") return std::unique_ptr<EngineDriver>(std::make_unique<NoDriver>());
  return std::unique_ptr<EngineDriver>(
      std::make_unique<HookDriver>(HookOptions{.command = std::move(options.command),
                                               .timeout = options.timeout,
                                               .attempts = options.attempts,
                                               .first_backoff = options.first_backoff}));
}

}  // namespace lockstep
