#include "raas_receiver/pull/block_run.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::pull {
namespace {

constexpr uint64_t kRequestBytes = 1 << 20;  // what one lane holds while others could do it

}  // namespace

Status Broken(const wire::FrameHeader& frame, std::string_view rule) {
  return {ErrorCode::kProtocol, Cat("block ", frame.block, ": ", rule)};
}

uint32_t BlocksPerRequest(uint64_t bytes, uint32_t blocks, uint64_t request_bytes, size_t lanes) {
  const uint64_t block_bytes = std::max<uint64_t>(1, bytes / std::max(1u, blocks));
  const uint64_t by_size = std::max<uint64_t>(1, request_bytes / block_bytes);
  const uint64_t by_lanes = std::max<uint64_t>(1, (blocks + lanes - 1) / std::max<size_t>(1, lanes));
  return static_cast<uint32_t>(std::min(by_size, by_lanes));
}

std::vector<BlockRun> SplitRun(const BlockRun& whole, uint32_t count) {
  std::vector<BlockRun> runs;
  for (uint64_t first = whole.first; first < whole.end(); first += count) {
    BlockRun& run = runs.emplace_back(whole);
    run.first = static_cast<BlockIndex>(first);
    run.count = static_cast<uint32_t>(std::min<uint64_t>(count, whole.end() - first));
  }
  return runs;
}

std::vector<BlockRun> RunsOf(const FullRequest& request, const model::ModelLayout& layout, size_t lanes) {
  const auto blocks = static_cast<uint32_t>(request.blocks.size());
  const uint32_t most = BlocksPerRequest(uint64_t{blocks} * layout.block_bytes(), blocks, kRequestBytes, lanes);
  std::vector<BlockRun> runs;
  for (const BlockIndex block : request.blocks) {
    if (runs.empty() || runs.back().end() != block || runs.back().count == most) {
      runs.push_back(
          {.kind = wire::RequestKind::kFull, .version = request.version, .exact = request.exact, .first = block});
    }
    ++runs.back().count;
  }
  return runs;
}

std::vector<BlockRun> RunsOf(const DeltaRequest& request, const model::ModelLayout& layout, size_t lanes) {
  std::vector<BlockRun> runs;
  for (const DeltaStep& step : request.steps) {
    if (step.entries == 0) continue;
    const BlockRun whole{.kind = wire::RequestKind::kDelta,
                         .payload_id = step.payload_id,
                         .base = step.base,
                         .version = step.target,
                         .count = layout.block_count()};
    const std::vector<BlockRun> split =
        SplitRun(whole, BlocksPerRequest(step.data_bytes, layout.block_count(), kRequestBytes, lanes));
    runs.insert(runs.end(), split.begin(), split.end());
  }
  return runs;
}

std::vector<BlockRun> RunsOf(const StreamRequest& request, uint32_t lanes) {
  std::vector<BlockRun> runs;
  for (uint32_t share = 0; share < lanes; ++share) {
    runs.push_back({.kind = wire::RequestKind::kStream, .base = request.base, .first = share, .count = lanes});
  }
  return runs;
}

Status CheckRaw(const wire::FrameHeader& frame, const model::ModelLayout& layout) {
  if (frame.codec != static_cast<uint8_t>(payload::Codec::kRaw)) return OkStatus();
  const uint64_t bytes = layout.block_range(frame.block).bytes;
  if (frame.payload_bytes != bytes) return Broken(frame, Cat("has ", frame.payload_bytes, " raw bytes, not ", bytes));
  if (frame.payload_hash != frame.block_hash) return Broken(frame, "is raw but its payload and block hashes differ");
  return OkStatus();
}

wire::BlockRequest RunProgress::Request() const {
  wire::BlockRequest request;
  request.kind = static_cast<uint8_t>(run_.kind);
  request.request_id = request_id_;
  request.first_block = run_.first;
  request.block_count = run_.count;
  request.payload_id = run_.payload_id;
  request.exact_version = run_.exact ? run_.version : 0;
  if (run_.kind == wire::RequestKind::kStream) request.exact_version = run_.base;
  wire::Seal(request);
  return request;
}

Status RunProgress::Admit(const wire::FrameHeader& frame, const model::ModelLayout& layout) const {
  if (frame.payload_id != run_.payload_id) {
    return Broken(frame, Cat("is of payload ", frame.payload_id, ", asked for ", run_.payload_id));
  }
  LS_RETURN_IF_ERROR(CheckRaw(frame, layout));
  if (run_.kind == wire::RequestKind::kStream) return AdmitStreamed(frame);
  if (frame.block < run_.first || frame.block >= run_.end()) {
    return Broken(frame, Cat("was not asked for; the request is for [", run_.first, ", ", run_.end(), ")"));
  }
  if (frame.block < next_) return Broken(frame, "came twice or out of order");
  return run_.kind == wire::RequestKind::kFull ? AdmitFull(frame) : AdmitDelta(frame);
}

Status RunProgress::AdmitFull(const wire::FrameHeader& frame) const {
  if (frame.block != next_) return Broken(frame, Cat("came where block ", next_, " was due"));
  if (frame.codec != static_cast<uint8_t>(payload::Codec::kRaw) || frame.base_version != 0) {
    return Broken(frame, "is a delta where the full block was asked for");
  }
  if (frame.version < run_.version || (run_.exact && frame.version != run_.version)) {
    return Broken(frame, Cat("is of version ", frame.version, ", asked for ", run_.version));
  }
  return OkStatus();
}

Status RunProgress::AdmitDelta(const wire::FrameHeader& frame) const {
  if (frame.base_version != run_.base || frame.version != run_.version) {
    return Broken(frame, Cat("goes from version ", frame.base_version, " to ", frame.version, ", asked for ", run_.base,
                             " to ", run_.version));
  }
  return OkStatus();
}

// That no block comes twice is the sink's rule.
Status RunProgress::AdmitStreamed(const wire::FrameHeader& frame) const {
  if (frame.block % run_.count != run_.first) {
    return Broken(frame, Cat("is not of share ", run_.first, " of ", run_.count));
  }
  if (frame.base_version != run_.base || frame.version <= run_.base) {
    return Broken(frame, Cat("goes from version ", frame.base_version, " to ", frame.version,
                             ", asked for what follows ", run_.base));
  }
  return OkStatus();
}

void RunProgress::Received(const wire::FrameHeader& frame) {
  next_ = frame.block + 1;
  ++received_;
}

Status RunProgress::Finish(const wire::FrameHeader& frame) const {
  if (frame.block != received_) {
    return {ErrorCode::kProtocol,
            Cat("request ", request_id_, " ended after ", received_, " blocks, its end says ", frame.block)};
  }
  if (run_.kind == wire::RequestKind::kFull && next_ != run_.end()) {
    return {ErrorCode::kProtocol,
            Cat("request ", request_id_, " ended before block ", next_, " of [", run_.first, ", ", run_.end(), ")")};
  }
  if (run_.kind == wire::RequestKind::kStream && frame.version <= run_.base) {
    return {ErrorCode::kProtocol, Cat("a streaming delta from version ", run_.base, " leads to ", frame.version)};
  }
  return OkStatus();
}

std::optional<BlockRun> RunProgress::Rest() const {
  if (run_.kind == wire::RequestKind::kStream) return run_;
  if (next_ == run_.end()) return std::nullopt;
  BlockRun rest = run_;
  rest.first = next_;
  rest.count = run_.end() - next_;
  return rest;
}

}  // namespace lockstep::pull
