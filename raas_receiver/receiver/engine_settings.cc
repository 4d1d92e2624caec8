#include "raas_receiver/receiver/engine_settings.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "common/base/text.h"
#include "raas_receiver/engine/drivers/driver.h"

namespace lockstep::receiver {
namespace {

using std::chrono::milliseconds;

constexpr char kAsked[] = "server";  // the kind of one that says itself of which it is

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

// "[NAME=][KIND:]URL" or "[NAME=]hook:COMMAND".
Status ReadText(std::string_view text, std::string& name, engine::EngineOptions& driver) {
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
  const engine::DriverKind* const kind = engine::FindDriverKind(text.substr(0, colon));
  if (kind == nullptr) {
    return {ErrorCode::kConfig, Cat("is not [NAME=][KIND:]URL or [NAME=]hook:COMMAND; KIND is ",
                                    engine::DriverKindNames(&engine::EngineOptions::url))};
  }
  driver.kind = kind->name;
  if (colon == text.size()) return OkStatus();
  (driver.kind == "hook" ? driver.command : driver.url) = text.substr(colon + 1);
  return OkStatus();
}

// `where` says how the value is written.
Status CheckLoad(const std::string& where, const std::string& load) {
  if (load == "directory" || load == "in-place") return OkStatus();
  return {ErrorCode::kConfig, Cat(where, " is \"", CleanText(load, 80), "\"; it must be directory or in-place")};
}

}  // namespace

void EngineSettingsReader::AddValues(config::ConfigParser& parser, Values& to, const std::string& prefix,
                                     const std::string& where) {
  constexpr milliseconds kLeast{1};
  constexpr std::chrono::days kDay{1};
  parser.Add(prefix + "load", &to.load,
             "directory: the engine loads what is published; in-place: its ranks write their parameters" + where);
  parser.Add(prefix + "key-file", &to.key_file,
             "file with the server's (admin) API key, unreadable for others" + where);
  parser.Add(prefix + "user", &to.user,
             "user or uid that may run its server on this host, beside the receiver's and root: no other gets the key" +
                 where);
  parser.Add(prefix + "pause-mode", &to.pause_mode, "how requests in progress are paused" + where);
  parser.Add(prefix + "check", &to.check,
             "checksums: what it has loaded is compared by the checksums that it computes" + where);
  parser.Add(prefix + "attempts", &to.attempts, "how often an engine is made to take one version" + where, 1, 100);
  parser.Add(prefix + "stage-bytes", &to.stage_bytes,
             "memory for writes worked out before the engine is paused" + where);
  parser.Add(prefix + "timeout", &to.timeout, "time after which a call to the engine has failed" + where, kLeast, kDay);
  parser.Add(prefix + "load-timeout", &to.load_timeout,
             "the same, of the call that reads a whole model, or the hook" + where, kLeast, kDay);
  parser.Add(
      prefix + "late-after", &to.late_after,
      "an engine that lacks a version for so long is late: named, not ready, and waited for no more; 0: never" + where,
      {}, kDay);
  parser.Add(prefix + "pause-timeout", &to.pause_timeout, "time for a rank to stop, or to resume" + where, kLeast,
             kDay);
}

void EngineSettingsReader::AddTo(config::ConfigParser& parser) {
  parser.Add(
      "engine", &engines_,
      Cat("an engine that is notified of every version, [NAME=][KIND:]URL or [NAME=]hook:COMMAND, KIND ",
          engine::DriverKindNames(&engine::EngineOptions::url), "; without, the server is asked; repeat for several"));
  AddValues(parser, defaults_, "engine-", "; for engines whose table does not say");
}

Result<EngineSettings> EngineSettingsReader::ReadOne(const config::ConfigTable& table) const {
  EngineSettings settings;
  if (!table.is_table()) {
    const Status read = ReadText(table.text(), settings.engine.name, settings.driver);
    if (!read.ok()) return Status(ErrorCode::kConfig, Cat(table.written_as(), " ", read.message()));
    return Check(table.written_as(), defaults_, std::move(settings));
  }
  Values values = defaults_;
  config::ConfigParser keys({});
  keys.Add("name", &settings.engine.name, "");
  keys.Add("model", &settings.model, "");
  keys.Add("kind", &settings.driver.kind, "");
  keys.Add("url", &settings.driver.url, "");
  keys.Add("command", &settings.driver.command, "");
  AddValues(keys, values, "", "");
  LS_RETURN_IF_ERROR(keys.ParseTable(table));
  if (settings.driver.kind == "none" && !settings.driver.url.empty()) settings.driver.kind = kAsked;
  if (settings.driver.kind == "none" && !settings.driver.command.empty()) settings.driver.kind = "hook";
  return Check(table.written_as(), values, std::move(settings));
}

Result<EngineSettings> EngineSettingsReader::Check(const std::string& where, const Values& values,
                                                   EngineSettings settings) const {
  const auto refuse = [&](const auto&... why) { return Status(ErrorCode::kConfig, Cat(where, ": ", why...)); };
  const std::string& name = settings.engine.name;
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, IsNameCharacter)) {
    return refuse("an engine is called \"", CleanText(name, 80),
                  "\"; a name has 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'");
  }
  LS_RETURN_IF_ERROR(CheckLoad(Cat(where, ": load"), values.load));
  settings.engine.in_place = values.load == "in-place";
  settings.engine.late_after = values.late_after;
  settings.engine.ranks.pause_timeout = values.pause_timeout;
  settings.engine.ranks.serve_timeout = values.pause_timeout;
  settings.engine.ranks.stage_bytes = values.stage_bytes;
  settings.driver.key_file = values.key_file;
  settings.driver.user = values.user;
  settings.driver.pause_mode = values.pause_mode;
  settings.driver.check = values.check;
  settings.driver.timeout = values.timeout;
  settings.driver.load_timeout = values.load_timeout;
  settings.driver.attempts = static_cast<int>(values.attempts);
  const auto driver = engine::NewEngineDriver(settings.driver);
  if (!driver.ok()) return refuse(driver.status().message());
  if (settings.engine.in_place && !values.check.empty()) {
    return refuse("engine-check is for engines that load directories; what is written in place is compared by ",
                  "lockstepctl verify");
  }
  return settings;
}

