#include "raas_receiver/receiver/engine_settings.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "common/base/text.h"
#include "raas_receiver/engines/driver.h"

namespace lockstep::receiver {
namespace {

using std::chrono::milliseconds;

constexpr char kAsked[] = "server";  // the kind of one that says itself of which it is
constexpr uint64_t kDayMs = 24 * 3600 * 1000;

std::string Key(std::string_view flag) {
  std::string key(flag);
  std::ranges::replace(key, '-', '_');
  return key;
}

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

// "[NAME=][KIND:]URL" or "[NAME=]hook:COMMAND".
Status ReadText(std::string_view text, std::string& name, engines::EngineOptions& driver) {
  const size_t name_end = std::ranges::find_if_not(text, IsNameCharacter) - text.begin();
  if (name_end > 0 && name_end < text.size() && text[name_end] == '=') {
    name = text.substr(0, name_end);
    text.remove_prefix(name_end + 1);
  }
  if (text.starts_with("http://") || text.starts_with("https://")) {
    driver.kind = kAsked;
    driver.url = text;
    return OkStatus();
  }
  const size_t colon = std::min(text.find(':'), text.size());
  const engines::DriverKind* const kind = engines::FindDriverKind(text.substr(0, colon));
  if (kind == nullptr) {
    return {ErrorCode::kConfig, Cat("is not [NAME=][KIND:]URL or [NAME=]hook:COMMAND; KIND is ",
                                    engines::DriverKindNames(&engines::EngineOptions::url))};
  }
  driver.kind = kind->name;
  if (colon == text.size()) return OkStatus();
  (driver.kind == "hook" ? driver.command : driver.url) = text.substr(colon + 1);
  return OkStatus();
}

}  // namespace

struct WrittenEngines::Number {
  const char* name;
  uint64_t Values::*value;
  uint64_t least, most;
  const char* help;
};

const std::vector<WrittenEngines::Number>& WrittenEngines::Numbers() {
  static const std::vector<Number> numbers = {
      {"timeout-ms", &Values::timeout_ms, 1, kDayMs, "time after which a call to the engine has failed"},
      {"load-timeout-ms", &Values::load_timeout_ms, 1, kDayMs,
       "the same, of the call that reads a whole model, or the hook"},
      {"late-after-ms", &Values::late_after_ms, 0, kDayMs,
       "an engine that lacks a version for so long is late: named, not ready, and waited for no more; 0: never"},
      {"attempts", &Values::attempts, 1, 100, "how often an engine is made to take one version"},
      {"hold-timeout-ms", &Values::hold_timeout_ms, 1, kDayMs, "time for a rank to stop, or to resume"},
      {"stage-bytes", &Values::stage_bytes, 0, UINT64_MAX, "memory for writes worked out before the engine is paused"},
  };
  return numbers;
}

struct WrittenEngines::Text {
  const char* name;
  std::string Values::*value;
  const char* help;
};

const std::vector<WrittenEngines::Text>& WrittenEngines::Texts() {
  static const std::vector<Text> texts = {
      {"load", &Values::load,
       "directory: the engine loads what is published; in-place: its ranks write their parameters"},
      {"key-file", &Values::key_file, "file with the server's (admin) API key, unreadable for others"},
      {"pause-mode", &Values::pause_mode, "how requests in progress are paused"},
      {"check", &Values::check, "checksums: what it has loaded is compared by the checksums that it computes"},
  };
  return texts;
}

void WrittenEngines::AddTo(config::ConfigParser& parser) {
  parser.Add("engine", &engines_,
             Cat("an engine that is notified of every version, [NAME=][KIND:]URL or [NAME=]hook:COMMAND, KIND ",
                 engines::DriverKindNames(&engines::EngineOptions::url),
                 "; without, the server is asked; repeat for several"));
  const std::string where = ", of engines that say nothing else";
  for (const Text& text : Texts()) parser.Add(Cat("engine-", text.name), &(defaults_.*text.value), text.help + where);
  for (const Number& number : Numbers()) {
    parser.Add(Cat("engine-", number.name), &(defaults_.*number.value), number.help + where);
  }
}

Result<EngineSettings> WrittenEngines::ReadOne(config::ConfigTable table) const {
  EngineSettings settings;
  if (!table.is_table()) {
    const Status read = ReadText(table.text(), settings.engine.name, settings.driver);
    if (!read.ok()) return Status(ErrorCode::kConfig, Cat(table.written_as(), " ", read.message()));
    return Check(table.written_as(), defaults_, std::move(settings));
  }
  Values values = defaults_;
  LS_RETURN_IF_ERROR(table.Take("name", &settings.engine.name));
  LS_RETURN_IF_ERROR(table.Take("model", &settings.model));
  LS_RETURN_IF_ERROR(table.Take("kind", &settings.driver.kind));
  LS_RETURN_IF_ERROR(table.Take("url", &settings.driver.url));
  LS_RETURN_IF_ERROR(table.Take("command", &settings.driver.command));
  if (settings.driver.kind == "none" && !settings.driver.url.empty()) settings.driver.kind = kAsked;
  if (settings.driver.kind == "none" && !settings.driver.command.empty()) settings.driver.kind = "hook";
  for (const Text& text : Texts()) LS_RETURN_IF_ERROR(table.Take(Key(text.name), &(values.*text.value)));
  for (const Number& number : Numbers()) LS_RETURN_IF_ERROR(table.Take(Key(number.name), &(values.*number.value)));
  LS_RETURN_IF_ERROR(table.CheckAllTaken());
  return Check(table.written_as(), values, std::move(settings));
}

// `where` says how a setting is written.
Status WrittenEngines::CheckValues(const Values& values, const std::function<std::string(const char* name)>& where) {
  for (const Number& number : Numbers()) {
    const uint64_t value = values.*number.value;
    if (value >= number.least && value <= number.most) continue;
    return {ErrorCode::kConfig,
            Cat(where(number.name), " is ", value, "; it must be ", number.least, " to ", number.most)};
  }
  if (values.load == "directory" || values.load == "in-place") return OkStatus();
  return {ErrorCode::kConfig,
          Cat(where("load"), " is \"", CleanText(values.load, 80), "\"; it must be directory or in-place")};
}

Result<EngineSettings> WrittenEngines::Check(const std::string& where, const Values& values,
                                             EngineSettings settings) const {
  const auto refuse = [&](const auto&... why) { return Status(ErrorCode::kConfig, Cat(where, ": ", why...)); };
  const std::string& name = settings.engine.name;
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, IsNameCharacter)) {
    return refuse("an engine is called \"", CleanText(name, 80),
                  "\"; a name has 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'");
  }
  LS_RETURN_IF_ERROR(CheckValues(values, [&](const char* key) { return Cat(where, ": ", Key(key)); }));
  settings.engine.in_place = values.load == "in-place";
  settings.engine.late_after = milliseconds(values.late_after_ms);
  settings.engine.targets.hold_timeout = milliseconds(values.hold_timeout_ms);
  settings.engine.targets.serve_timeout = milliseconds(values.hold_timeout_ms);
  settings.engine.targets.stage_bytes = values.stage_bytes;
  settings.driver.key_file = values.key_file;
  settings.driver.pause_mode = values.pause_mode;
  settings.driver.check = values.check;
  settings.driver.timeout = milliseconds(values.timeout_ms);
  settings.driver.load_timeout = milliseconds(values.load_timeout_ms);
  settings.driver.attempts = static_cast<int>(values.attempts);
  const auto driver = engines::NewEngineDriver(settings.driver);
  if (!driver.ok()) return refuse(driver.status().message());
  if (settings.engine.in_place && !values.check.empty()) {
    return refuse("engine-check is for engines that load directories; what is written in place is compared by ",
                  "lockstepctl verify");
  }
  return settings;
}

