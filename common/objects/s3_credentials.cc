#include "common/objects/s3_credentials.h"

#include <sys/stat.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/shell.h"

namespace lockstep::objects {
namespace {

constexpr uint64_t kMaxFile = 1 << 20;
constexpr std::chrono::seconds kCommandTime{30};
constexpr int64_t kEarly = 300;  // seconds before they end

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") + 1 - first));
}

// What tells one content of the file from another.
std::string StampOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return Cat(info.st_ino, ".", info.st_size, ".", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

// The settings of one profile.
std::map<std::string, std::string> ProfileIn(const std::string& text, const std::string& profile) {
  std::map<std::string, std::string> settings;
  std::istringstream lines(text);
  bool ours = false;
  for (std::string line; std::getline(lines, line);) {
    line = Trimmed(line);
    if (line.starts_with("[")) {
      ours = line == Cat("[", profile, "]") || line == Cat("[profile ", profile, "]");
    } else if (const size_t equals = line.find('='); ours && equals != std::string::npos && !line.starts_with("#")) {
      settings[Trimmed(line.substr(0, equals))] = Trimmed(std::string_view(line).substr(equals + 1));
    }
  }
  return settings;
}

// Of "2025-03-01T12:00:00Z"; 0 for anything else.
int64_t UnixSeconds(const std::string& text) {
  std::tm time{};
  return ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr ? 0 : ::timegm(&time);
}

// They become parts of headers.
Status CheckKeys(const http::Signing& keys, const std::string& where) {
  const auto visible = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  };
  if (keys.access_key.empty() || keys.secret_key.empty()) {
    return {ErrorCode::kConfig, Cat(where, " has no access key and secret key")};
  }
  if (visible(keys.access_key) && visible(keys.secret_key) && visible(keys.session_token)) return OkStatus();
  return {ErrorCode::kConfig, Cat(where, " has a key with blanks or characters that are not ASCII")};
}

}  // namespace

Result<http::Signing> S3Credentials::Get() {
  std::lock_guard lock(mutex_);
  const bool ended = found_.ends_unix_s != 0 && std::time(nullptr) > found_.ends_unix_s - kEarly;
  const bool changed = !found_.file.empty() && StampOf(found_.file) != found_.stamp;
  if (have_ && !ended && !changed) return found_.keys;
  Result<Found> found = Find();
  if (!found.ok()) return found.status();
  found_ = *std::move(found);
  have_ = true;
  return found_.keys;
}

void S3Credentials::Refused(const http::Signing& used) {
  std::lock_guard lock(mutex_);
  if (used.access_key == found_.keys.access_key && used.session_token == found_.keys.session_token) have_ = false;
}

Result<S3Credentials::Found> S3Credentials::Find() const {
  std::string file = options_.file.empty() ? Environment("AWS_SHARED_CREDENTIALS_FILE") : options_.file;
  if (!file.empty()) return FromFile(file);
  Found found;
  found.keys = {.access_key = Environment("AWS_ACCESS_KEY_ID"),
                .secret_key = Environment("AWS_SECRET_ACCESS_KEY"),
                .session_token = Environment("AWS_SESSION_TOKEN"),
                .region = options_.region};
  if (!found.keys.access_key.empty()) {
    LS_RETURN_IF_ERROR(CheckKeys(found.keys, "the environment, with $AWS_ACCESS_KEY_ID,"));
    return found;
  }
  file = Environment("HOME") + "/.aws/credentials";
  if (!StampOf(file).empty()) return FromFile(file);
  return Status(ErrorCode::kConfig,
                "no credentials: set $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or "
                "$AWS_SHARED_CREDENTIALS_FILE, or give a file in the URL, ?credentials=FILE");
}

Result<S3Credentials::Found> S3Credentials::FromFile(const std::string& path) const {
  Found found{.keys = {}, .file = path, .stamp = StampOf(path)};
  const Result<std::string> text = os::ReadSecretFile(path, kMaxFile);
  if (!text.ok()) return Status(ErrorCode::kConfig, text.status().message());
  const std::string named = options_.profile.empty() ? Environment("AWS_PROFILE") : options_.profile;
  const std::string profile = named.empty() ? "default" : named;
  auto settings = ProfileIn(*text, profile);
  const std::string where = Cat(path, ", profile ", profile, ",");
  found.keys = {.access_key = settings["aws_access_key_id"],
                .secret_key = settings["aws_secret_access_key"],
                .session_token = settings["aws_session_token"],
                .region = options_.region};
  const std::string command = settings["credential_process"];
  if (!command.empty()) LS_RETURN_IF_ERROR(RunCommand(command, found).WithContext(where));
  LS_RETURN_IF_ERROR(CheckKeys(found.keys, where));
  return found;
}

// AWS's protocol of a credential process: one JSON object on stdout.
Status S3Credentials::RunCommand(const std::string& command, Found& found) const {
  LS_ASSIGN_OR_RETURN(const os::ShellOutcome run,
                      os::RunShell(Cat("{ ", command, "\n} 2>/dev/null"), {}, kCommandTime, os::StopSignal()));
  if (run.timed_out) return {ErrorCode::kDeadline, "its credential_process took longer than 30 s"};
  if (run.wait_status != 0) return {ErrorCode::kUnavailable, "its credential_process failed"};
  const auto said = nlohmann::json::parse(run.output_tail, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) {
    const auto value = said.is_object() ? said.find(name) : said.end();
    return said.is_object() && value != said.end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  found.keys.access_key = text("AccessKeyId");
  found.keys.secret_key = text("SecretAccessKey");
  found.keys.session_token = text("SessionToken");
  found.ends_unix_s = UnixSeconds(text("Expiration"));
  return OkStatus();
}

}  // namespace lockstep::objects
