#include "trainer_agent/store/delta_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/segment.h"

namespace lockstep::store {
namespace {

constexpr char kSuffix[] = ".delta";
// Each delta is a mapping, and a kernel allows a process some 65,000 of them.
constexpr size_t kMaxChain = 1024;
// To look at more changes than these takes seconds, in which the receiver could have pulled the chain.
constexpr uint64_t kMaxDerivedElements = 128 << 20;
constexpr uint64_t kMaxFoldWork = 512 << 20;
// What takes longer although it should not: a receiver waits 30 s for its plan.
constexpr std::chrono::seconds kPatience{10};
constexpr uint64_t kPageBytes = 4096;

// Of the tmpfs.
uint64_t StoredBytes(const payload::Payload& payload) {
  return (payload.total_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
}

template <typename Steps>
payload::DeltaChain PayloadsOf(const Steps& steps) {
  payload::DeltaChain payloads;
  for (const auto& step : steps) payloads.push_back(step.payload);
  return payloads;
}

// How many changes a fold looks at: it adds each step to the sum of those before it, and looks each block up in all.
uint64_t FoldWork(const payload::DeltaChain& chain) {
  uint64_t sum = 0;
  uint64_t work = 0;
  for (const auto& step : chain) {
    sum += step->header().changed_elements;
    work += sum + step->header().block_count;
  }
  return work;
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

uint64_t DeltaRoute::data_bytes() const {
  uint64_t bytes = 0;
  for (const auto& step : steps) bytes += step->header().data_bytes;
  return bytes;
}

uint64_t DeltaRoute::changed_elements() const {
  uint64_t elements = 0;
  for (const auto& step : steps) elements += step->header().changed_elements;
  return elements;
}

DeltaStore::DeltaStore(std::shared_ptr<const model::ModelLayout> layout, StoreOptions options)
    : layout_(std::move(layout)),
      options_(std::move(options)),
      pinned_(options_.retain_bytes),
      derived_(options_.derived_bytes, options_.fold_pool, &pinned_) {}

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
    if (payload != nullptr && payload->header().run == newest.held.run && payload->header().steps_folded == 1) {
      by_target[payload->header().target] = std::move(payload);
    }
  }
  std::lock_guard lock(mutex_);
  std::set<std::string> kept;
  Version wanted = newest.held.version;
  ManifestDigest digest = newest.digest;
  for (auto at = by_target.find(wanted); at != by_target.end(); at = by_target.find(wanted)) {
    const payload::PayloadHeader& header = at->second->header();
    if (header.target_digest != digest) break;
    chain_.push_front({at->second});  // at the lowest level, for all that its file says
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

Result<std::shared_ptr<const payload::Payload>> DeltaStore::Add(const payload::PayloadIdentity& identity,
                                                                payload::CodecLevel level,
                                                                const std::vector<const payload::DeltaBlock*>& blocks) {
  derived_.Clear();  // who is behind now needs others
  std::lock_guard lock(mutex_);
  LS_ASSIGN_OR_RETURN(auto payload, AssembleLocked(identity, blocks));
  const bool follows = !chain_.empty() && chain_.back().header().target == identity.base &&
                       chain_.back().header().target_digest == identity.base_digest;
  while (!follows && !chain_.empty()) RemoveOldestLocked();
  chain_.push_back({payload, level});
  EvictLocked();
  return payload;
}

void DeltaStore::RemoveOldestLocked() {
  const payload::PayloadHeader& header = chain_.front().header();
  if (!options_.directory.empty()) unlink(PathOf(header.base, header.target).c_str());
  pinned_.Add(chain_.front().payload);
  chain_.pop_front();
}

uint64_t DeltaStore::RetainedBytesLocked() const {
  uint64_t bytes = 0;
  for (const Step& step : chain_) bytes += StoredBytes(*step.payload);
  return bytes;
}

uint64_t DeltaStore::MaxDeltaBytes() const {
  std::lock_guard lock(mutex_);
  return holds_.empty() ? std::min(options_.retain_bytes, layout_->data_bytes()) : layout_->data_bytes();
}

void DeltaStore::EvictLocked() {
  const uint64_t budget = options_.retain_bytes;
  uint64_t bytes = RetainedBytesLocked();
  while (!chain_.empty() && (bytes > budget || chain_.size() > kMaxChain)) {
    const bool held = !holds_.empty() && *holds_.begin() <= chain_.front().header().base;
    if (held && bytes <= 2 * budget + layout_->data_bytes()) return;
    bytes -= StoredBytes(*chain_.front().payload);
    RemoveOldestLocked();
  }
}

std::vector<DeltaStore::Step> DeltaStore::StepsLocked(Version base, Version last) const {
  const auto first = std::ranges::find(chain_, base, [](const Step& step) { return step.header().base; });
  return {first, std::find_if(first, chain_.end(), [&](const Step& step) { return step.header().target > last; })};
}

Result<payload::DeltaChain> DeltaStore::ChainFrom(Version base, Version last) const {
  std::lock_guard lock(mutex_);
  const std::vector<Step> steps = StepsLocked(base, last);
  if (steps.empty())
    return Status(ErrorCode::kState, Cat("the deltas from version ", base, " on are no longer retained"));
  return PayloadsOf(steps);
}

DeltaRoute DeltaStore::RouteFrom(Version base, Version last, uint64_t full_bytes, payload::CodecLevel level,
                                 const Gone& gone) {
  std::vector<Step> steps;
  {
    std::lock_guard lock(mutex_);
    steps = StepsLocked(base, last);
  }
  if (steps.empty()) return {};
  DeltaRoute route{.steps = PayloadsOf(steps), .level = std::ranges::min_element(steps, {}, &Step::level)->level};
  const auto until = std::chrono::steady_clock::now() + kPatience;
  const auto leaves = [&] { return (gone && gone()) || std::chrono::steady_clock::now() > until; };
  const bool quick = route.changed_elements() <= kMaxDerivedElements && options_.fold_pool != nullptr;
  if (quick && steps.size() > 1 && FoldWork(route.steps) <= kMaxFoldWork) Fold(level, leaves, route);
  if (quick && route.level < level) Raise(steps, level, leaves, route);
  if (route.data_bytes() >= full_bytes) route.steps.clear();
  return route;
}

void DeltaStore::Fold(payload::CodecLevel level, const Gone& gone, DeltaRoute& route) {
  const auto make = [layout = layout_, steps = route.steps, level, pool = options_.fold_pool](const auto& unwanted) {
    return payload::FoldPayloads(*layout, steps, level, *pool, unwanted);
  };
  const auto folded = derived_.Get(route.steps, level, make, gone);
  if (folded != nullptr) route = {.steps = {folded}, .folded = true, .level = level};
}

void DeltaStore::Raise(const std::vector<Step>& steps, payload::CodecLevel level, const Gone& gone, DeltaRoute& route) {
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].level >= level) continue;
    if (gone()) return;
    const auto make = [layout = layout_, step = steps[i].payload, level,
                       pool = options_.fold_pool](const auto& unwanted) {
      return payload::RecodePayload(*layout, *step, level, *pool, unwanted);
    };
    const auto raised = derived_.Get({&steps[i].payload, 1}, level, make, gone);
    if (raised != nullptr) route.steps[i] = raised;
  }
  route.level = level;
}

DeltaStore::StepFacts DeltaStore::StepTo(Version target) const {
  std::lock_guard lock(mutex_);
  const auto at = std::find_if(chain_.rbegin(), chain_.rend(),
                               [&](const Step& step) { return target == kNewest || step.header().target == target; });
  if (at == chain_.rend() || layout_->block_count() == 0) return {};
  const double elements = static_cast<double>(layout_->data_bytes()) / layout_->block_unit(0);
  return {.data_bytes = at->header().data_bytes,
          .density = static_cast<double>(at->header().changed_elements) / elements};
}

DeltaStore::Hold::Hold(DeltaStore* store, Version version)
    : store_(store), at_([&] {
        std::lock_guard lock(store->mutex_);
        return store->holds_.insert(version);
      }()) {}

DeltaStore::Hold::~Hold() {
  std::lock_guard lock(store_->mutex_);
  store_->holds_.erase(at_);
  store_->EvictLocked();
}

Result<os::UniqueFd> DeltaStore::OpenFile(const payload::Payload& payload) const {
  const payload::PayloadHeader& header = payload.header();
  const std::string path = PathOf(header.base, header.target);
  const bool stored = !options_.directory.empty() && header.steps_folded == 1;
  os::UniqueFd file(stored ? open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1);
  struct stat info {};
  const bool whole = file.valid() && fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) &&
                     static_cast<uint64_t>(info.st_size) == payload.total_bytes();
  if (whole) return file;
  return Status(ErrorCode::kState, Cat("the delta from version ", header.base, " to ", header.target, " has no file"));
}

payload::DeltaChain DeltaStore::Retained() const {
  std::lock_guard lock(mutex_);
  payload::DeltaChain all = PayloadsOf(chain_);
  for (auto& derived : derived_.Kept()) all.push_back(std::move(derived));
  return all;
}

void DeltaStore::Discard() {
  std::lock_guard lock(mutex_);
  while (!chain_.empty()) RemoveOldestLocked();
  derived_.Clear();
}

}  // namespace lockstep::store
