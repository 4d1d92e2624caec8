#include "raas_receiver/engine/ranks/rank_connection.h"

#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "common/base/text.h"
#include "common/model/model_name.h"
#include "common/peer/peer.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kSendTimeout{5'000};
constexpr size_t kMaxSentence = 4096;
// A description nests less deeply; what does more is left out, and then missed.
constexpr int kMaxNesting = 16;
constexpr size_t kAttachKeys = 8;  // without "server" and "here"
constexpr size_t kAskKeys = 2;
constexpr size_t kMaxServer = 256;
constexpr uint64_t kMaxGroup = 65'535;

Result<std::string> TakeString(std::string_view message, const Json& body, const char* key) {
  const auto at = body.find(key);
  if (at != body.end() && at->is_string()) return at->get<std::string>();
  return Status(ErrorCode::kBadData, Cat(message, " lacks a string \"", key, "\""));
}

Result<std::string> TakeName(std::string_view message, const Json& body, const char* key) {
  LS_ASSIGN_OR_RETURN(std::string name, TakeString(message, body, key));
  LS_RETURN_IF_ERROR(model::CheckModelName(name).WithContext(Cat(message, "'s \"", key, "\"")));
  return name;
}

// The body of a connection's first message, ATTACH or ASK, of a peer that speaks our protocol.
Result<Json> ReadFirst(const EngineMessage& first) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kMaxNesting; };
  Json body = Json::parse(AsText(first.body), shallow, /*allow_exceptions=*/false);
  const std::string_view message = Name(first.type);
  if (!body.is_object()) return Status(ErrorCode::kBadData, Cat(message, " is not a JSON object"));
  LS_ASSIGN_OR_RETURN(const std::string line, TakeString(message, body, "peer"));
  LS_RETURN_IF_ERROR(peer::CheckPeer("raas_receiver", line));
  return body;
}

// What a rank has done when it answers with `type`.
std::string_view DeedOf(EngineMessageType type) {
  switch (type) {
    case EngineMessageType::kPaused:
      return "pause";
    case EngineMessageType::kServing:
      return "serve the version";
    case EngineMessageType::kStaged:
      return "take what is to be written";
    case EngineMessageType::kWritten:
      return "write";
    case EngineMessageType::kCompared:
      return "compare";
    case EngineMessageType::kAgreed:
      return "agree with other hosts";
    default:
      return Name(type);
  }
}

}  // namespace

void SendRefusal(os::UnixConnection& connection, const Status& why) {
  const std::string sentence = CleanText(why.ToString(), kMaxSentence);
  const ByteView body = AsBytes(std::string_view(sentence));
  EngineMessage refused{.type = EngineMessageType::kRefused, .body = {body.begin(), body.end()}};
  (void)SendEngineMessage(connection, refused, {}, kSendTimeout);
  connection.Shutdown();
}

Result<std::string> ReadAsk(const EngineMessage& ask) {
  LS_ASSIGN_OR_RETURN(const Json body, ReadFirst(ask));
  LS_ASSIGN_OR_RETURN(std::string model, TakeName("ASK", body, "model"));
  if (body.size() != kAskKeys) return Status(ErrorCode::kBadData, "ASK has more than its keys");
  if (!ask.fds.empty()) return Status(ErrorCode::kBadData, "ASK came with descriptors");
  return model;
}

// Tensor by tensor: a library's document of all takes a second for 100,000.
Bytes LayoutBody(const model::ModelLayout& layout) {
  std::string text = Cat(R"({"digest":")", ToHex(layout.digest()), R"(","tensors":{)");
  std::string_view separator;
  for (const model::TensorMeta& tensor : layout.tensors()) {
    text += Cat(separator, Json(tensor.name).dump(), R"(:[")", model::FindDType(tensor.dtype)->name, R"(",)",
                Json(tensor.shape).dump(), "]");
    separator = ",";
  }
  text += "}}";
  const ByteView bytes = AsBytes(std::string_view(text));
  return {bytes.begin(), bytes.end()};
}

