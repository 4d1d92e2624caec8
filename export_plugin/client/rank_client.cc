#include "export_plugin/client/rank_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/text.h"
#include "common/peer/peer.h"

namespace lockstep::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryPause{50};
constexpr size_t kRangesPerMessage = 4096;

bool ConnectionLost(const Status& status) {
  return status.code() == ErrorCode::kUnavailable;
}

Status Unexpected(const wire::RankMessage& message) {
  if (message.type == wire::RankMessageType::kError) return wire::DecodeError(message.body);
  return {ErrorCode::kProtocol, Cat("rank protocol: unexpected answer of type ", static_cast<int>(message.type))};
}

template <typename T>
Result<T> BodyAs(const wire::RankMessage& message, wire::RankMessageType expected) {
  T body{};
  ByteReader reader(message.body);
  if (message.type != expected || !reader.Take(body) || !reader.empty()) return Unexpected(message);
  return body;
}

// Whether `next` begins where `last` ends, with more bytes of its one row or with further rows; `last` is grown then.
bool Continue(StridedRange& last, const StridedRange& next) {
  if (last.rows == 1 && next.rows == 1 && next.offset == last.offset + last.row_bytes) {
    last.row_bytes += next.row_bytes;
    return true;
  }
  const bool same_rows = last.rows > 1 && next.row_bytes == last.row_bytes &&
                         (next.rows == 1 || next.pitch == last.pitch) &&
                         next.offset == last.offset + last.rows * last.pitch;
  if (same_rows) last.rows += next.rows;
  return same_rows;
}

// Shards are mostly reported in order.
void AddRange(std::vector<StridedRange>& ranges, const StridedRange& range) {
  if (ranges.empty() || !Continue(ranges.back(), range)) ranges.push_back(range);
}

}  // namespace

Result<std::unique_ptr<RankClient>> RankClient::Open(RankOptions options) {
  std::unique_ptr<RankClient> client(new RankClient(std::move(options)));
  const auto deadline = Clock::now() + client->options_.connect_timeout;
  while (true) {
    Status status = client->Connect(client->options_.connect_timeout);
    if (status.ok()) return client;
    const bool nobody_there = ConnectionLost(status) || status.code() == ErrorCode::kNotFound;
    const bool again = nobody_there && !client->segments_[0].valid() && Clock::now() + kRetryPause <= deadline;
    if (again) status = client->Pause();
    if (again && status.ok()) continue;
    return status.WithContext(
        Cat("model ", client->options_.model, ": cannot open it at the agent's socket ", client->options_.socket_path));
  }
}

Status RankClient::Connect(std::chrono::milliseconds timeout) {
  Result<os::UnixConnection> connection = os::UnixConnect(options_.socket_path, timeout, Interrupted());
  if (connection.status().code() == ErrorCode::kPermission) {
    return {ErrorCode::kPermission,
            Cat(connection.status().message(), "; the agent's --trainer-group names the group that may")};
  }
  LS_ASSIGN_OR_RETURN(connection_, std::move(connection));
  connection_.KeepFromChildren();
  Status status = os::CheckListener(connection_, options_.socket_path);
  if (status.ok()) status = SayHello(timeout);
  if (status.ok()) status = SendOpen(timeout);
  if (!status.ok()) Disconnect();
  return status;
}

Status RankClient::CheckMayCall() const {
  if (left_) return {ErrorCode::kState, Cat("model ", options_.model, ": this rank has left; open it again")};
  return process_.Check("model " + options_.model);
}

// Before the next attempt to connect.
Status RankClient::Pause() const {
  std::this_thread::sleep_for(kRetryPause);
  const os::Interrupted interrupted = Interrupted();
  return interrupted && interrupted() ? Status(ErrorCode::kDeadline, "interrupted") : OkStatus();
}

// Whether the call under way is to end.
os::Interrupted RankClient::Interrupted() const {
  if (!options_.interrupted) return nullptr;
  return [this] { return options_.interrupted() > (reported_.commit_sent ? 1 : 0); };
}

// For the agent, too, where a process that was forked off this one has the descriptor: it may not know of the guard.
void RankClient::Disconnect() {
  if (process_.here()) connection_.Shutdown();
  connection_ = os::UnixConnection();
}

