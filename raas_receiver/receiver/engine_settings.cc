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
constexpr milliseconds kDay = std::chrono::days(1);

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

template <typename T>
struct WrittenEngines::Bounded {
  const char* name;
  T Values::*value;
  T least, most;
  const char* help;
};

const std::vector<WrittenEngines::Bounded<uint64_t>>& WrittenEngines::Numbers() {
  static const std::vector<Bounded<uint64_t>> numbers = {
      {"attempts", &Values::attempts, 1, 100, "how often an engine is made to take one version"},
      {"stage-bytes", &Values::stage_bytes, 0, UINT64_MAX, "memory for writes worked out before the engine is paused"},
  };
  return numbers;
}

const std::vector<WrittenEngines::Bounded<milliseconds>>& WrittenEngines::Times() {
  constexpr milliseconds kLeast{1};
  static const std::vector<Bounded<milliseconds>> times = {
      {"timeout", &Values::timeout, kLeast, kDay, "time after which a call to the engine has failed"},
      {"load-timeout", &Values::load_timeout, kLeast, kDay,
       "the same, of the call that reads a whole model, or the hook"},
      {"late-after", &Values::late_after, milliseconds(0), kDay,
       "an engine that lacks a version for so long is late: named, not ready, and waited for no more; 0: never"},
      {"pause-timeout", &Values::pause_timeout, kLeast, kDay, "time for a rank to stop, or to resume"},
  };
  return times;
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
      {"user", &Values::user,
       "user or uid that may run its server on this host, beside the receiver's and root: no other gets the key"},
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
  const auto add_all = [&](const auto& bounded) {
    for (const auto& one : bounded) parser.Add(Cat("engine-", one.name), &(defaults_.*one.value), one.help + where);
  };
  add_all(Numbers());
  add_all(Times());
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
  for (const auto& number : Numbers()) LS_RETURN_IF_ERROR(table.Take(Key(number.name), &(values.*number.value)));
  for (const auto& time : Times()) LS_RETURN_IF_ERROR(table.Take(Key(time.name), &(values.*time.value)));
  LS_RETURN_IF_ERROR(table.CheckAllTaken());
  return Check(table.written_as(), values, std::move(settings));
}

// `where` says how a setting is written.
Status WrittenEngines::CheckValues(const Values& values, const std::function<std::string(const char* name)>& where) {
  const auto check = [&](const auto& bounded, const auto& text) -> Status {
    for (const auto& one : bounded) {
      const auto value = values.*one.value;
      if (value >= one.least && value <= one.most) continue;
      return {ErrorCode::kConfig,
              Cat(where(one.name), " is ", text(value), "; it must be ", text(one.least), " to ", text(one.most))};
    }
    return OkStatus();
  };
  LS_RETURN_IF_ERROR(check(Numbers(), [](uint64_t number) { return Cat(number); }));
  LS_RETURN_IF_ERROR(check(Times(), config::TimeText));
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
  settings.engine.late_after = values.late_after;
  settings.engine.targets.pause_timeout = values.pause_timeout;
  settings.engine.targets.serve_timeout = values.pause_timeout;
  settings.engine.targets.stage_bytes = values.stage_bytes;
  settings.driver.key_file = values.key_file;
  settings.driver.user = values.user;
  settings.driver.pause_mode = values.pause_mode;
  settings.driver.check = values.check;
  settings.driver.timeout = values.timeout;
  settings.driver.load_timeout = values.load_timeout;
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
                                                         const std::vector<std::string>& models) {
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
  return engines;
}

}  // namespace lockstep::receiver