Result<std::shared_ptr<RankConnection>> RankConnection::Open(os::UnixConnection& connection, EngineMessage attach) {
  std::shared_ptr<RankConnection> rank(new RankConnection());
  LS_ASSIGN_OR_RETURN(const os::PeerCredentials peer, connection.Peer());
  rank->pid_ = peer.pid;
  rank->memory_ = attach.held;
  LS_RETURN_IF_ERROR(rank->ReadBody(attach));
  if (!attach.fds.empty()) return Status(ErrorCode::kBadData, Cat(rank->Label(), ": ATTACH came with descriptors"));
  rank->connection_ = std::move(connection);
  return rank;
}

Status RankConnection::ReadBody(const EngineMessage& attach) {
  LS_ASSIGN_OR_RETURN(const Json body, ReadFirst(attach));
  LS_ASSIGN_OR_RETURN(model_, TakeName("ATTACH", body, "model"));
  LS_ASSIGN_OR_RETURN(engine_, TakeName("ATTACH", body, "engine"));
  const auto group = body.find("group");
  if (group == body.end() || !group->is_number_unsigned() || group->get<uint64_t>() > kMaxGroup) {
    return {ErrorCode::kBadData, Cat("ATTACH lacks a \"group\" from 0 to ", kMaxGroup)};
  }
  group_ = *group == 0 ? engine_ : Cat(engine_, "/", group->get<uint64_t>());
  LS_ASSIGN_OR_RETURN(incarnation_, TakeName("ATTACH", body, "incarnation"));
  LS_ASSIGN_OR_RETURN(const std::string state, TakeName("ATTACH", body, "state"));
  LS_RETURN_IF_ERROR(ReadState(state));
  const auto gated = body.find("gated");
  if (gated == body.end() || !gated->is_boolean()) return {ErrorCode::kBadData, "ATTACH lacks a boolean \"gated\""};
  gated_ = gated->get<bool>();
  const auto description = body.find("description");
  if (description == body.end()) return {ErrorCode::kBadData, "ATTACH lacks a \"description\""};
  const auto server = body.find("server");
  if (server != body.end() && (!server->is_string() || server->get_ref<const std::string&>().size() > kMaxServer)) {
    return {ErrorCode::kBadData, "ATTACH's \"server\" is no URL"};
  }
  if (server != body.end()) server_ = CleanText(server->get_ref<const std::string&>());
  const auto here = body.find("here");
  const size_t keys = kAttachKeys + (server != body.end() ? 1 : 0) + (here != body.end() ? 1 : 0);
  if (body.size() != keys) return {ErrorCode::kBadData, "ATTACH has more than its keys"};
  LS_ASSIGN_OR_RETURN(description_, ReadDescription(*description));
  here_.resize(description_.world);
  std::iota(here_.begin(), here_.end(), 0);
  return here == body.end() ? OkStatus() : ReadHere(*here);
}

Status RankConnection::ReadHere(const Json& here) {
  here_.clear();
  const Status bad(ErrorCode::kBadData, Cat("ATTACH's \"here\" is no rising list of ranks below ", description_.world,
                                            " with rank ", description_.rank, " among them"));
  if (!here.is_array() || here.size() > description_.world) return bad;
  for (const Json& rank : here) {
    if (!rank.is_number_unsigned() || rank.get<uint64_t>() >= description_.world) return bad;
    if (!here_.empty() && here_.back() >= rank.get<uint32_t>()) return bad;
    here_.push_back(rank.get<uint32_t>());
  }
  return std::ranges::binary_search(here_, description_.rank) ? OkStatus() : bad;
}

size_t RankConnection::place() const {
  return std::ranges::lower_bound(here_, description_.rank) - here_.begin();
}