Result<EngineSettings> WrittenEngines::Others(const config::ConfigParser& parser) const {
  Values values = defaults_;
  values.check.clear();  // what is written in place is compared without
  EngineSettings settings;
  settings.driver.kind = kAsked;
  settings.driver.url = "http://localhost";
  return Check(parser.WrittenAs("allow-engines"), values, std::move(settings));
}

// A server holds one model. Another one that belongs to it, such as an adapter, is loaded by a hook.
Status WrittenEngines::CheckModel(const std::string& where, const EngineSettings& settings,
                                  const std::vector<std::string>& models) {
  if (!settings.model.empty() && std::ranges::find(models, settings.model) == models.end()) {
    return {ErrorCode::kConfig, Cat(where, ": model ", CleanText(settings.model, 80), " is not followed")};
  }
  const bool server = engines::FindDriverKind(settings.driver.kind)->controls_server;
  if (!server || !settings.model.empty() || models.size() == 1) return OkStatus();
  return {ErrorCode::kConfig,
          Cat(where, ": a server holds one model, and ", models.size(),
              " are followed; name it in its [[engine]] table, as model = \"", models.front(), "\"")};
}

Result<std::vector<EngineSettings>> WrittenEngines::Read(const config::ConfigParser& parser,
                                                         const std::vector<std::string>& models, bool socket) {
  std::vector<EngineSettings> engines;
  std::set<std::string> names, urls;
  LS_RETURN_IF_ERROR(CheckValues(defaults_, [&](const char* name) { return parser.WrittenAs(Cat("engine-", name)); }));
  for (const config::ConfigTable& table : engines_) {
    LS_ASSIGN_OR_RETURN(EngineSettings settings, ReadOne(table));
    const std::string& url = settings.driver.url;
    LS_RETURN_IF_ERROR(CheckModel(table.written_as(), settings, models));
    for (const std::string& model : models) {
      if (!settings.model.empty() && settings.model != model) continue;
      if (names.insert(Cat(model, "/", settings.engine.name)).second) continue;
      return Status(ErrorCode::kConfig, Cat(table.written_as(), ": another engine is called ", settings.engine.name,
                                            "; give each a name, as in NAME=URL"));
    }
    if (!url.empty() && !urls.insert(url).second) {
      return Status(ErrorCode::kConfig, Cat(table.written_as(), ": another engine is at ", url));
    }
    engines.push_back(std::move(settings));
  }
  if (engines.empty()) {
    LS_ASSIGN_OR_RETURN(engines.emplace_back(), Check(parser.WrittenAs("engine"), defaults_, EngineSettings()));
  }
  const bool in_place = std::ranges::any_of(engines, [](const auto& settings) { return settings.engine.in_place; });
  if (in_place && !socket) {
    return Status(ErrorCode::kConfig, "engine-load in-place needs engine-socket, where the engine's ranks attach");
  }
  return engines;
}

}  // namespace lockstep::receiver
