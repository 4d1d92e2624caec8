#include "raas_receiver/receipts/serving_ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/bytes.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"
#include "kernels/hash.h"

namespace lockstep::receipts {
namespace {

using telemetry::UnixNanos;

constexpr int64_t kBetweenRecords = 60'000'000'000;
constexpr uint64_t kMostFileBytes = uint64_t{256} << 20;
constexpr uint32_t kMostRecordBytes = 1 << 20;

void AppendRecord(std::string& bytes, const v1::Receipt& receipt) {
  const std::string encoded = receipt.SerializeAsString();
  const auto length = static_cast<uint32_t>(encoded.size());
  const uint64_t hash = Hash64(AsBytes(std::string_view(encoded)));
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  bytes += encoded;
}

// The record that `bytes` begins with, which loses it; nothing: none that is whole.
std::optional<v1::Receipt> TakeRecord(std::string_view& bytes) {
  uint32_t length = 0;
  uint64_t hash = 0;
  if (bytes.size() < sizeof length + sizeof hash) return std::nullopt;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::memcpy(&hash, bytes.data() + sizeof length, sizeof hash);
  const std::string_view rest = bytes.substr(sizeof length + sizeof hash);
  if (length == 0 || length > kMostRecordBytes || rest.size() < length) return std::nullopt;
  const std::string_view encoded = rest.substr(0, length);
  v1::Receipt receipt;
  if (Hash64(AsBytes(encoded)) != hash) return std::nullopt;
  if (!receipt.ParseFromArray(encoded.data(), static_cast<int>(length))) return std::nullopt;
  bytes = rest.substr(length);
  return receipt;
}

bool SaysTheSame(v1::Receipt one, const v1::Receipt& other) {
  one.set_engine(other.engine());
  one.set_from_unix_ns(other.from_unix_ns());
  one.set_to_unix_ns(other.to_unix_ns());
  one.set_ended(other.ended());
  return one.SerializeAsString() == other.SerializeAsString();
}

}  // namespace

ServingLedger::ServingLedger(std::string path, std::string model, std::string receiver)
    : path_(std::move(path)), model_(std::move(model)), receiver_(std::move(receiver)) {
  if (!path_.empty()) Load();
}

void ServingLedger::Load() {
  MutexLock lock(mutex_);
  Status status = os::MakeDirs(std::filesystem::path(path_).parent_path(), 0750);
  struct stat found {};
  if (status.ok() && ::stat(path_.c_str(), &found) == 0) {
    const Result<std::string> text = os::ReadFile(path_, kMostFileBytes);
    status = text.status();
    std::string_view rest = text.ok() ? std::string_view(*text) : std::string_view();
    while (const std::optional<v1::Receipt> record = TakeRecord(rest)) {
      if (record->model() != model_ || record->receiver() != receiver_) continue;
      newest_unix_ns_ = std::max({newest_unix_ns_, record->from_unix_ns(), record->to_unix_ns()});
      const auto open = open_.find(record->engine());
      if (open != open_.end() && open->second.from_unix_ns() != record->from_unix_ns()) {
        EndOpen(record->engine(), open->second.to_unix_ns());
      }
      open_[record->engine()] = *record;
      if (record->ended()) EndOpen(record->engine(), record->to_unix_ns());
    }
    if (!rest.empty()) {
      telemetry::LogWarn("receipts_dropped", {ErrorCode::kCorrupt, "what follows is no record"},
                         {{"path", path_}, {"bytes", rest.size()}});
    }
    while (!open_.empty()) EndOpen(open_.begin()->first, open_.begin()->second.to_unix_ns());
  }
  if (status.ok()) Rewrite();
  if (!status.ok()) telemetry::LogWarn("receipts_in_memory", status, {{"path", path_}});
}

int64_t ServingLedger::Now() {
  newest_unix_ns_ = std::max(newest_unix_ns_, UnixNanos());
  return newest_unix_ns_;
}

// What is remembered, in place of what the file has.
void ServingLedger::Rewrite() {
  while (ended_.size() > kMostRemembered) ended_.pop_front();
  std::string bytes;
  for (const v1::Receipt& receipt : ended_) AppendRecord(bytes, receipt);
  for (const auto& [engine, receipt] : open_) AppendRecord(bytes, receipt);
  records_ = ended_.size() + open_.size();
  file_.Reset();
  Status status = os::WriteFileAtomic(path_, bytes, 0640);
  if (status.ok()) {
    file_ = os::UniqueFd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    if (!file_.valid()) status = ErrnoStatus(errno, Cat("open ", path_));
  }
  if (!status.ok()) telemetry::LogWarn("receipts_in_memory", status, {{"path", path_}});
}

// A write that fails, or is a short one, ends the file: nothing behind it could be read.
void ServingLedger::Append(const v1::Receipt& receipt) {
  if (!file_.valid()) return;
  if (++records_ > 2 * kMostRemembered) return Rewrite();
  std::string bytes;
  AppendRecord(bytes, receipt);
  const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(bytes.size())) return;
  telemetry::LogWarn("receipts_in_memory", ErrnoStatus(written < 0 ? errno : ENOSPC, Cat("write ", path_)),
                     {{"path", path_}});
  file_.Reset();
}

