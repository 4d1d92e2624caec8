#include "raas_receiver/engine/drivers/driver_kind.h"

#include <algorithm>
#include <array>
#include <vector>

#include "common/base/text.h"
#include "raas_receiver/engine/drivers/drivers.h"

namespace lockstep::engine {
namespace {

// No engine is notified: engines open the published directory whenever they like, or their memory is all there is.
class NoDriver final : public EngineDriver {
 public:
  using EngineDriver::EngineDriver;

  LoadOutcome Load(const EngineVersion&, const std::optional<EngineVersion>&) override {
    return {OkStatus(), Serving::kNew};
  }
  Status Pause(const EngineVersion&) override { return OkStatus(); }
  Status Resume(const EngineVersion&) override { return OkStatus(); }
  Result<std::optional<bool>> StillServes(const EngineVersion&) override { return std::optional<bool>(); }
  void Cancel() override {}
  void Reset() override {}
  uint64_t failures() const override { return 0; }
};

// NOLINTNEXTLINE(performance-unnecessary-value-param): the others keep theirs
Result<std::unique_ptr<EngineDriver>> NewNoDriver(const DriverKind& kind, EngineOptions) {
  return std::unique_ptr<EngineDriver>(std::make_unique<NoDriver>(kind));
}

constexpr DriverOption kCommand{&EngineOptions::command, "command", "a command, as hook:COMMAND"};
constexpr DriverOption kUrl{&EngineOptions::url, "url", "a URL, as http://HOST:PORT"};
constexpr DriverOption kKeyFile{&EngineOptions::key_file, "engine-key-file"};
constexpr DriverOption kUser{&EngineOptions::user, "engine-user"};
constexpr DriverOption kPauseMode{&EngineOptions::pause_mode, "engine-pause-mode"};
constexpr DriverOption kCheck{&EngineOptions::check, "engine-check"};
constexpr std::array kOptions{kCommand, kUrl, kKeyFile, kUser, kPauseMode, kCheck};
constexpr std::array kHookOptions{kCommand};
constexpr std::array kServerOptions{kUrl, kKeyFile, kUser, kPauseMode, kCheck};
constexpr std::array<std::string_view, 2> kSglangPauseModes{"retract", "abort"};
constexpr std::array<std::string_view, 3> kVllmPauseModes{"keep", "wait", "abort"};

constexpr std::array kKinds{
    DriverKind{.name = "none", .notifies = false, .create = &NewNoDriver},
    DriverKind{.name = "hook", .options = kHookOptions, .create = &NewHookDriver},
    DriverKind{.name = "sglang",
               .controls_server = true,
               .options = kServerOptions,
               .pause_modes = kSglangPauseModes,
               .pause_modes_note = " (in_place would keep the old cache)",
               .create = &NewSglangDriver},
    DriverKind{.name = "vllm",
               .controls_server = true,
               .options = kServerOptions,
               .pause_modes = kVllmPauseModes,
               .create = &NewVllmDriver},
    DriverKind{.name = "server", .controls_server = true, .options = kServerOptions, .create = &NewAskedDriver},
};

// "a", "a or b", "a, b or c".
std::string Enumerate(std::span<const std::string_view> names, std::string_view conjunction) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : Cat(" ", conjunction, " ");
    text += names[i];
  }
  return text;
}

bool Uses(const DriverKind& kind, EngineOption option) {
  return std::ranges::find(kind.options, option, &DriverOption::option) != kind.options.end();
}

// An option that the kind does not use is a mistake that would be noticed too late.
Status CheckOptions(const DriverKind& kind, const EngineOptions& options) {
  for (const DriverOption& known : kOptions) {
    const bool given = !(options.*known.option).empty();
    const bool used = Uses(kind, known.option);
    if (given && !used) {
      return {ErrorCode::kConfig, Cat(known.name, " is given, and engine ", kind.name, " has no use for it")};
    }
    if (used && !given && !known.needed.empty()) {
      return {ErrorCode::kConfig, Cat("engine ", kind.name, " needs ", known.needed)};
    }
  }
  if (!options.check.empty() && options.check != kCheckChecksums) {
    return {ErrorCode::kConfig,
            Cat("engine-check is ", CleanText(options.check, 40), "; give ", kCheckChecksums, ", or leave it out")};
  }
  if (options.timeout.count() < 1) return {ErrorCode::kConfig, "engine-timeout must be at least 1ms"};
  if (options.load_timeout.count() < 1) return {ErrorCode::kConfig, "engine-load-timeout must be at least 1ms"};
  if (options.attempts < 1) return {ErrorCode::kConfig, "engine-attempts must be at least 1"};
  return OkStatus();
}

Result<std::string> PauseMode(const DriverKind& kind, const std::string& given) {
  const auto& modes = kind.pause_modes;
  if (modes.empty()) return given;
  if (given.empty()) return std::string(modes.front());
  if (std::ranges::find(modes, given) != modes.end()) return given;
  return Status(ErrorCode::kConfig, Cat("engine-pause-mode is ", CleanText(given, 40), "; ", kind.name, " has ",
                                        Enumerate(modes, "and"), kind.pause_modes_note));
}

}  // namespace

std::span<const DriverKind> DriverKinds() {
  return kKinds;
}

const DriverKind* FindDriverKind(std::string_view name) {
  const auto found = std::ranges::find(kKinds, name, &DriverKind::name);
  return found == kKinds.end() ? nullptr : &*found;
}

std::string DriverKindNames(EngineOption option) {
  std::vector<std::string_view> names;
  for (const DriverKind& kind : kKinds) {
    if (option == nullptr || Uses(kind, option)) names.push_back(kind.name);
  }
  return Enumerate(names, "or");
}

Result<std::unique_ptr<EngineDriver>> NewEngineDriver(EngineOptions options) {
  const DriverKind* const kind = FindDriverKind(options.kind);
  if (kind == nullptr) {
    return Status(ErrorCode::kConfig,
                  Cat("its kind is ", CleanText(options.kind, 40), "; it must be ", DriverKindNames()));
  }
  LS_RETURN_IF_ERROR(CheckOptions(*kind, options));
  LS_ASSIGN_OR_RETURN(options.pause_mode, PauseMode(*kind, options.pause_mode));
  return kind->create(*kind, std::move(options));
}

}  // namespace lockstep::engine
