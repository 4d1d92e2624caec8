#include "raas_receiver/origin/staging.h"

#include <utility>

#include "common/base/text.h"
#include "common/model/manifest.h"

namespace lockstep::origin {

FullStaging::FullStaging(const model::ModelLayout& layout, std::function<std::span<std::byte>(BlockIndex)> place_of)
    : place_of_(std::move(place_of)), versions_(layout.block_count()), hashes_(layout.block_count()) {}

void FullStaging::Expect(const std::vector<BlockIndex>& blocks) {
  expected_ = blocks;
  for (const BlockIndex block : blocks) versions_[block] = 0;
}

std::vector<BlockIndex> FullStaging::Missing() const {
  std::vector<BlockIndex> missing;
  for (const BlockIndex block : expected_) {
    if (versions_[block] == 0) missing.push_back(block);
  }
  return missing;
}

void FullStaging::Take(BlockIndex first, const FullStaging& part) {
  for (const BlockIndex block : part.expected_) {
    Note(first + block, part.versions_[block], part.hashes_[block]);
  }
}

void FullStaging::Note(BlockIndex block, Version version, uint64_t hash) {
  versions_[block] = version;
  hashes_[block] = hash;
}

Status FullStaging::Put(const wire::FrameHeader& frame, ByteView) {
  Note(frame.block, frame.version, frame.block_hash);
  return OkStatus();
}

DeltaStaging::DeltaStaging(const model::ModelLayout& layout, const RunId& run,
                           const std::vector<pull::DeltaStep>& steps)
    : layout_(layout), run_(run) {
  for (const pull::DeltaStep& plan : steps) {
    by_payload_[plan.payload_id] = steps_.size();
    steps_.push_back({plan, nullptr, {}, 0});
  }
}

Status DeltaStaging::PutEntry(uint64_t payload_id, payload::DeltaBlock entry) {
  MutexLock lock(mutex_);
  Step& step = steps_[by_payload_.at(payload_id)];
  if (step.entries.size() == step.plan.entries || entry.bytes().size() > step.plan.data_bytes - step.bytes) {
    return {ErrorCode::kProtocol, Cat("block ", entry.block, " is more than the ", step.plan.entries, " blocks and ",
                                      step.plan.data_bytes, " bytes planned to version ", step.plan.target)};
  }
  step.bytes += entry.bytes().size();
  step.entries.push_back(std::move(entry));
  return OkStatus();
}

Status DeltaStaging::PutPayload(uint64_t payload_id, std::shared_ptr<const payload::Payload> payload) {
  MutexLock lock(mutex_);
  Step& step = steps_[by_payload_.at(payload_id)];
  const payload::PayloadHeader& header = payload->header();
  const bool planned = header.run == run_ && header.base == step.plan.base && header.target == step.plan.target &&
                       header.target_digest == step.plan.target_digest && header.entries == step.plan.entries &&
                       header.data_bytes == step.plan.data_bytes;
  if (!planned) {
    return {ErrorCode::kProtocol, Cat("the payload from version ", header.base, " to ", header.target,
                                      " is not the one planned from ", step.plan.base, " to ", step.plan.target)};
  }
  step.whole = std::move(payload);
  return OkStatus();
}

pull::DeltaRequest DeltaStaging::TakeMissing() {
  MutexLock lock(mutex_);
  pull::DeltaRequest missing{.run = run_, .steps = {}};
  for (Step& step : steps_) {
    if (std::exchange(step.asked, true) && step.complete()) continue;
    step.entries.clear();
    step.bytes = 0;
    missing.steps.push_back(step.plan);
  }
  return missing;
}

Result<payload::DeltaChain> DeltaStaging::Assemble(const ManifestDigest& base_digest, int64_t committed_unix_ns) {
  MutexLock lock(mutex_);
  payload::DeltaChain chain;
  ManifestDigest digest = base_digest;
  for (Step& step : steps_) {
    if (!step.complete()) {
      return Status(
          ErrorCode::kProtocol,
          Cat("the delta from version ", step.plan.base, " to ", step.plan.target, " came with ", step.entries.size(),
              " blocks and ", step.bytes, " bytes, planned were ", step.plan.entries, " and ", step.plan.data_bytes));
    }
    if (step.whole == nullptr) {
      const payload::PayloadIdentity identity{.run = run_,
                                              .base = step.plan.base,
                                              .target = step.plan.target,
                                              .base_digest = digest,
                                              .target_digest = step.plan.target_digest,
                                              .committed_unix_ns = committed_unix_ns};
      LS_ASSIGN_OR_RETURN(step.whole, payload::Payload::Assemble(layout_, identity, step.entries));
      step.entries = {};
    }
    chain.push_back(std::move(step.whole));
    digest = step.plan.target_digest;
  }
  return chain;
}

Status VerifyChain(const model::ModelLayout& layout, const payload::DeltaChain& chain, std::vector<uint64_t> hashes) {
  for (const auto& step : chain) {
    for (const payload::PayloadEntry& entry : step->entries()) hashes[entry.block] = entry.target_hash;
    if (model::ComputeManifestDigest(layout, hashes) != step->header().target_digest) {
      return {ErrorCode::kCorrupt, Cat("the delta from version ", step->base().version, " to ", step->target().version,
                                       " does not lead to the digest that its manifest names")};
    }
  }
  return OkStatus();
}

}  // namespace lockstep::origin