void ServingLedger::EndOpen(const std::string& engine, int64_t unix_ns) {
  auto open = open_.extract(engine);
  if (open.empty()) return;
  v1::Receipt& receipt = open.mapped();
  receipt.set_to_unix_ns(std::max(receipt.from_unix_ns(), unix_ns));
  receipt.set_ended(true);
  ended_.push_back(receipt);
  if (ended_.size() > kMostRemembered) ended_.pop_front();
  Append(receipt);
}

void ServingLedger::Note(const std::string& engine, const std::optional<v1::Receipt>& serves) {
  MutexLock lock(mutex_);
  const auto open = open_.find(engine);
  if (open != open_.end() && serves && SaysTheSame(*serves, open->second)) {
    open->second.set_to_unix_ns(Now());
    if (Now() - recorded_unix_ns_[engine] < kBetweenRecords) return;
    recorded_unix_ns_[engine] = Now();
    return Append(open->second);
  }
  if (open != open_.end()) EndOpen(engine, open->second.to_unix_ns());
  if (!serves) return;
  v1::Receipt& receipt = open_[engine] = *serves;
  receipt.set_engine(engine);
  receipt.set_from_unix_ns(Now());
  receipt.set_to_unix_ns(receipt.from_unix_ns());
  receipt.set_ended(false);
  recorded_unix_ns_[engine] = receipt.from_unix_ns();
  Append(receipt);
}

void ServingLedger::End(const std::string& engine) {
  MutexLock lock(mutex_);
  EndOpen(engine, Now());
}

std::optional<v1::Receipt> ServingLedger::Open(const std::string& engine) const {
  MutexLock lock(mutex_);
  const auto open = open_.find(engine);
  return open == open_.end() ? std::nullopt : std::optional(open->second);
}

std::vector<v1::Receipt> ServingLedger::Find(const v1::GetReceiptsRequest& request) const {
  std::vector<v1::Receipt> all;
  const auto add = [&](const v1::Receipt& receipt) {
    const bool wanted = (request.engine().empty() || request.engine() == receipt.engine()) &&
                        (request.version() == 0 || request.version() == receipt.version()) &&
                        receipt.to_unix_ns() >= request.from_unix_ns() &&
                        (request.to_unix_ns() == 0 || receipt.from_unix_ns() <= request.to_unix_ns());
    if (wanted) all.push_back(receipt);
  };
  {
    MutexLock lock(mutex_);
    for (const v1::Receipt& receipt : ended_) add(receipt);
    for (const auto& [engine, receipt] : open_) add(receipt);
  }
  std::ranges::stable_sort(all, {}, &v1::Receipt::from_unix_ns);
  if (all.size() > kMostAnswered) all.erase(all.begin(), all.end() - kMostAnswered);
  return all;
}

}  // namespace lockstep::receipts
