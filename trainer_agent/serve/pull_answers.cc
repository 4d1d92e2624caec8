#include "trainer_agent/serve/pull_answers.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::serve {

asio::awaitable<Result<LaneAnswer>> PullAnswers::SendFull(const wire::BlockRequest& request) {
  LaneAnswer answer;
  const uint32_t block_bytes = pull_.run->layout().block_bytes();
  const uint32_t at_once = std::max<uint32_t>(1, LaneWriter::kBurstBytes / block_bytes);
  while (answer.frames < request.block_count) {
    const uint32_t count = std::min(at_once, request.block_count - answer.frames);
    // First, so that no half is held by a lane that waits for its turn.
    co_await output_.WaitForPace(uint64_t{count} * block_bytes);
    const Result<uint32_t> begun = SendBlocks(request, answer, count);
    if (!begun.ok()) co_return begun.status();
    if (!answer.refusal.ok()) break;
    Status status;
    if (*begun == 0) {
      status = co_await output_.UntilWritable();
    } else {
      answer.frames += *begun;
      pull_.Touch();
      status = co_await output_.writer().Flush();
    }
    if (!status.ok()) co_return status;
  }
  co_return answer;
}

// Sends as many of the next `count` blocks as the socket takes, from the half that holds them. Returns how many, which
// is 0 too when the request is refused.
Result<uint32_t> PullAnswers::SendBlocks(const wire::BlockRequest& request, LaneAnswer& answer, uint32_t count) {
  const model::ModelLayout& layout = pull_.run->layout();
  const BlockIndex first = request.first_block + answer.frames;
  const bool exact = request.exact_version != 0;
  Result<uint32_t> begun = 0u;
  const auto send = [&](const model::Manifest& manifest, ByteView bytes) {
    LaneWriter& writer = output_.writer();
    const size_t total = bytes.size();
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
    output_.Sent(total * *begun / count);
  };
  answer.refusal = pull_.run->UseBlocks(exact ? request.exact_version : pull_.target, exact, first, count, send);
  return begun;
}

asio::awaitable<Result<LaneAnswer>> PullAnswers::SendDelta(const wire::BlockRequest& request) {
  LaneAnswer answer;
  const std::shared_ptr<const payload::Payload> payload = pull_.FindPayload(request.payload_id);
  if (payload == nullptr) {
    answer.refusal = {ErrorCode::kNotFound, Cat("payload ", request.payload_id, " is not of this pull")};
    co_return answer;
  }
  const auto entries = payload->entries();
  auto entry = std::lower_bound(entries.begin(), entries.end(), request.first_block,
                                [](const payload::PayloadEntry& e, BlockIndex block) { return e.block < block; });
  for (; entry != entries.end() && entry->block - request.first_block < request.block_count; ++entry) {
    output_.writer().Add({.type = static_cast<uint8_t>(wire::FrameType::kBlock),
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
    if (!output_.writer().full()) continue;
    if (Status status = co_await output_.Flush(); !status.ok()) co_return status;
  }
  // While the payload is held: what was not sent yet lies in it.
  if (Status status = co_await output_.Flush(); !status.ok()) co_return status;
  co_return answer;
}

}  // namespace lockstep::serve
