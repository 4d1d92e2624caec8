#include "raas_receiver/archive/spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <ranges>

#include "common/base/text.h"
#include "common/model/label.h"
#include "common/os/file.h"
#include "common/os/unique_fd.h"

namespace lockstep::archive {
namespace {

constexpr std::string_view kHalfWritten = "tmp-";

// "<run>-<base>-<target>"
std::string NameOf(const Spool::Delta& delta) {
  return Cat(ToHex(delta.run), "-", delta.base, "-", delta.target);
}

std::optional<Spool::Delta> ParseName(std::string_view name) {
  Spool::Delta delta;
  const size_t dash = name.find('-');
  const size_t second = dash == std::string_view::npos ? dash : name.find('-', dash + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto run = HexDecode16(name.substr(0, dash));
  if (!run.ok()) return std::nullopt;
  delta.run = {*run};
  const auto read = [](std::string_view digits, Version& to) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  const bool numbers =
      read(name.substr(dash + 1, second - dash - 1), delta.base) && read(name.substr(second + 1), delta.target);
  return numbers && NameOf(delta) == name ? std::optional(delta) : std::nullopt;
}

// The payload, and the label behind it. It is not synced: what a power cut tears is refused by its hashes.
Status WriteDelta(const std::string& path, ByteView payload, std::string_view label) {
  const os::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("create ", path));
  LS_RETURN_IF_ERROR(os::WriteAll(fd.get(), 0, payload, path));
  return os::WriteAll(fd.get(), payload.size(), AsBytes(label), path);
}

}  // namespace

std::string Spool::PathOf(const Delta& delta) const {
  return directory_ + "/" + NameOf(delta);
}

Result<std::unique_ptr<Spool>> Spool::Open(std::string directory) {
  LS_RETURN_IF_ERROR(os::MakeDirs(directory, 0700));
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, os::ListDirectory(directory));
  std::unique_ptr<Spool> spool(new Spool(std::move(directory)));
  MutexLock lock(spool->mutex_);
  for (const std::string& name : names) {
    std::optional<Delta> delta = ParseName(name);
    const std::string path = spool->directory_ + "/" + name;
    if (delta) {
      const os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      const off_t bytes = fd.valid() ? ::lseek(fd.get(), 0, SEEK_END) : -1;
      delta->bytes = bytes < 0 ? 0 : static_cast<uint64_t>(bytes);
      spool->deltas_.push_back(*delta);
    } else if (name.starts_with(kHalfWritten)) {
      ::unlink(path.c_str());
    }
  }
  std::ranges::sort(spool->deltas_, {}, &Delta::base);
  return spool;
}

Status Spool::Add(const payload::Payload& delta, const std::string& label, uint64_t max_bytes) {
  Delta added{.run = delta.base().run, .base = delta.base().version, .target = delta.target().version};
  added.bytes = delta.total_bytes() + label.size();
  {
    MutexLock lock(mutex_);
    for (const Delta& waiting : deltas_) {
      if (waiting.run == added.run && waiting.base == added.base && waiting.target == added.target) return OkStatus();
    }
  }
  if (bytes() + added.bytes > max_bytes) {
    Clear();
    return {ErrorCode::kResourceExhausted, Cat("more than ", HumanBytes(max_bytes), " of deltas wait to be archived")};
  }
  const std::string half = Cat(directory_, "/", kHalfWritten, NameOf(added));
  Status status = WriteDelta(half, delta.bytes(), label);
  if (status.ok() && ::rename(half.c_str(), PathOf(added).c_str()) != 0) {
    status = ErrnoStatus(errno, Cat("rename ", half));
  }
  if (!status.ok()) {
    ::unlink(half.c_str());
    return status;
  }
  MutexLock lock(mutex_);
  deltas_.insert(std::ranges::upper_bound(deltas_, added.base, {}, &Delta::base), added);
  return OkStatus();
}

std::vector<Spool::Delta> Spool::deltas() const {
  MutexLock lock(mutex_);
  return deltas_;
}

uint64_t Spool::bytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const Delta& delta : deltas_) bytes += delta.bytes;
  return bytes;
}

std::optional<Spool::Delta> Spool::Next(const VersionRef& from, Version to) const {
  MutexLock lock(mutex_);
  std::map<Version, Delta> leading;  // by base
  for (auto delta = deltas_.rbegin(); delta != deltas_.rend(); ++delta) {
    const bool leads = delta->target == to || leading.contains(delta->target);
    if (delta->run == from.run && leads) leading.insert_or_assign(delta->base, *delta);
  }
  const auto next = leading.find(from.version);
  return next == leading.end() ? std::nullopt : std::optional(next->second);
}

Result<Spool::SpooledDelta> Spool::Get(const Delta& delta, const model::ModelLayout& layout) const {
  const std::string path = PathOf(delta);
  const os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("open ", path));
  const auto bytes = std::make_shared<Bytes>(delta.bytes);
  LS_RETURN_IF_ERROR(os::ReadAt(fd.get(), 0, *bytes, path));
  payload::PayloadHeader header{};
  if (bytes->size() < sizeof(header)) return Status(ErrorCode::kCorrupt, Cat(path, " has no header"));
  std::memcpy(&header, bytes->data(), sizeof(header));
  const uint64_t length = sizeof(header) + header.entries * sizeof(payload::PayloadEntry) + header.data_bytes;
  if (length > bytes->size() || bytes->size() - length > model::kMaxLabel) {
    return Status(ErrorCode::kCorrupt, Cat(path, " is not as long as its header says"));
  }
  const ByteView whole(*bytes);
  SpooledDelta read;
  read.label = std::string(AsText(whole.subspan(length)));
  LS_RETURN_IF_ERROR(model::CheckLabel(read.label));
  LS_ASSIGN_OR_RETURN(read.payload, payload::Payload::Open(layout, {whole.first(length), bytes}));
  const bool named = read.payload->base() == VersionRef{delta.run, delta.base} &&
                     read.payload->target() == VersionRef{delta.run, delta.target};
  if (!named) return Status(ErrorCode::kCorrupt, Cat(path, " holds another delta"));
  return read;
}

void Spool::Remove(const Delta& delta) {
  MutexLock lock(mutex_);
  ::unlink(PathOf(delta).c_str());
  std::erase_if(deltas_, [&](const Delta& waiting) { return NameOf(waiting) == NameOf(delta); });
}

void Spool::Clear() {
  MutexLock lock(mutex_);
  for (const Delta& delta : deltas_) ::unlink(PathOf(delta).c_str());
  deltas_.clear();
}

}  // namespace lockstep::archive