// An agent that refuses this peer does not read on: its answer explains more than a broken pipe.
Result<wire::RankMessage> RankClient::AnswerTo(const Status& sent) {
  Result<wire::RankMessage> reply = wire::ReceiveRankMessage(connection_, options_.call_timeout);
  if (sent.ok() || (reply.ok() && reply->type == wire::RankMessageType::kError)) return reply;
  return sent;
}

Status RankClient::SayHello(std::chrono::milliseconds timeout) {
  const std::string line = peer::SelfLine("export_plugin");
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply,
                      AnswerTo(wire::SendRankMessage(connection_, wire::RankMessageType::kHello,
                                                     AsBytes(std::string_view(line)), {}, timeout)));
  if (reply.type != wire::RankMessageType::kHello) return Unexpected(reply);
  return peer::CheckPeer("export_plugin", AsText(reply.body));
}

Status RankClient::SendOpen(std::chrono::milliseconds timeout) {
  Bytes body;
  Append(body, wire::OpenBody{.rank = options_.rank,
                              .ranks = options_.ranks,
                              .run = options_.run,
                              .model_bytes = static_cast<uint32_t>(options_.model.size()),
                              .layout_bytes = static_cast<uint32_t>(options_.layout->encoded().size())});
  AppendBytes(body, AsBytes(std::string_view(options_.model)));
  AppendBytes(body, options_.layout->encoded());
  std::vector<int> fds;
  if (segments_[0].valid()) {
    for (const os::MappedSegment& segment : segments_) fds.push_back(segment.fd());
  }
  LS_ASSIGN_OR_RETURN(wire::RankMessage reply,
                      AnswerTo(wire::SendRankMessage(connection_, wire::RankMessageType::kOpen, body, fds, timeout)));
  return Opened(std::move(reply));
}

Status RankClient::Opened(wire::RankMessage reply) {
  LS_ASSIGN_OR_RETURN(const auto opened, BodyAs<wire::OpenedBody>(reply, wire::RankMessageType::kOpened));
  newest_version_ = opened.newest_version;
  if (segments_[0].valid()) {
    if (opened.run == options_.run) return OkStatus();
    return {ErrorCode::kAborted, Cat("the agent has moved from run ", ToHex(options_.run), " to ", ToHex(opened.run),
                                     "; open the model again")};
  }
  options_.run = opened.run;
  return MapSegments(opened, std::move(reply.fds));
}

Status RankClient::MapSegments(const wire::OpenedBody& opened, std::vector<os::UniqueFd> fds) {
  if (fds.size() != segments_.size()) {
    return {ErrorCode::kProtocol, Cat("rank protocol: the agent sent ", fds.size(), " descriptors, not 3")};
  }
  if (opened.data_offset > opened.image_bytes ||
      opened.image_bytes - opened.data_offset != options_.layout->data_bytes()) {
    return {ErrorCode::kProtocol, "rank protocol: the agent's slots do not fit the model's layout"};
  }
  const uint64_t sizes[] = {opened.control_bytes, opened.image_bytes, opened.image_bytes};
  for (size_t i = 0; i < segments_.size(); ++i) {
    LS_ASSIGN_OR_RETURN(segments_[i], os::AdoptSegment(std::move(fds[i]), sizes[i],
                                                       i == 0 ? os::Access::kReadOnly : os::Access::kReadWrite,
                                                       Cat("segment ", i, " of model ", options_.model)));
  }
  data_offset_ = opened.data_offset;
  return OkStatus();
}

Status RankClient::Reconnect() {
  const auto deadline = Clock::now() + options_.reconnect_timeout;
  Status last;
  while (true) {
    last = Connect(options_.connect_timeout);
    if (last.ok()) last = Replay();
    if (last.ok()) return last;
    // A restarted agent is first absent, then listening, then still checking what it found.
    const bool passing =
        ConnectionLost(last) || last.code() == ErrorCode::kNotFound || last.code() == ErrorCode::kState;
    const bool again = passing && Clock::now() + kRetryPause <= deadline;
    if (again) last = Pause();
    if (again && last.ok()) continue;
    return last.WithContext(
        Cat("model ", options_.model, ": lost the agent at ", options_.socket_path, " and could not reconnect"));
  }
}