Status RankConnection::ReadState(const std::string& state) {
  const bool holds = !memory_.nothing();
  if (state == "reading" && holds) {
    reads_ = memory_;
  } else if (state == "asleep" && !holds) {
    asleep_ = true;
  } else if (state == "comparing" && !holds) {
    compares_ = true;
  } else if (state != "waiting") {
    return {ErrorCode::kBadData,
            Cat("ATTACH: \"state\" is waiting, reading a version, or asleep or comparing without one; "
                "it is ",
                state, " with version ", memory_.version)};
  }
  return OkStatus();
}

bool RankConnection::IsFor(const model::ModelLayout& layout) const {
  return description_.layout.value_or(layout.digest()) == layout.digest();
}

Status RankConnection::ForAnotherLayout() const {
  return {ErrorCode::kState, Cat(Label(), " was recorded for another layout of the model; it asks for the present one ",
                                 "and records again")};
}

std::string RankConnection::Label() const {
  return Cat("engine ", group_, ", ", RankLabel());
}

std::string RankConnection::RankLabel() const {
  return Cat("rank ", description_.rank, " (process ", pid_, ")");
}

bool RankConnection::gone() const {
  pollfd hung_up{connection_.fd(), POLLRDHUP, 0};
  return ::poll(&hung_up, 1, 0) > 0;
}

Status RankConnection::SendAttached() {
  attached_ = true;
  return SendEngineMessage(connection_, {.type = EngineMessageType::kAttached}, {}, kSendTimeout)
      .WithContext(RankLabel());
}

void RankConnection::SendRefused(const Status& why) {
  SendRefusal(connection_, why);
}

Status RankConnection::Pause(const VersionRef& next, std::string_view label) {
  paused_ = true;
  EngineMessage pause{.type = EngineMessageType::kPause, .held = next};
  AppendBytes(pause.body, AsBytes(label));
  return SendEngineMessage(connection_, pause, {}, kSendTimeout).WithContext(RankLabel());
}

Status RankConnection::AwaitPaused(const os::Deadline& deadline) {
  return Await(EngineMessageType::kPaused, deadline);
}

Status RankConnection::Serve(VersionRef held) {
  reads_ = held;
  paused_ = false;
  return SendEngineMessage(connection_, {.type = EngineMessageType::kServe, .held = held}, {}, kSendTimeout)
      .WithContext(RankLabel());
}

Status RankConnection::AwaitServing(const os::Deadline& deadline) {
  return Await(EngineMessageType::kServing, deadline);
}

// --- write batches ---

Status RankConnection::Checked(Status status) {
  if (status.ok()) return status;
  HangUp();
  failed_ = status;
  return status;
}

Status RankConnection::Ask(EngineMessageType type, const VersionRef& held, std::span<const int> fds) {
  return Checked(
      SendEngineMessage(connection_, {.type = type, .held = held}, fds, kSendTimeout).WithContext(RankLabel()));
}

Status RankConnection::AwaitStarted() {
  if (!failed_.ok()) return failed_;
  const std::optional<VersionRef> writing = std::exchange(writing_, std::nullopt);
  if (!writing) return OkStatus();
  LS_RETURN_IF_ERROR(Checked(Await(EngineMessageType::kWritten, os::Deadline(answer_timeout_))));
  SetHolds(*writing);
  return OkStatus();
}

Status RankConnection::SendStage(const os::UniqueFd& batch) {
  LS_RETURN_IF_ERROR(AwaitStarted());
  staged_ = true;
  const int fd = batch.get();
  LS_RETURN_IF_ERROR(Ask(EngineMessageType::kStage, {}, std::span(&fd, 1)));
  return Checked(Await(EngineMessageType::kStaged, os::Deadline(answer_timeout_)));
}

Status RankConnection::StartWrite(const VersionRef& after) {
  staged_ = false;
  SetHolds({});
  reads_ = {};
  LS_RETURN_IF_ERROR(Ask(EngineMessageType::kWrite, after, {}));
  writing_ = after;
  return OkStatus();
}

Status RankConnection::Stage(const os::UniqueFd& batch) {
  MutexLock lock(write_batches_mutex_);
  return SendStage(batch);
}

