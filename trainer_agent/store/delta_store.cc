#include "trainer_agent/store/delta_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/segment.h"

namespace lockstep::store {
namespace {

constexpr char kSuffix[] = ".delta";
// Each delta is a mapping, and a kernel allows a process some 65,000 of them.
constexpr size_t kMaxChain = 1024;
// To fold or recode more changes than these takes seconds, in which the receiver could have pulled the chain.
constexpr uint64_t kMaxDerivedElements = 128 << 20;
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
  std::lock_guard lock(mutex_);
  derived_.clear();  // who is behind now needs others
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
  chain_.pop_front();
}

uint64_t DeltaStore::RetainedBytesLocked() const {
  uint64_t bytes = 0;
  for (const Step& step : chain_) bytes += StoredBytes(*step.payload);
  for (const auto& [key, payload] : derived_) bytes += payload == nullptr ? 0 : StoredBytes(*payload);
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
    const Version base = chain_.front().header().base;
    const bool held = !holds_.empty() && *holds_.begin() <= base;
    if (held && bytes <= 2 * budget + layout_->data_bytes()) return;
    bytes -= StoredBytes(*chain_.front().payload);
    RemoveOldestLocked();
    const auto of_base = [base](const auto& derived) { return derived.first.base == base; };
    if (std::erase_if(derived_, of_base) > 0) bytes = RetainedBytesLocked();
  }
}

std::vector<DeltaStore::Step> DeltaStore::StepsLocked(Version base) const {
  const auto first = std::ranges::find(chain_, base, [](const Step& step) { return step.header().base; });
  return {first, chain_.end()};
}

Result<payload::DeltaChain> DeltaStore::ChainFrom(Version base) const {
  std::lock_guard lock(mutex_);
  const std::vector<Step> steps = StepsLocked(base);
  if (steps.empty())
    return Status(ErrorCode::kState, Cat("the deltas from version ", base, " on are no longer retained"));
  return PayloadsOf(steps);
}

DeltaRoute DeltaStore::RouteFrom(Version base, uint64_t full_bytes, payload::CodecLevel level) {
  std::vector<Step> steps;
  {
    std::lock_guard lock(mutex_);
    steps = StepsLocked(base);
  }
  if (steps.empty()) return {};
  DeltaRoute route{.steps = PayloadsOf(steps), .level = std::ranges::min_element(steps, {}, &Step::level)->level};
  const bool quick = route.changed_elements() <= kMaxDerivedElements && options_.fold_pool != nullptr;
  if (quick && steps.size() > 1) Fold(base, level, route);
  if (quick && route.level < level) Raise(steps, level, route);
  if (route.data_bytes() >= full_bytes) route.steps.clear();
  return route;
}

void DeltaStore::Fold(Version base, payload::CodecLevel level, DeltaRoute& route) {
  const DerivedKey key{base, route.steps.back()->header().target, level};
  const auto folded = Derived(key, route.data_bytes(),
                              [&] { return payload::FoldPayloads(*layout_, route.steps, level, *options_.fold_pool); });
  if (folded != nullptr) route = {.steps = {folded}, .folded = true, .level = level};
}

void DeltaStore::Raise(const std::vector<Step>& steps, payload::CodecLevel level, DeltaRoute& route) {
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].level >= level) continue;
    const payload::PayloadHeader& header = steps[i].header();
    const auto raised = Derived({header.base, header.target, level}, header.data_bytes, [&] {
      return payload::RecodePayload(*layout_, *steps[i].payload, level, *options_.fold_pool);
    });
    if (raised != nullptr) route.steps[i] = raised;
  }
  route.level = level;
}

std::shared_ptr<const payload::Payload> DeltaStore::Derived(const DerivedKey& key, uint64_t smaller_than,
                                                            const Derive& derive) {
  std::lock_guard derive_lock(derive_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (const auto known = derived_.find(key); known != derived_.end()) return known->second;
  }
  const auto made = derive();
  const auto derived = made.ok() && (*made)->header().data_bytes < smaller_than ? *made : nullptr;
  std::lock_guard lock(mutex_);
  // Another version may have come meanwhile, or memory be short: then this serves the one caller only.
  const uint64_t room = options_.retain_bytes - std::min(options_.retain_bytes, RetainedBytesLocked());
  const bool fits = derived == nullptr || StoredBytes(*derived) <= room;
  const bool wanted = !chain_.empty() && (key.target == chain_.back().header().target || IsStepLocked(key));
  if (wanted && fits && !StepsLocked(key.base).empty()) derived_[key] = derived;
  return derived;
}

double DeltaStore::NewestDensity() const {
  std::lock_guard lock(mutex_);
  if (chain_.empty() || layout_->block_count() == 0) return 0;
  const double elements = static_cast<double>(layout_->data_bytes()) / layout_->block_unit(0);
  return static_cast<double>(chain_.back().header().changed_elements) / elements;
}

bool DeltaStore::IsStepLocked(const DerivedKey& key) const {
  return std::ranges::any_of(
      chain_, [&](const Step& step) { return step.header().base == key.base && step.header().target == key.target; });
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
  for (const auto& [key, payload] : derived_) {
    if (payload != nullptr) all.push_back(payload);
  }
  return all;
}

void DeltaStore::Discard() {
  std::lock_guard lock(mutex_);
  while (!chain_.empty()) RemoveOldestLocked();
  derived_.clear();
}

}  // namespace lockstep::store
