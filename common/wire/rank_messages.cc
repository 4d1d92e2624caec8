#include "common/wire/rank_messages.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/os/framing.h"
#include "common/peer/peer.h"

namespace lockstep::wire {
namespace {

constexpr std::chrono::milliseconds kBodyTimeout{30'000};

constexpr os::MessageKind kKinds[] = {
    {"OPEN", kMaxRankBody},    {"OPENED", kMaxRankBody},    {"BEGIN", kMaxRankBody},        {"BEGUN", kMaxRankBody},
    {"BATCHES", kMaxRankBody}, {"COMMIT", kMaxRankBody},    {"ABORT", kMaxRankBody},        {"DONE", kMaxRankBody},
    {"ERROR", kMaxRankBody},   {"UNCHANGED", kMaxRankBody}, {"HELLO", peer::kMaxPeerBytes}, {"AWAIT_SERVED", 1 << 20},
    {"ANSWER", kMaxRankBody},  {"AWAIT_CHANGES", 1 << 20},
};
static_assert(std::size(kKinds) == static_cast<size_t>(RankMessageType::kAwaitChanges));

constexpr os::Protocol kProtocol{
    .name = "rank protocol", .ends = "plugin and agent", .magic = kRankMagic, .format = kRankFormat, .kinds = kKinds};

}  // namespace

Status SendRankMessage(os::UnixConnection& connection, RankMessageType type, ByteView body, std::span<const int> fds,
                       std::chrono::milliseconds timeout) {
  const RankMessageHeader header{.type = static_cast<uint16_t>(type), .body_bytes = static_cast<uint32_t>(body.size())};
  return os::SendFramed(connection, AsBytes(header), body, fds, timeout);
}

Result<RankMessage> ReceiveRankMessage(os::UnixConnection& connection, std::chrono::milliseconds timeout) {
  RankMessage message;
  RankMessageHeader header;
  LS_RETURN_IF_ERROR(connection.Receive(std::as_writable_bytes(std::span(&header, 1)), &message.fds, timeout));
  LS_RETURN_IF_ERROR(os::CheckStart(kProtocol, AsBytes(header)));
  if (header.reserved != 0) return Status(ErrorCode::kProtocol, "rank protocol: a header's reserved bytes are not 0");
  message.type = static_cast<RankMessageType>(header.type);
  LS_ASSIGN_OR_RETURN(message.body, os::ReceiveBody(connection, header.body_bytes, os::Deadline(kBodyTimeout)));
  return message;
}

uint32_t Share::Add(std::span<const StridedRange> batch) {
  ranges.insert(ranges.end(), batch.begin(), batch.end());
  batch_ends.push_back(static_cast<uint32_t>(ranges.size()));
  return static_cast<uint32_t>(batch_ends.size() - 1);
}

std::span<const StridedRange> Share::RangesOf(uint32_t batch) const {
  const size_t begin = batch == 0 ? 0 : batch_ends[batch - 1];
  return std::span(ranges).subspan(begin, batch_ends[batch] - begin);
}

uint64_t Share::BytesOf(uint32_t batch) const {
  uint64_t bytes = 0;
  for (const StridedRange& range : RangesOf(batch)) bytes += range.bytes();
  return bytes;
}

Bytes EncodeOpen(OpenBody open, std::string_view model, const model::ModelLayout& layout, const Share& share) {
  open.model_bytes = static_cast<uint32_t>(model.size());
  open.layout_bytes = static_cast<uint32_t>(layout.encoded().size());
  open.batches = static_cast<uint32_t>(share.batch_ends.size());
  open.ranges = static_cast<uint32_t>(share.ranges.size());
  Bytes body;
  Append(body, open);
  AppendBytes(body, AsBytes(model));
  AppendBytes(body, layout.encoded());
  AppendBytes(body, std::as_bytes(std::span(share.batch_ends)));
  AppendBytes(body, std::as_bytes(std::span(share.ranges)));
  return body;
}

Result<Opening> DecodeOpen(ByteView body) {
  ByteReader reader(body);
  OpenBody open;
  ByteView model;
  ByteView layout;
  ByteView ends;
  ByteView ranges;
  if (!reader.Take(open) || !reader.TakeBytes(open.model_bytes, model) ||
      !reader.TakeBytes(open.layout_bytes, layout) ||
      !reader.TakeBytes(uint64_t{open.batches} * sizeof(uint32_t), ends) ||
      !reader.TakeBytes(uint64_t{open.ranges} * sizeof(StridedRange), ranges) || !reader.empty() ||
      open.ranks > kMaxRanks) {
    return Status(ErrorCode::kProtocol, "rank protocol: a malformed OPEN");
  }
  Opening opening{.model = std::string(AsText(model)), .rank = open.rank, .ranks = open.ranks, .run = open.run};
  opening.share.batch_ends.resize(open.batches);
  opening.share.ranges.resize(open.ranges);
  ByteReader ends_reader(ends);
  for (uint32_t& end : opening.share.batch_ends) ends_reader.Take(end);
  ByteReader ranges_reader(ranges);
  for (StridedRange& range : opening.share.ranges) ranges_reader.Take(range);
  const std::vector<uint32_t>& all = opening.share.batch_ends;
  if (!std::ranges::is_sorted(all) || (all.empty() ? 0 : all.back()) != open.ranges) {
    return Status(ErrorCode::kProtocol, "rank protocol: the batches of an OPEN do not follow each other");
  }
  LS_ASSIGN_OR_RETURN(opening.layout, model::ModelLayout::Decode(layout));
  return opening;
}

Result<std::vector<uint32_t>> DecodeBatches(ByteView batches) {
  if (batches.size() % sizeof(uint32_t) != 0) {
    return Status(ErrorCode::kProtocol, "rank protocol: malformed batches");
  }
  std::vector<uint32_t> decoded(batches.size() / sizeof(uint32_t));
  ByteReader reader(batches);
  for (uint32_t& batch : decoded) reader.Take(batch);
  return decoded;
}

Bytes EncodeError(const Status& status) {
  Bytes body;
  Append(body, ErrorBody{static_cast<uint32_t>(status.code())});
  AppendBytes(body, AsBytes(std::string_view(status.message())));
  return body;
}

Status DecodeError(ByteView body) {
  ByteReader reader(body);
  ErrorBody error;
  if (!reader.Take(error) || error.code == 0 || error.code > static_cast<uint32_t>(ErrorCode::kInternal)) {
    return {ErrorCode::kProtocol, "rank protocol: a malformed error message"};
  }
  return {static_cast<ErrorCode>(error.code), CleanText(AsText(reader.rest()))};
}

}  // namespace lockstep::wire
