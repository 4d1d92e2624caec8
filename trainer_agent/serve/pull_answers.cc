#include "trainer_agent/serve/pull_answers.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::serve {
namespace {

// Sends as many of the next `count` blocks as the socket takes, from the slot that holds them. Returns how many, which
// is 0 too when the request is refused.
Result<uint32_t> SendBlocks(const wire::BlockRequest& request, uint32_t count, Pull& pull, LaneWriter& writer,
                            LaneAnswer& answer) {
  const model::ModelLayout& layout = pull.run->layout();
  const BlockIndex first = request.first_block + answer.frames;
  const bool exact = request.exact_version != 0;
  Result<uint32_t> begun = 0u;
  const auto send = [&](const model::Manifest& manifest, ByteView bytes) {
    for (BlockIndex block = first; block < first + count; ++block) {
      const size_t block_bytes = layout.block_range(block).bytes;
      const uint64_t hash = manifest.block_hashes[block];
      writer.Add({.type = static_cast<uint8_t>(wire::FrameType::kBlock),
                  .codec = static_cast<uint8_t>(payload::Codec::kRaw),
                  .request_id = request.request_id,
                  .block = block,
                  .version = manifest.held.version,
                  .block_hash = hash,
                  .payload_hash = hash,
                  .payload_bytes = static_cast<uint32_t>(block_bytes)},
                 bytes.first(block_bytes));
      bytes = bytes.subspan(block_bytes);
    }
    const bool last = answer.frames + count == request.block_count;
    if (last) writer.AddEnd(request.request_id, request.block_count);
    begun = writer.SendLent();
    if (!begun.ok()) return;
    answer.end_sent = *begun > count;
    begun = std::min(*begun, count);
  };
  answer.refusal = pull.run->UseBlocks(exact ? request.exact_version : pull.target, exact, first, count, send);
  return begun;
}

}  // namespace

asio::awaitable<Result<LaneAnswer>> SendFull(const wire::BlockRequest& request, Pull& pull, LaneWriter& writer) {
  LaneAnswer answer;
  const uint32_t block_bytes = pull.run->layout().block_bytes();
  const uint32_t at_once = std::max<uint32_t>(1, LaneWriter::kBurstBytes / block_bytes);
  while (answer.frames < request.block_count) {
    const uint32_t count = std::min(at_once, request.block_count - answer.frames);
    // First, so that no slot is held by a lane that waits for its turn.
    co_await writer.WaitForPace(uint64_t{count} * block_bytes);
    const Result<uint32_t> begun = SendBlocks(request, count, pull, writer, answer);
    if (!begun.ok()) co_return begun.status();
    if (!answer.refusal.ok()) break;
    Status status;
    if (*begun == 0) {
      status = co_await writer.UntilWritable();
    } else {
      answer.frames += *begun;
      status = co_await writer.SendKept();
    }
    if (!status.ok()) co_return status;
  }
  co_return answer;
}

asio::awaitable<Result<LaneAnswer>> SendDelta(const wire::BlockRequest& request, Pull& pull, LaneWriter& writer) {
  LaneAnswer answer;
  const auto found = pull.FindPayload(request.payload_id);
  answer.refusal = found.status();
  if (!found.ok()) co_return answer;
  const std::shared_ptr<const payload::Payload>& payload = *found;
  const auto entries = payload->entries();
  auto entry = std::lower_bound(entries.begin(), entries.end(), request.first_block,
                                [](const payload::PayloadEntry& e, BlockIndex block) { return e.block < block; });
  for (; entry != entries.end() && entry->block - request.first_block < request.block_count; ++entry) {
    writer.Add({.type = static_cast<uint8_t>(wire::FrameType::kBlock),
                .codec = entry->codec,
                .request_id = request.request_id,
                .block = entry->block,
                .version = payload->header().target,
                .base_version = payload->header().base,
                .block_hash = entry->target_hash,
                .payload_hash = entry->data_hash,
                .payload_bytes = entry->bytes,
                .changes = entry->changes,
                .payload_id = request.payload_id},
               payload->data(*entry));
    ++answer.frames;
    if (!writer.full()) continue;
    if (Status status = co_await writer.Flush(); !status.ok()) co_return status;
    // It may have been taken back while the receiver took its time.
    answer.refusal = pull.FindPayload(request.payload_id).status();
    if (!answer.refusal.ok()) co_return answer;
  }
  // While the payload is held: what was not sent yet lies in it.
  if (Status status = co_await writer.Flush(); !status.ok()) co_return status;
  co_return answer;
}

}  // namespace lockstep::serve