Status RankConnection::Write(const os::UniqueFd& batch) {
  MutexLock lock(write_batches_mutex_);
  LS_RETURN_IF_ERROR(SendStage(batch));
  return StartWrite({});
}

Status RankConnection::FinishWriting(const VersionRef& after) {
  MutexLock lock(write_batches_mutex_);
  LS_RETURN_IF_ERROR(AwaitStarted());
  return StartWrite(after);
}

Status RankConnection::AwaitWritten() {
  MutexLock lock(write_batches_mutex_);
  return AwaitStarted();
}

Result<bool> RankConnection::Compare(const os::UniqueFd& batch) {
  MutexLock lock(write_batches_mutex_);
  LS_RETURN_IF_ERROR(SendStage(batch));
  staged_ = false;
  LS_RETURN_IF_ERROR(Ask(EngineMessageType::kCompare, {}, {}));
  const Result<uint8_t> equal = ReceiveByte(EngineMessageType::kCompared, 1);
  LS_RETURN_IF_ERROR(Checked(equal.status()));
  return *equal == 1;
}

Result<Agreement> RankConnection::Agree(AgreeStep step, const VersionRef& version) {
  EngineMessage agree{.type = EngineMessageType::kAgree, .held = version, .body = {static_cast<std::byte>(step)}};
  MutexLock lock(write_batches_mutex_);
  LS_RETURN_IF_ERROR(Checked(SendEngineMessage(connection_, agree, {}, kSendTimeout).WithContext(RankLabel())));
  const auto agreed = ReceiveByte(EngineMessageType::kAgreed, static_cast<uint8_t>(Agreement::kNo));
  LS_RETURN_IF_ERROR(Checked(agreed.status()));
  return static_cast<Agreement>(*agreed);
}

// The body of the next message: one byte, and at most `most`.
Result<uint8_t> RankConnection::ReceiveByte(EngineMessageType type, uint8_t most) {
  LS_ASSIGN_OR_RETURN(const EngineMessage answer, Receive(type, os::Deadline(answer_timeout_)));
  const uint8_t byte = answer.body.size() == 1 ? static_cast<uint8_t>(answer.body[0]) : most + 1;
  if (byte <= most) return byte;
  return Status(ErrorCode::kProtocol, Cat(RankLabel(), " was told to ", DeedOf(type), ", and answers ",
                                          answer.body.size(), " bytes that this receiver does not know"));
}

void RankConnection::DropStaged() {
  MutexLock lock(write_batches_mutex_);
  if (!std::exchange(staged_, false)) return;
  // A rank that keeps it would write it with the next version.
  if (!SendEngineMessage(connection_, {.type = EngineMessageType::kDrop}, {}, kSendTimeout).ok()) HangUp();
}

Status RankConnection::Await(EngineMessageType type, const os::Deadline& deadline) {
  LS_ASSIGN_OR_RETURN(const EngineMessage message, Receive(type, deadline));
  if (message.body.empty()) return OkStatus();
  return {ErrorCode::kProtocol,
          Cat(RankLabel(), " was told to ", DeedOf(type), ", and answers ", message.body.size(), " bytes more")};
}

Result<EngineMessage> RankConnection::Receive(EngineMessageType type, const os::Deadline& deadline) {
  const auto left = std::chrono::milliseconds(deadline.PollTimeoutMs());
  Result<EngineMessage> message = ReceiveEngineMessage(connection_, left);
  if (!message.ok()) return message.status().WithContext(Cat("waiting for ", RankLabel(), " to ", DeedOf(type)));
  if (message->type == type && message->fds.empty()) return message;
  if (message->type == EngineMessageType::kRefused) {
    return Status(ErrorCode::kAborted,
                  Cat(RankLabel(), " refuses to ", DeedOf(type), ": ", CleanText(AsText(message->body), kMaxSentence)));
  }
  return Status(ErrorCode::kProtocol, Cat(RankLabel(), " was told to ", DeedOf(type), ", and answers ",
                                          Name(message->type), ", as no engine of this release does"));
}

}  // namespace lockstep::engine
