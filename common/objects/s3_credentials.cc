#include "common/objects/s3_credentials.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/text.h"
#include "common/objects/s3_url.h"
#include "common/os/shell.h"

namespace lockstep::objects {
namespace {

constexpr uint64_t kMaxFile = 1 << 20;
constexpr size_t kMaxKeys = 64 << 10;  // of a command's output
constexpr std::chrono::seconds kCommandTime{30};
constexpr int64_t kEarly = 300;  // seconds before they end
constexpr int64_t kSeldom = 10;  // seconds between two looks at keys that have not ended

Status NotNeeded() {
  return {ErrorCode::kCancelled, "the keys are not needed any more"};
}

std::string Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") + 1 - first));
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

bool S3Credentials::AreGood() const {
  // A command may go on naming keys that end soon: it is not run for each request.
  const int64_t due = std::max(loaded_.ends_unix_s - kEarly, std::min(loaded_.ends_unix_s, loaded_.unix_s + kSeldom));
  const bool ended = loaded_.ends_unix_s != 0 && std::time(nullptr) > due;
  const bool changed = !loaded_.file.empty() && os::StampOf(loaded_.file) != loaded_.stamp;
  return have_ && !ended && !changed;
}

Result<http::Signing> S3Credentials::Get(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  while (true) {
    if (AreGood()) return loaded_.keys;
    if (!looking_) break;
    const uint64_t before = looks_;
    if (!changed_.wait(lock, stop, [&]() LS_REQUIRES(mutex_) { return looks_ != before; })) return NotNeeded();
    if (!failed_.ok() && failed_.code() != ErrorCode::kCancelled) return failed_;
  }
  looking_ = true;
  lock.unlock();
  Result<LoadedKeys> found = Find(stop);
  lock.lock();
  looking_ = false;
  ++looks_;
  failed_ = found.status();
  changed_.notify_all();
  if (!found.ok()) return found.status();
  loaded_ = *std::move(found);
  loaded_.unix_s = std::time(nullptr);
  have_ = true;
  return loaded_.keys;
}

void S3Credentials::Refused(const http::Signing& used) {
  MutexLock lock(mutex_);
  if (used.access_key == loaded_.keys.access_key && used.session_token == loaded_.keys.session_token) have_ = false;
}

Result<S3Credentials::LoadedKeys> S3Credentials::Find(const std::stop_token& stop) const {
  std::string file = options_.file.empty() ? Environment({"AWS_SHARED_CREDENTIALS_FILE"}) : options_.file;
  if (!file.empty()) return FromFile(file, stop);
  LoadedKeys found;
  found.keys = {.access_key = Environment({"AWS_ACCESS_KEY_ID"}),
                .secret_key = Environment({"AWS_SECRET_ACCESS_KEY"}),
                .session_token = Environment({"AWS_SESSION_TOKEN"}),
                .region = options_.region};
  if (!found.keys.access_key.empty()) {
    LS_RETURN_IF_ERROR(CheckKeys(found.keys, "the environment, with $AWS_ACCESS_KEY_ID,"));
    return found;
  }
  file = Environment({"HOME"}) + "/.aws/credentials";
  if (os::StampOf(file) != os::FileStamp()) return FromFile(file, stop);
  return Status(ErrorCode::kConfig,
                "no credentials: set $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or "
                "$AWS_SHARED_CREDENTIALS_FILE, or give a file in the URL, ?credentials=FILE");
}

Result<S3Credentials::LoadedKeys> S3Credentials::FromFile(const std::string& path, const std::stop_token& stop) const {
  LoadedKeys found{.keys = {}, .file = path, .stamp = os::StampOf(path)};
  const Result<std::string> text = os::ReadSecretFile(path, kMaxFile);
  if (!text.ok()) return Status(ErrorCode::kConfig, text.status().message());
  const std::string named = options_.profile.empty() ? Environment({"AWS_PROFILE"}) : options_.profile;
  const std::string profile = named.empty() ? "default" : named;
  auto settings = ProfileIn(*text, profile);
  const std::string where = Cat(path, ", profile ", profile, ",");
  found.keys = {.access_key = settings["aws_access_key_id"],
                .secret_key = settings["aws_secret_access_key"],
                .session_token = settings["aws_session_token"],
                .region = options_.region};
  const std::string command = settings["credential_process"];
  if (!command.empty()) LS_RETURN_IF_ERROR(RunCommand(command, found, stop).WithContext(where));
  LS_RETURN_IF_ERROR(CheckKeys(found.keys, where));
  return found;
}

// AWS's protocol of a credential process: one JSON object on stdout.
Status S3Credentials::RunCommand(const std::string& command, LoadedKeys& found, const std::stop_token& stop) const {
  os::Event signal;
  const std::stop_callback on_stop(stop, [&] { signal.Set(); });
  LS_ASSIGN_OR_RETURN(const os::ShellOutcome run,
                      os::RunShell(Cat("{ ", command, "\n} 2>/dev/null"), {}, kCommandTime, signal, kMaxKeys));
  if (run.stopped) return NotNeeded();
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
  const std::string ends = text("Expiration");
  const std::optional<int64_t> seconds = UnixSeconds(ends);
  if (!ends.empty() && !seconds) return {ErrorCode::kConfig, "its credential_process names a wrong Expiration"};
  found.ends_unix_s = seconds.value_or(0);
  return OkStatus();
}

}  // namespace lockstep::objects
