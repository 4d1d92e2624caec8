#include "raas_receiver/pull/local_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/os/file.h"
#include "common/os/unix_server.h"

namespace lockstep::pull {
namespace {

constexpr size_t kSliceBlocks = 1024;  // copied between two checks of whether to continue
constexpr uint64_t kPieceBytes = 4 << 20;

bool IsFile(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

Result<std::unique_ptr<LocalSource>> LocalSource::Connect(LocalOptions options, WorkerPool& pool) {
  // The agent names the path: it is not to make us knock at just any door.
  LS_RETURN_IF_ERROR(os::CheckSocketOwner(options.path));
  LS_ASSIGN_OR_RETURN(os::UnixConnection connection, os::UnixConnect(options.path, options.connect_timeout));
  std::unique_ptr<LocalSource> source(new LocalSource(std::move(options), pool, std::move(connection)));
  LS_RETURN_IF_ERROR(source->Open());
  return source;
}

LocalSource::LocalSource(LocalOptions options, WorkerPool& pool, os::UnixConnection connection)
    : options_(std::move(options)), pool_(pool), connection_(std::move(connection)) {}

Status LocalSource::Open() {
  LS_RETURN_IF_ERROR(os::CheckPeerUser(connection_, "serve a receiver"));
  wire::LaneHello hello{.pull_id = options_.pull_id, .ticket = options_.ticket};
  wire::Seal(hello);
  LS_RETURN_IF_ERROR(connection_.Send(AsBytes(hello), {}, options_.answer_timeout));
  wire::LaneWelcome welcome;
  LS_RETURN_IF_ERROR(
      connection_.Receive(std::as_writable_bytes(std::span(&welcome, 1)), nullptr, options_.answer_timeout));
  LS_RETURN_IF_ERROR(wire::CheckWelcome(welcome));
  if (welcome.code == 0) return OkStatus();
  return {ErrorCode::kPermission, Cat("the agent at ", options_.path, " does not know this pull")};
}

void LocalSource::Cancel() {
  cancelled_ = true;
  connection_.Shutdown();
}

SourceCounters LocalSource::counters() const {
  const uint64_t bytes = copied_bytes_;
  return {.payload_bytes = bytes, .local_bytes = bytes};
}

// The connection is of no more use.
Status LocalSource::Fail(const Status& why) {
  status_ = cancelled_ ? Status(ErrorCode::kCancelled, "the pull was cancelled")
                       : why.WithContext(Cat("the agent at ", options_.path));
  if (status_.code() != ErrorCode::kCancelled) options_.on_failed(status_);
  return status_;
}

Result<LocalSource::Answer> LocalSource::Ask(wire::LocalRequest request) {
  LS_RETURN_IF_ERROR(status_);
  wire::Seal(request);
  last_word_ = std::chrono::steady_clock::now();
  if (Status sent = connection_.Send(AsBytes(request), {}, options_.answer_timeout); !sent.ok()) return Fail(sent);
  Result<Answer> answer = ReceiveAnswer(static_cast<wire::LocalKind>(request.kind));
  if (!answer.ok()) return Fail(answer.status());
  if (answer->head.code == 0) return answer;
  return Status(static_cast<ErrorCode>(answer->head.code), Cat("the agent says: ", CleanText(AsText(answer->tail))));
}

// An error is one of the connection.
Result<LocalSource::Answer> LocalSource::ReceiveAnswer(wire::LocalKind kind) {
  Answer answer;
  std::vector<os::UniqueFd> files;
  LS_RETURN_IF_ERROR(
      connection_.Receive(std::as_writable_bytes(std::span(&answer.head, 1)), &files, options_.answer_timeout));
  LS_RETURN_IF_ERROR(wire::CheckLocalAnswer(answer.head, options_.layout->block_count()));
  answer.tail.resize(answer.head.tail_bytes);
  LS_RETURN_IF_ERROR(connection_.Receive(answer.tail, nullptr, options_.answer_timeout));
  const bool with_file = answer.head.code == 0 && kind != wire::LocalKind::kAlive;
  if (files.size() != (with_file ? 1 : 0) || (with_file && !IsFile(files[0].get()))) {
    return Status(ErrorCode::kProtocol, Cat("local answer: ", files.size(), " descriptors came with it, and ",
                                            with_file ? "one of a file" : "none", " belongs there"));
  }
  if (with_file) answer.file = std::move(files[0]);
  return answer;
}

Result<LocalSource::Slot> LocalSource::OpenSlot(Version version) {
  LS_ASSIGN_OR_RETURN(Answer answer, Ask({.kind = static_cast<uint8_t>(wire::LocalKind::kSlot), .version = version}));
  Slot slot{std::move(answer.file), answer.head.offset, answer.head.version,
            std::vector<uint64_t>(options_.layout->block_count())};
  const bool fits = answer.tail.size() == slot.hashes.size() * sizeof(uint64_t) &&
                    answer.head.data_bytes == options_.layout->data_bytes() && slot.version != 0;
  if (!fits) {
    return Fail({ErrorCode::kProtocol, Cat("local answer: version ", slot.version, " with ", answer.head.data_bytes,
                                           " bytes is not of this model")});
  }
  std::memcpy(slot.hashes.data(), answer.tail.data(), answer.tail.size());
  return slot;
}

Status LocalSource::FetchBlocks(const FullRequest& request, BlockSink& sink) {
  std::vector<BlockIndex> missing = request.blocks;
  // When the trainer overtakes us, what is missing is there again in a newer version.
  for (Version copied = 0; !missing.empty();) {
    LS_ASSIGN_OR_RETURN(const Slot slot, OpenSlot(request.exact ? request.version : 0));
    const bool allowed = request.exact ? slot.version == request.version : slot.version >= request.version;
    if (!allowed || slot.version == copied) {
      return {ErrorCode::kState, Cat(missing.size(), " of ", request.blocks.size(), " blocks of version ",
                                     request.version, " are not in the agent's memory")};
    }
    copied = slot.version;
    missing = CopyFrom(slot, missing, sink);
    if (cancelled_) return {ErrorCode::kCancelled, "the pull was cancelled"};
  }
  return OkStatus();
}

std::vector<BlockIndex> LocalSource::CopyFrom(const Slot& slot, const std::vector<BlockIndex>& blocks,
                                              BlockSink& sink) {
  std::vector<BlockIndex> missed;
  for (size_t first = 0; first < blocks.size(); first += kSliceBlocks) {
    const auto slice = std::span(blocks).subspan(first, std::min(kSliceBlocks, blocks.size() - first));
    std::vector<uint8_t> copied(slice.size());  // not bool: each is written by a thread of its own
    if (!cancelled_) {
      StayAlive();
      pool_.ParallelFor(slice.size(), [&](size_t i) { copied[i] = CopyBlock(slot, slice[i], sink); });
    }
    for (size_t i = 0; i < slice.size(); ++i) {
      if (copied[i] == 0) missed.push_back(slice[i]);
    }
  }
  return missed;
}

bool LocalSource::CopyBlock(const Slot& slot, BlockIndex block, BlockSink& sink) {
  const ByteRange range = options_.layout->block_range(block);
  const wire::FrameHeader frame{.type = static_cast<uint8_t>(wire::FrameType::kBlock),
                                .codec = static_cast<uint8_t>(payload::Codec::kRaw),
                                .block = block,
                                .version = slot.version,
                                .block_hash = slot.hashes[block],
                                .payload_hash = slot.hashes[block],
                                .payload_bytes = static_cast<uint32_t>(range.bytes)};
  const std::span<std::byte> to = sink.Destination(frame);
  if (!os::ReadAt(slot.file.get(), slot.offset + range.offset, to, options_.path).ok()) return false;
  if (model::BlockHash(to) != frame.block_hash || !sink.Put(frame, to).ok()) return false;
  copied_bytes_ += range.bytes;
  return true;
}

void LocalSource::StayAlive() {
  if (std::chrono::steady_clock::now() - last_word_ < options_.alive_interval) return;
  // Descriptors stay good without a connection: a copy under way continues.
  (void)Ask({.kind = static_cast<uint8_t>(wire::LocalKind::kAlive)});
}

Status LocalSource::FetchDeltas(const DeltaRequest& request, DeltaSink& sink) {
  Status missing;  // why the first of those that did not come
  for (const DeltaStep& step : request.steps) {
    const Result<std::shared_ptr<const payload::Payload>> payload = ReadPayload(step);
    Status fetched = payload.ok() ? sink.PutPayload(step.payload_id, *payload) : payload.status();
    if (missing.ok()) missing = std::move(fetched);
  }
  return missing;
}

Result<std::shared_ptr<const payload::Payload>> LocalSource::ReadPayload(const DeltaStep& step) {
  LS_ASSIGN_OR_RETURN(const Answer answer,
                      Ask({.kind = static_cast<uint8_t>(wire::LocalKind::kPayload), .payload_id = step.payload_id}));
  const uint64_t bytes =
      sizeof(payload::PayloadHeader) + step.entries * sizeof(payload::PayloadEntry) + step.data_bytes;
  if (answer.head.data_bytes != bytes) {
    return Status(ErrorCode::kProtocol,
                  Cat("payload ", step.payload_id, " has ", answer.head.data_bytes, " bytes; the plan says ", bytes));
  }
  LS_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte[]> memory, ReadFile(answer));
  LS_ASSIGN_OR_RETURN(auto payload, payload::Payload::Open(*options_.layout, {{memory.get(), bytes}, memory}));
  copied_bytes_ += payload->header().data_bytes;
  return payload;
}

// The whole of what `answer` names.
Result<std::shared_ptr<std::byte[]>> LocalSource::ReadFile(const Answer& answer) {
  const uint64_t bytes = answer.head.data_bytes;
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);  // not cleared: every byte is read
  LS_RETURN_IF_ERROR(pool_.ParallelTry((bytes + kPieceBytes - 1) / kPieceBytes, [&](size_t i) {
    const uint64_t first = i * kPieceBytes;
    return os::ReadAt(answer.file.get(), answer.head.offset + first,
                      {memory.get() + first, std::min(kPieceBytes, bytes - first)}, options_.path);
  }));
  return memory;
}

}  // namespace lockstep::pull