Result<EngineSettings> EngineSettingsReader::Others(const config::ConfigParser& parser) const {
  Values values = defaults_;
  values.check.clear();  // what is written in place is compared without
  EngineSettings settings;
  settings.driver.kind = kAsked;
  settings.driver.url = "http://localhost";
  return Check(parser.WrittenAs("allow-engines"), values, std::move(settings));
}

// A server holds one model. Another one that belongs to it, such as an adapter, is loaded by a hook.
Status EngineSettingsReader::CheckModel(const std::string& where, const EngineSettings& settings,
                                        const std::vector<std::string>& models) {
  if (!settings.model.empty() && std::ranges::find(models, settings.model) == models.end()) {
    return {ErrorCode::kConfig, Cat(where, ": model ", CleanText(settings.model, 80), " is not followed")};
  }
  const bool server = engine::FindDriverKind(settings.driver.kind)->controls_server;
  if (!server || !settings.model.empty() || models.size() == 1) return OkStatus();
  return {ErrorCode::kConfig,
          Cat(where, ": a server holds one model, and ", models.size(),
              " are followed; name it in its [[engine]] table, as model = \"", models.front(), "\"")};
}

Result<std::vector<EngineSettings>> EngineSettingsReader::Read(const config::ConfigParser& parser,
                                                               const std::vector<std::string>& models) {
  std::vector<EngineSettings> engines;
  std::set<std::string> names, urls;
  LS_RETURN_IF_ERROR(CheckLoad(parser.WrittenAs("engine-load"), defaults_.load));
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
