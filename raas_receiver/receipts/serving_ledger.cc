#include "raas_receiver/receipts/serving_ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"

namespace lockstep::receipts {
namespace {

using telemetry::UnixNanos;

constexpr int64_t kBetweenTouches = 5'000'000'000;
constexpr uint64_t kMostFileBytes = uint64_t{256} << 20;
constexpr uint32_t kMostRecordBytes = 1 << 20;

void AppendRecord(std::string& bytes, const v1::Receipt& receipt) {
  const std::string encoded = receipt.SerializeAsString();
  const auto length = static_cast<uint32_t>(encoded.size());
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += encoded;
}

// The record that `bytes` begins with, which loses it; nothing: none that is whole.
std::optional<v1::Receipt> TakeRecord(std::string_view& bytes) {
  uint32_t length = 0;
  if (bytes.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMostRecordBytes || bytes.size() - sizeof length < length) return std::nullopt;
  v1::Receipt receipt;
  if (!receipt.ParseFromArray(bytes.data() + sizeof length, static_cast<int>(length))) return std::nullopt;
  bytes.remove_prefix(sizeof length + length);
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

ServingLedger::ServingLedger(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) Load();
}

void ServingLedger::Load() {
  MutexLock lock(mutex_);
  Status status = os::MakeDirs(std::filesystem::path(path_).parent_path(), 0750);
  struct stat found {};
  if (status.ok() && ::stat(path_.c_str(), &found) == 0) {
    const Result<std::string> text = os::ReadFile(path_, kMostFileBytes);
    status = text.status();
    const int64_t seen = static_cast<int64_t>(found.st_mtim.tv_sec) * 1'000'000'000 + found.st_mtim.tv_nsec;
    std::string_view rest = text.ok() ? std::string_view(*text) : std::string_view();
    while (const std::optional<v1::Receipt> record = TakeRecord(rest)) {
      if (record->ended()) {
        open_.erase(record->engine());
        ended_.push_back(*record);
      } else {
        open_[record->engine()] = *record;
      }
    }
    for (auto& [engine, receipt] : open_) {
      receipt.set_to_unix_ns(std::max(receipt.from_unix_ns(), seen));
      receipt.set_ended(true);
      ended_.push_back(receipt);
    }
    open_.clear();
  }
  if (status.ok()) Rewrite();
  if (!status.ok()) telemetry::LogWarn("receipts_in_memory", status, {{"path", path_}});
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
  touched_unix_ns_ = UnixNanos();
  if (written == static_cast<ssize_t>(bytes.size())) return;
  telemetry::LogWarn("receipts_in_memory", ErrnoStatus(written < 0 ? errno : ENOSPC, Cat("write ", path_)),
                     {{"path", path_}});
  file_.Reset();
}

void ServingLedger::End(v1::Receipt receipt, int64_t unix_ns) {
  receipt.set_to_unix_ns(std::max(receipt.from_unix_ns(), unix_ns));
  receipt.set_ended(true);
  ended_.push_back(receipt);
  if (ended_.size() > kMostRemembered) ended_.pop_front();
  Append(receipt);
}

void ServingLedger::Note(const std::string& engine, const std::optional<v1::Receipt>& serves) {
  MutexLock lock(mutex_);
  const int64_t now = UnixNanos();
  const auto open = open_.find(engine);
  if (open != open_.end() && serves && SaysTheSame(*serves, open->second)) {
    if (file_.valid() && now - touched_unix_ns_ > kBetweenTouches) {
      (void)::futimens(file_.get(), nullptr);
      touched_unix_ns_ = now;
    }
    return;
  }
  if (open != open_.end()) {
    v1::Receipt ending = std::move(open->second);
    open_.erase(open);
    End(std::move(ending), now);
  }
  if (!serves) return;
  v1::Receipt& receipt = open_[engine] = *serves;
  receipt.set_engine(engine);
  receipt.set_from_unix_ns(now);
  receipt.set_to_unix_ns(0);
  receipt.set_ended(false);
  Append(receipt);
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
    for (const auto& [engine, receipt] : open_) {
      v1::Receipt until_now = receipt;
      until_now.set_to_unix_ns(std::max(receipt.from_unix_ns(), UnixNanos()));
      add(until_now);
    }
  }
  std::ranges::stable_sort(all, {}, &v1::Receipt::from_unix_ns);
  if (all.size() > kMostAnswered) all.erase(all.begin(), all.end() - kMostAnswered);
  return all;
}

}  // namespace lockstep::receipts