Status RankClient::Replay() {
  if (reported_.version == 0 || !reported_.aborted.ok() || reported_.version <= newest_version_) return OkStatus();
  if (reported_.committed) {
    // Only the connection was lost, and this agent knows what became of the version; else it was another that did.
    LS_ASSIGN_OR_RETURN(const wire::RankMessage done, CallOnce(wire::RankMessageType::kCommit, CommitBody()));
    const Status known = Done(done);
    if (known.code() != ErrorCode::kState) {  // whatever it was aborted for
      reported_.aborted = known;
      return OkStatus();
    }
  }
  LS_ASSIGN_OR_RETURN(const wire::RankMessage begun,
                      CallOnce(wire::RankMessageType::kBegin, AsBytes(wire::VersionBody{reported_.version})));
  const auto body = BodyAs<wire::BegunBody>(begun, wire::RankMessageType::kBegun);
  // It was aborted, or the others have gone on without it: another version may begin.
  if (const ErrorCode code = body.status().code(); code == ErrorCode::kAborted || code == ErrorCode::kState) {
    reported_.aborted = body.status();
    return OkStatus();
  }
  LS_RETURN_IF_ERROR(body);
  if (body->slot != reported_.slot) {
    return {ErrorCode::kAborted, Cat("version ", reported_.version, " was lost with the agent; publish it again")};
  }
  reported_.changed.ClearPending();
  reported_.unchanged.ClearPending();
  LS_RETURN_IF_ERROR(SendRanges(wire::RankMessageType::kRanges, reported_.version, reported_.changed.all));
  LS_RETURN_IF_ERROR(SendRanges(wire::RankMessageType::kUnchanged, reported_.version, reported_.unchanged.all));
  if (!reported_.committed) return OkStatus();
  LS_ASSIGN_OR_RETURN(const wire::RankMessage done, CallOnce(wire::RankMessageType::kCommit, CommitBody()));
  return Done(done);
}

Result<wire::RankMessage> RankClient::CallOnce(wire::RankMessageType type, ByteView body) {
  Result<wire::RankMessage> reply = Exchange(type, body);
  if (reply.ok()) return reply;
  // After an error the stream is out of step: the next call starts on a connection of its own.
  Disconnect();
  return reply.status().WithContext(Cat("model ", options_.model, ": agent at ", options_.socket_path));
}

Result<wire::RankMessage> RankClient::Exchange(wire::RankMessageType type, ByteView body) {
  if (!connection_.valid()) return Status(ErrorCode::kUnavailable, "not connected");
  LS_RETURN_IF_ERROR(wire::SendRankMessage(connection_, type, body, {}, options_.call_timeout));
  return wire::ReceiveRankMessage(connection_, options_.call_timeout);
}

Result<wire::RankMessage> RankClient::Call(wire::RankMessageType type, ByteView body) {
  Result<wire::RankMessage> reply = CallOnce(type, body);
  if (reply.ok() || !ConnectionLost(reply.status())) return reply;
  LS_RETURN_IF_ERROR(Reconnect());
  return CallOnce(type, body);
}

Result<std::byte*> RankClient::Begin(Version version) {
  LS_RETURN_IF_ERROR(CheckMayCall());
  if (writing()) {
    return Status(ErrorCode::kState,
                  Cat("version ", reported_.version, " is still being written; commit or abort it first"));
  }
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply,
                      Call(wire::RankMessageType::kBegin, AsBytes(wire::VersionBody{version})));
  LS_ASSIGN_OR_RETURN(const auto begun, BodyAs<wire::BegunBody>(reply, wire::RankMessageType::kBegun));
  if (begun.slot > 1) return Status(ErrorCode::kProtocol, Cat("rank protocol: there is no slot ", begun.slot));
  reported_ = ReportedVersion{.version = version, .slot = begun.slot};
  return data(begun.slot);
}

Status RankClient::SendRanges(wire::RankMessageType type, Version version, std::span<const StridedRange> ranges) {
  while (!ranges.empty()) {
    const auto some = ranges.first(std::min(ranges.size(), kRangesPerMessage));
    ranges = ranges.subspan(some.size());
    Bytes body;
    Append(body, wire::VersionBody{version});
    AppendBytes(body, std::as_bytes(some));
    const Status sent = wire::SendRankMessage(connection_, type, body, {}, options_.call_timeout);
    if (sent.ok()) continue;
    Disconnect();  // half a message may have been sent
    return sent;
  }
  return OkStatus();
}

