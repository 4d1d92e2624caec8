#include "export_plugin/client/rank_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/text.h"
#include "export_plugin/client/agent_connection.h"

namespace lockstep::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryPause{50};

bool ConnectionLost(const Status& status) {
  return status.code() == ErrorCode::kUnavailable;
}

template <typename T>
Result<T> BodyAs(const wire::RankMessage& message, wire::RankMessageType expected) {
  T body{};
  ByteReader reader(message.body);
  if (message.type != expected || !reader.Take(body) || !reader.empty()) return Unexpected(message);
  return body;
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
  LS_ASSIGN_OR_RETURN(connection_, ConnectToAgent(options_.socket_path, timeout, options_.call_timeout, Interrupted()));
  Status status = SendOpen(timeout);
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

Status RankClient::SendOpen(std::chrono::milliseconds timeout) {
  const wire::OpenBody open{.rank = options_.rank, .ranks = options_.ranks, .run = options_.run};
  const Bytes body = wire::EncodeOpen(open, options_.model, *options_.layout, options_.share);
  if (body.size() > wire::kMaxRankBody) {
    return {ErrorCode::kResourceExhausted,
            Cat("the layout and this rank's share take ", body.size(), " bytes, more than a message may have")};
  }
  std::vector<int> fds;
  if (segments_[0].valid()) {
    for (const os::MappedSegment& segment : segments_) fds.push_back(segment.fd());
  }
  LS_ASSIGN_OR_RETURN(
      wire::RankMessage reply,
      AnswerTo(connection_, wire::SendRankMessage(connection_, wire::RankMessageType::kOpen, body, fds, timeout),
               options_.call_timeout));
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
  if (reported_.committed || reported_.commit_sent) {
    // Only the connection was lost, and this agent knows what became of the version; else it was another that did.
    LS_ASSIGN_OR_RETURN(const wire::RankMessage done, CallOnce(wire::RankMessageType::kCommit, CommitBody()));
    const Status known = Done(done);
    if (known.code() != ErrorCode::kState) {  // whatever it was aborted for
      reported_.aborted = known;
      return OkStatus();
    }
  }
  LS_ASSIGN_OR_RETURN(const wire::RankMessage begun,
                      CallOnce(wire::RankMessageType::kBegin, BeginBody(reported_.version)));
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
  reported_.changed.sent = reported_.unchanged.sent = 0;
  LS_RETURN_IF_ERROR(SendBatches(wire::RankMessageType::kBatches, reported_.changed));
  LS_RETURN_IF_ERROR(SendBatches(wire::RankMessageType::kUnchanged, reported_.unchanged));
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
  LS_ASSIGN_OR_RETURN(const wire::RankMessage reply, Call(wire::RankMessageType::kBegin, BeginBody(version)));
  LS_ASSIGN_OR_RETURN(const auto begun, BodyAs<wire::BegunBody>(reply, wire::RankMessageType::kBegun));
  if (begun.slot > 1) return Status(ErrorCode::kProtocol, Cat("rank protocol: there is no slot ", begun.slot));
  reported_ = ReportedVersion{.version = version, .slot = begun.slot};
  return data(begun.slot);
}

Status RankClient::BatchesDone(std::span<const uint32_t> batches) {
  return Report(wire::RankMessageType::kBatches, batches, reported_.changed);
}

Status RankClient::Unchanged(std::span<const uint32_t> batches) {
  return Report(wire::RankMessageType::kUnchanged, batches, reported_.unchanged);
}

Status RankClient::Report(wire::RankMessageType type, std::span<const uint32_t> batches, Batches& reported) {
  LS_RETURN_IF_ERROR(CheckMayCall());
  for (const uint32_t batch : batches) {
    reported.all.push_back(batch);
    reported.waiting_bytes += options_.share.BytesOf(batch);
  }
  // A message for each of 100,000 small tensors costs both ends more than their bytes do. No block is smaller than
  // this.
  return reported.waiting_bytes >= model::kMinBlockBytes ? SendWaiting(type, reported) : OkStatus();
}

Status RankClient::SendBatches(wire::RankMessageType type, Batches& reported) {
  const auto waiting = std::span<const uint32_t>(reported.all).subspan(reported.sent);
  if (waiting.empty()) return OkStatus();
  if (!connection_.valid()) return {ErrorCode::kUnavailable, "not connected"};
  Bytes body;
  Append(body, wire::VersionBody{reported_.version});
  AppendBytes(body, std::as_bytes(waiting));
  const Status sent = wire::SendRankMessage(connection_, type, body, {}, options_.call_timeout);
  if (!sent.ok()) Disconnect();  // half a message may have been sent
  if (sent.ok()) reported.sent = reported.all.size();
  reported.waiting_bytes = 0;
  return sent;
}

Status RankClient::SendWaiting(wire::RankMessageType type, Batches& reported) {
  Status status = SendBatches(type, reported);
  if (status.ok()) return status;
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

Bytes RankClient::BeginBody(Version version) const {
  Bytes body;
  Append(body, wire::VersionBody{version});
  AppendBytes(body, AsBytes(std::string_view(options_.guard)));
  return body;
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
  LS_RETURN_IF_ERROR(SendWaiting(wire::RankMessageType::kBatches, reported_.changed));
  LS_RETURN_IF_ERROR(SendWaiting(wire::RankMessageType::kUnchanged, reported_.unchanged));
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
