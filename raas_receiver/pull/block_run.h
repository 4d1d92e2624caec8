// BlockRun: one request to a lane. RunProgress: the rules that the answer must keep.
//
// Everything a peer sends is hostile until RunProgress has admitted it: a block outside the run, out of order or twice,
// of another version or payload than asked for, of a size that its block cannot have.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/wire/frame.h"
#include "raas_receiver/pull/block_source.h"

namespace lockstep::pull {

// Consecutive blocks of one kind, or a share of a streaming delta: one BlockRequest.
struct BlockRun {
  wire::RequestKind kind = wire::RequestKind::kFull;
  uint64_t payload_id = 0;  // kDelta: of the step
  Version base = 0;         // kDelta, kStream: that it applies to
  Version version = 0;      // kDelta: that it leads to. kFull: the oldest that is good enough
  bool exact = false;       // kFull: no other version than `version`
  BlockIndex first = 0;     // kStream: which share
  uint32_t count = 0;       // kStream: of how many

  BlockIndex end() const { return first + count; }
};

// How many blocks make a request of about `request_bytes`, when `blocks` blocks come to `bytes`. At least 1, and few
// enough that each of `lanes` lanes gets some of them.
uint32_t BlocksPerRequest(uint64_t bytes, uint32_t blocks, uint64_t request_bytes, size_t lanes);

// `whole` in pieces of at most `count` blocks.
std::vector<BlockRun> SplitRun(const BlockRun& whole, uint32_t count);

// The runs that ask `lanes` lanes for all of `request`.
std::vector<BlockRun> RunsOf(const FullRequest& request, const model::ModelLayout& layout, size_t lanes);
std::vector<BlockRun> RunsOf(const DeltaRequest& request, const model::ModelLayout& layout, size_t lanes);
std::vector<BlockRun> RunsOf(const StreamRequest& request, uint32_t lanes);

// kProtocol, naming the block and the rule that its frame breaks.
Status Broken(const wire::FrameHeader& frame, std::string_view rule);
// Checks the frame of a raw block; errors are Broken()'s. OK for the frame of a coded block.
Status CheckRaw(const wire::FrameHeader& frame, const model::ModelLayout& layout);

// The answer to one run as it comes in. Blocks come in rising order, and of a full run every one; of a streaming delta,
// in the order in which they are made.
class RunProgress {
 public:
  RunProgress(const BlockRun& run, uint32_t request_id) : run_(run), request_id_(request_id), next_(run.first) {}

  const BlockRun& run() const { return run_; }
  uint32_t request_id() const { return request_id_; }
  wire::BlockRequest Request() const;  // sealed

  // Admits a kBlock frame, before its payload is read. kProtocol names the block and the rule it breaks.
  Status Admit(const wire::FrameHeader& frame, const model::ModelLayout& layout) const;
  // The admitted frame's payload arrived whole.
  void Received(const wire::FrameHeader& frame);
  // Takes the kRequestEnd frame. kProtocol when blocks are missing.
  Status Finish(const wire::FrameHeader& frame) const;

  // The run to ask for again when the lane broke: the blocks that have not come; of a streaming delta the whole share,
  // which no other lane asks for. No value when all have.
  std::optional<BlockRun> Rest() const;

 private:
  Status AdmitFull(const wire::FrameHeader& frame) const;
  Status AdmitDelta(const wire::FrameHeader& frame) const;
  Status AdmitStreamed(const wire::FrameHeader& frame) const;

  BlockRun run_;
  uint32_t request_id_;
  BlockIndex next_;
  uint32_t received_ = 0;  // blocks
};

}  // namespace lockstep::pull