Status RankClient::RangesDone(std::span<const StridedRange> ranges) {
  return Report(wire::RankMessageType::kRanges, ranges, reported_.changed);
}

Status RankClient::Unchanged(std::span<const StridedRange> ranges) {
  return Report(wire::RankMessageType::kUnchanged, ranges, reported_.unchanged);
}

Status RankClient::Report(wire::RankMessageType type, std::span<const StridedRange> ranges, Ranges& reported) {
  LS_RETURN_IF_ERROR(CheckMayCall());
  for (const StridedRange& range : ranges) {
    AddRange(reported.all, range);
    AddRange(reported.pending, range);
    reported.pending_bytes += range.bytes();
  }
  // A message for each of 100,000 small tensors costs both ends more than their bytes do. No block is smaller than
  // this.
  const bool enough = reported.pending_bytes >= model::kMinBlockBytes || reported.pending.size() >= kRangesPerMessage;
  return enough ? SendPending(type, reported) : OkStatus();
}

Status RankClient::SendPending(wire::RankMessageType type, Ranges& reported) {
  Status status = connection_.valid() ? SendRanges(type, reported_.version, reported.pending)
                                      : Status(ErrorCode::kUnavailable, "not connected");
  reported.ClearPending();
  if (status.ok()) return status;
  // The replay after a reconnection reports all ranges, these among them.
  if (ConnectionLost(status)) status = Reconnect();
  if (!status.ok()) reported_.aborted = status;
  return reported_.aborted;
}

Status RankClient::SetLabel(std::string_view label) {
  LS_RETURN_IF_ERROR(CheckMayCall());
  LS_RETURN_IF_ERROR(model::CheckLabel(label));
  reported_.label = label;
  return OkStatus();
}

Bytes RankClient::CommitBody() const {
  Bytes body;
  Append(body, wire::VersionBody{reported_.version});
  AppendBytes(body, AsBytes(std::string_view(reported_.label)));
  return body;
}

Status RankClient::Commit() {
  LS_RETURN_IF_ERROR(CheckMayCall());
  Status status = TryCommit();
  const bool unknown = status.code() == ErrorCode::kDeadline || status.code() == ErrorCode::kUnavailable;
  if (std::exchange(reported_.commit_sent, false) && unknown) {
    status = status.WithContext(Cat("version ", reported_.version, " may be committed or not"));
  }
  reported_.committed = status.ok();
  reported_.aborted = status;
  return status;
}

Status RankClient::Done(const wire::RankMessage& reply) {
  LS_ASSIGN_OR_RETURN(const auto newest, BodyAs<wire::VersionBody>(reply, wire::RankMessageType::kDone));
  newest_version_ = std::max(newest_version_, newest.version);
  return OkStatus();
}

Status RankClient::TryCommit() {
  LS_RETURN_IF_ERROR(SendPending(wire::RankMessageType::kRanges, reported_.changed));
  LS_RETURN_IF_ERROR(SendPending(wire::RankMessageType::kUnchanged, reported_.unchanged));
  const Bytes body = CommitBody();
  reported_.commit_sent = true;
  Result<wire::RankMessage> reply = CallOnce(wire::RankMessageType::kCommit, body);
  if (!reply.ok() && ConnectionLost(reply.status())) {
    LS_RETURN_IF_ERROR(Reconnect());
    // The old agent may have committed it just before it died.
    if (newest_version_ >= reported_.version) return OkStatus();
    reply = CallOnce(wire::RankMessageType::kCommit, body);
  }
  LS_RETURN_IF_ERROR(reply);
  return Done(*reply);
}

void RankClient::Leave() {
  left_ = true;
  reported_ = {};
  Disconnect();
}

Status RankClient::Abort(std::string_view reason) {
  LS_RETURN_IF_ERROR(CheckMayCall());
  Bytes body;
  Append(body, wire::VersionBody{reported_.version});
  AppendBytes(body, AsBytes(reason));
  reported_.aborted = {ErrorCode::kAborted, "this rank has aborted it"};
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply, Call(wire::RankMessageType::kAbort, body));
  return Done(reply);
}

}  // namespace lockstep::client
