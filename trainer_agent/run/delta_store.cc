#include "trainer_agent/run/delta_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/segment.h"

namespace lockstep::run {
namespace {

constexpr char kSuffix[] = ".delta";
// Each delta is a mapping, and a kernel allows a process some 65,000 of them.
constexpr size_t kMaxChain = 1024;
constexpr uint64_t kPageBytes = 4096;

// Of the tmpfs.
uint64_t StoredBytes(const payload::Payload& payload) {
  return (payload.total_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
}

payload::Payload::Allocator FileAllocator(const std::string& path) {
  return [path](size_t bytes) -> Result<std::pair<std::span<std::byte>, std::shared_ptr<const void>>> {
    unlink(path.c_str());
    LS_ASSIGN_OR_RETURN(os::MappedSegment segment, os::CreateTmpfsSegment(path, bytes));
    auto owner = std::make_shared<os::MappedSegment>(std::move(segment));
    owner->CloseFd();
    return std::pair(owner->span(), std::shared_ptr<const void>(owner));
  };
}

}  // namespace

DeltaStore::DeltaStore(std::shared_ptr<const model::ModelLayout> layout, StoreOptions options)
    : layout_(std::move(layout)), options_(std::move(options)) {}

std::string DeltaStore::PathOf(Version base, Version target) const {
  return Cat(options_.directory, "/", base, "-", target, kSuffix);
}

std::shared_ptr<const payload::Payload> DeltaStore::LoadFile(const std::string& path) const {
  struct stat info {};
  if (!path.ends_with(kSuffix) || stat(path.c_str(), &info) != 0 || info.st_size <= 0) return nullptr;
  auto segment = os::OpenSegment(path, static_cast<uint64_t>(info.st_size), os::Access::kReadOnly);
  if (!segment.ok()) return nullptr;
  auto owner = std::make_shared<os::MappedSegment>(*std::move(segment));
  owner->CloseFd();
  auto payload = payload::Payload::Open(*layout_, {owner->span(), owner});
  return payload.ok() ? *std::move(payload) : nullptr;
}

void DeltaStore::Load(const model::Manifest& newest) {
  const auto names = os::ListDirectory(options_.directory);
  if (!names.ok()) return;  // there is no directory
  std::map<Version, std::shared_ptr<const payload::Payload>> by_target;
  for (const std::string& name : *names) {
    auto payload = LoadFile(Cat(options_.directory, "/", name));
    if (payload != nullptr && payload->header().run == newest.held.run) {
      by_target[payload->header().target] = std::move(payload);
    }
  }
  MutexLock lock(mutex_);
  std::set<std::string> kept;
  Version wanted = newest.held.version;
  ManifestDigest digest = newest.digest;
  for (auto at = by_target.find(wanted); at != by_target.end(); at = by_target.find(wanted)) {
    const payload::PayloadHeader& header = at->second->header();
    if (header.target_digest != digest) break;
    chain_.insert(chain_.begin(), std::make_shared<StoredDelta>(at->second));
    kept.insert(PathOf(header.base, header.target));
    wanted = header.base;
    digest = header.base_digest;
  }
  for (const std::string& name : *names) {
    const std::string path = Cat(options_.directory, "/", name);
    if (kept.count(path) == 0) unlink(path.c_str());
  }
}

Result<std::shared_ptr<const payload::Payload>> DeltaStore::AssembleLocked(
    const payload::PayloadIdentity& identity, const std::vector<const payload::DeltaBlock*>& blocks) {
  if (options_.directory.empty()) return payload::Payload::Assemble(*layout_, identity, blocks);
  // Written under another name first: a killed agent must not find half a delta under a delta's name.
  const std::string path = options_.directory + "/new";
  auto payload = payload::Payload::Assemble(*layout_, identity, blocks, FileAllocator(path));
  while (!payload.ok() && payload.status().code() == ErrorCode::kResourceExhausted && !chain_.empty()) {
    RemoveOldestLocked();
    payload = payload::Payload::Assemble(*layout_, identity, blocks, FileAllocator(path));
  }
  const std::string final_path = PathOf(identity.base, identity.target);
  if (payload.ok() && rename(path.c_str(), final_path.c_str()) == 0) return payload;
  return payload::Payload::Assemble(*layout_, identity, blocks);
}

Status DeltaStore::Add(const payload::PayloadIdentity& identity,
                       const std::vector<const payload::DeltaBlock*>& blocks) {
  MutexLock lock(mutex_);
  LS_ASSIGN_OR_RETURN(auto payload, AssembleLocked(identity, blocks));
  const auto last = chain_.empty() ? nullptr : chain_.back()->payload();
  const bool follows =
      last != nullptr && last->header().target == identity.base && last->header().target_digest == identity.base_digest;
  while (!follows && !chain_.empty()) RemoveOldestLocked();
  chain_.push_back(std::make_shared<StoredDelta>(std::move(payload)));
  EvictLocked();
  return OkStatus();
}

void DeltaStore::RemoveOldestLocked() {
  const auto payload = chain_.front()->payload();
  const payload::PayloadHeader& header = payload->header();
  if (!options_.directory.empty()) unlink(PathOf(header.base, header.target).c_str());
  {
    MutexLock lock(dropped_mutex_);
    std::erase_if(dropped_, [](const DroppedDelta& dropped) { return dropped.delta.expired(); });
    dropped_.push_back({chain_.front(), Clock::now()});
  }
  chain_.erase(chain_.begin());
}

uint64_t DeltaStore::RetainedBytesLocked() const {
  uint64_t bytes = 0;
  for (const auto& step : chain_) bytes += StoredBytes(*step->payload());
  return bytes;
}

uint64_t DeltaStore::DroppedBytes() const {
  MutexLock lock(dropped_mutex_);
  return DroppedBytesLocked();
}

uint64_t DeltaStore::DroppedBytesLocked() const {
  uint64_t bytes = 0;
  for (const DroppedDelta& dropped : dropped_) {
    const auto delta = dropped.delta.lock();
    const auto payload = delta == nullptr ? nullptr : delta->payload();
    if (payload != nullptr) bytes += payload->total_bytes();
  }
  return bytes;
}

void DeltaStore::TakeBack(Clock::time_point now) {
  MutexLock lock(dropped_mutex_);
  uint64_t left = DroppedBytesLocked();
  while (!dropped_.empty() && (left > options_.retain_bytes || now - dropped_.front().since >= kMaxDroppedAge)) {
    const auto delta = dropped_.front().delta.lock();
    const auto payload = delta == nullptr ? nullptr : delta->payload();
    if (payload != nullptr) {
      left -= payload->total_bytes();
      delta->TakeBack();
    }
    dropped_.pop_front();
  }
}

std::shared_ptr<const void> DeltaStore::PinFrom(Version version) {
  const auto unpin = [this](const void*) {
    MutexLock lock(mutex_);
    std::erase_if(pins_, [](const auto& pin) { return pin.second.expired(); });
    EvictLocked();
  };
  const std::shared_ptr<const void> pin(this, unpin);
  MutexLock lock(mutex_);
  pins_.emplace_back(version, pin);
  return pin;
}

bool DeltaStore::PinnedLocked(Version version) const {
  return std::ranges::any_of(pins_, [&](const auto& pin) { return pin.first <= version && !pin.second.expired(); });
}

uint64_t DeltaStore::MaxDeltaBytes() const {
  MutexLock lock(mutex_);
  return !PinnedLocked(kNewest) ? std::min(options_.retain_bytes, layout_->data_bytes()) : layout_->data_bytes();
}

void DeltaStore::EvictLocked() {
  const uint64_t budget = options_.retain_bytes;
  uint64_t bytes = RetainedBytesLocked();
  while (!chain_.empty() && (bytes > budget || chain_.size() > kMaxChain)) {
    const auto oldest = chain_.front()->payload();
    if (PinnedLocked(oldest->header().base) && bytes <= 2 * budget + layout_->data_bytes()) return;
    bytes -= StoredBytes(*oldest);
    RemoveOldestLocked();
  }
}

DeltaStore::Chain DeltaStore::StepsLocked(Version base, Version last) const {
  const auto first = std::ranges::find(chain_, base, [](const auto& step) { return step->payload()->header().base; });
  return {first,
          std::find_if(first, chain_.end(), [&](const auto& step) { return step->payload()->header().target > last; })};
}

Result<DeltaStore::Chain> DeltaStore::ChainFrom(Version base, Version last) const {
  MutexLock lock(mutex_);
  Chain steps = StepsLocked(base, last);
  if (!steps.empty()) return steps;
  return Status(ErrorCode::kState, Cat("the deltas from version ", base, " on are no longer retained"));
}

DeltaStore::Chain DeltaStore::RouteFrom(Version base, Version last, uint64_t full_bytes) const {
  MutexLock lock(mutex_);
  Chain steps = StepsLocked(base, last);
  uint64_t bytes = 0;
  for (const auto& step : steps) bytes += step->payload()->header().data_bytes;
  return bytes < full_bytes ? std::move(steps) : Chain();
}

DeltaStore::StepFacts DeltaStore::StepTo(Version target) const {
  MutexLock lock(mutex_);
  const auto at = std::find_if(chain_.rbegin(), chain_.rend(), [&](const auto& step) {
    return target == kNewest || step->payload()->header().target == target;
  });
  if (at == chain_.rend() || layout_->block_count() == 0) return {};
  const double elements = static_cast<double>(layout_->data_bytes()) / layout_->block_unit(0);
  const auto payload = (*at)->payload();
  return {.data_bytes = payload->header().data_bytes,
          .density = static_cast<double>(payload->header().changed_elements) / elements};
}

Result<os::UniqueFd> DeltaStore::OpenFile(const payload::Payload& payload) const {
  const payload::PayloadHeader& header = payload.header();
  const std::string path = PathOf(header.base, header.target);
  os::UniqueFd file(!options_.directory.empty() ? open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1);
  struct stat info {};
  const bool whole = file.valid() && fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) &&
                     static_cast<uint64_t>(info.st_size) == payload.total_bytes();
  if (whole) return file;
  return Status(ErrorCode::kState, Cat("the delta from version ", header.base, " to ", header.target, " has no file"));
}

payload::DeltaChain DeltaStore::Retained() const {
  MutexLock lock(mutex_);
  payload::DeltaChain retained;
  for (const auto& step : chain_) retained.push_back(step->payload());
  return retained;
}

void DeltaStore::Discard() {
  MutexLock lock(mutex_);
  while (!chain_.empty()) RemoveOldestLocked();
}

}  // namespace lockstep::run
