#include "raas_receiver/session/staging.h"

#include "common/base/text.h"

namespace lockstep {

FullStaging::FullStaging(const ModelLayout& layout, ReplicaPair& replicas)
    : replicas_(replicas), versions_(layout.block_count()), hashes_(layout.block_count()) {}

Status FullStaging::Put(const FrameHeader& frame, ByteView) {
  versions_[frame.block] = frame.version;
  hashes_[frame.block] = frame.block_hash;
  return OkStatus();
}

DeltaStaging::DeltaStaging(const ModelLayout& layout, const std::vector<PlanStep>& steps) : layout_(layout) {
  for (const PlanStep& plan : steps) {
    by_payload_[plan.payload_id] = steps_.size();
    steps_.push_back({plan, nullptr, {}, 0});
  }
}

Status DeltaStaging::Put(const FrameHeader& frame, ByteView payload) {
  DeltaBlock block{frame.block,        static_cast<Codec>(frame.codec),      frame.changes, frame.block_hash,
                   frame.payload_hash, Bytes(payload.begin(), payload.end())};
  std::lock_guard lock(mutex_);
  Step& step = steps_[by_payload_.at(frame.payload_id)];
  if (step.blocks.size() == step.plan.entries || payload.size() > step.plan.data_bytes - step.bytes) {
    return {ErrorCode::kProtocol, Cat("block ", frame.block, " is more than the ", step.plan.entries, " blocks and ",
                                      step.plan.data_bytes, " bytes planned to version ", step.plan.target)};
  }
  step.bytes += payload.size();
  step.blocks.push_back(std::move(block));
  return OkStatus();
}

Status DeltaStaging::Give(uint64_t payload_id, const RunId& run, std::shared_ptr<const Payload> payload) {
  Step& step = steps_[by_payload_.at(payload_id)];
  const PayloadHeader& header = payload->header();
  const bool planned = header.run == run && header.base == step.plan.base && header.target == step.plan.target &&
                       header.target_digest == step.plan.target_digest && header.entries == step.plan.entries &&
                       header.data_bytes == step.plan.data_bytes;
  if (!planned) {
    return {ErrorCode::kProtocol, Cat("the payload from version ", header.base, " to ", header.target,
                                      " is not the one planned from ", step.plan.base, " to ", step.plan.target)};
  }
  step.whole = std::move(payload);
  return OkStatus();
}

Status DeltaStaging::GiveBlocks(uint64_t payload_id, std::vector<DeltaBlock> blocks) {
  Step& step = steps_[by_payload_.at(payload_id)];
  uint64_t bytes = 0;
  for (const DeltaBlock& block : blocks) bytes += block.data.size();
  if (blocks.size() != step.plan.entries || bytes != step.plan.data_bytes) {
    return {ErrorCode::kProtocol,
            Cat("the delta from version ", step.plan.base, " to ", step.plan.target, " came live with ", blocks.size(),
                " blocks and ", bytes, " bytes, planned were ", step.plan.entries, " and ", step.plan.data_bytes)};
  }
  step.blocks = std::move(blocks);
  step.bytes = bytes;
  return OkStatus();
}

std::vector<BlockRun> DeltaStaging::Runs(uint64_t request_bytes, size_t lanes) const {
  std::vector<BlockRun> runs;
  for (const Step& step : steps_) {
    if (step.complete()) continue;
    const BlockRun whole{.kind = RequestKind::kDelta,
                         .payload_id = step.plan.payload_id,
                         .base = step.plan.base,
                         .version = step.plan.target,
                         .first = 0,
                         .count = layout_.block_count()};
    const uint32_t count = BlocksPerRequest(step.plan.data_bytes, layout_.block_count(), request_bytes, lanes);
    const std::vector<BlockRun> split = SplitRun(whole, count);
    runs.insert(runs.end(), split.begin(), split.end());
  }
  return runs;
}

Result<DeltaChain> DeltaStaging::Assemble(const Held& base, const ManifestDigest& base_digest,
                                          int64_t committed_unix_ns) {
  DeltaChain chain;
  ManifestDigest digest = base_digest;
  for (Step& step : steps_) {
    if (step.whole != nullptr) {
      chain.push_back(std::move(step.whole));
      digest = step.plan.target_digest;
      continue;
    }
    if (step.blocks.size() != step.plan.entries || step.bytes != step.plan.data_bytes) {
      return Status(
          ErrorCode::kProtocol,
          Cat("the delta from version ", step.plan.base, " to ", step.plan.target, " came with ", step.blocks.size(),
              " blocks and ", step.bytes, " bytes, planned were ", step.plan.entries, " and ", step.plan.data_bytes));
    }
    const PayloadIdentity identity{.run = base.run,
                                   .base = step.plan.base,
                                   .target = step.plan.target,
                                   .base_digest = digest,
                                   .target_digest = step.plan.target_digest,
                                   .steps_folded = 1,
                                   .committed_unix_ns = committed_unix_ns};
    LS_ASSIGN_OR_RETURN(auto payload, Payload::Assemble(layout_, identity, step.blocks));
    chain.push_back(std::move(payload));
    step.blocks = {};
    digest = step.plan.target_digest;
  }
  return chain;
}

Status VerifyChain(const ModelLayout& layout, const DeltaChain& chain, std::vector<uint64_t> hashes) {
  for (const auto& step : chain) {
    for (const PayloadEntry& entry : step->entries()) hashes[entry.block] = entry.target_hash;
    if (ComputeManifestDigest(layout.digest(), hashes) != step->header().target_digest) {
      return {ErrorCode::kCorrupt, Cat("the delta from version ", step->base().version, " to ", step->target().version,
                                       " does not lead to the digest that its manifest names")};
    }
  }
  return OkStatus();
}

}  // namespace lockstep
