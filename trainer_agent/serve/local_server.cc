#include "trainer_agent/serve/local_server.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/peer_log.h"
#include "common/wire/local.h"

namespace lockstep::serve {
namespace {

// What one request gets: the answer's head, the descriptor that goes with it, and what follows.
struct Answer {
  wire::LocalAnswer head;
  os::UniqueFd file;
  Bytes tail;
};

Result<Answer> OpenSlot(const Pull& pull, Version version) {
  LS_ASSIGN_OR_RETURN(run::ServedRun::Slot slot, pull.run->OpenSlot(version));
  const ByteView hashes = std::as_bytes(std::span(slot.manifest->block_hashes));
  return Answer{.head = {.version = slot.manifest->held.version,
                         .offset = slot.memory.data_offset,
                         .data_bytes = pull.run->layout().data_bytes(),
                         .tail_bytes = hashes.size()},
                .file = std::move(slot.memory.file),
                .tail = {hashes.begin(), hashes.end()}};
}

Result<Answer> OpenPayload(const Pull& pull, uint64_t payload_id) {
  LS_ASSIGN_OR_RETURN(const auto payload, pull.FindPayload(payload_id));
  LS_ASSIGN_OR_RETURN(os::UniqueFd file, pull.run->deltas().OpenFile(*payload));
  return Answer{.head = {.data_bytes = payload->total_bytes()}, .file = std::move(file), .tail = {}};
}

Result<Answer> AnswerTo(const wire::LocalRequest& request, const Pull& pull) {
  switch (static_cast<wire::LocalKind>(request.kind)) {
    case wire::LocalKind::kSlot:
      return OpenSlot(pull, request.version);
    case wire::LocalKind::kPayload:
      return OpenPayload(pull, request.payload_id);
    case wire::LocalKind::kAlive:
      break;
  }
  return Answer{};
}

Answer Refusal(const Status& why) {
  const ByteView text = AsBytes(std::string_view(why.message()).substr(0, wire::kMaxErrorText));
  return {.head = {.code = static_cast<uint32_t>(why.code()), .tail_bytes = text.size()},
          .file = {},
          .tail = {text.begin(), text.end()}};
}

// One connection, from its hello to its end.
class LocalConnection {
 public:
  LocalConnection(os::UnixConnection& connection, const LocalServerOptions& options)
      : connection_(connection), options_(options) {}

  // kUnavailable when the peer went.
  Status Run(PullTable& pulls) {
    LS_RETURN_IF_ERROR(os::CheckPeerUser(connection_, "pull from an agent"));
    wire::LaneHello hello;
    LS_RETURN_IF_ERROR(Receive(hello, options_.hello_timeout));
    LS_RETURN_IF_ERROR(wire::CheckHello(hello));
    const Result<Pull::LaneLease> pull = pulls.Admit(hello.pull_id, hello.ticket);
    wire::LaneWelcome welcome{.code = static_cast<uint32_t>(pull.status().code())};
    wire::Seal(welcome);
    LS_RETURN_IF_ERROR(connection_.Send(AsBytes(welcome), {}, options_.send_timeout));
    LS_RETURN_IF_ERROR(pull);
    telemetry::Log(telemetry::LogLevel::kDebug, "local_pull_admitted",
                   {{"model", (*pull)->run->model()}, {"receiver", (*pull)->receiver}, {"pull", (*pull)->id}});
    while (true) {
      wire::LocalRequest request;
      LS_RETURN_IF_ERROR(Receive(request, options_.idle_timeout));
      LS_RETURN_IF_ERROR(wire::CheckLocalRequest(request));
      if ((*pull)->closed()) return {ErrorCode::kUnavailable, "the pull has ended"};
      (*pull)->Touch();
      Result<Answer> answer = AnswerTo(request, **pull);
      LS_RETURN_IF_ERROR(Send(answer.ok() ? *std::move(answer) : Refusal(answer.status())));
    }
  }

 private:
  template <typename T>
  Status Receive(T& message, std::chrono::milliseconds timeout) {
    return connection_.Receive(std::as_writable_bytes(std::span(&message, 1)), nullptr, timeout);
  }

  Status Send(Answer answer) {
    wire::Seal(answer.head);
    const int file = answer.file.get();
    const std::span<const int> files(&file, answer.file.valid() ? 1 : 0);
    LS_RETURN_IF_ERROR(connection_.Send(AsBytes(answer.head), files, options_.send_timeout));
    return connection_.Send(answer.tail, {}, options_.send_timeout);
  }

  os::UnixConnection& connection_;
  const LocalServerOptions& options_;
};

}  // namespace

Result<std::unique_ptr<os::UnixServer>> StartLocalServer(const LocalServerOptions& options, PullTable* pulls) {
  const auto log = std::make_shared<telemetry::PeerLog>("local_pull_failed", options.path);
  const auto serve = [options, pulls, log](os::UnixServer&, os::UnixConnection& connection) {
    const Status status = LocalConnection(connection, options).Run(*pulls);
    if (status.code() != ErrorCode::kUnavailable) log->Failed(connection, status);
  };
  return os::UnixServer::Start({.path = options.path, .option = "--local-socket"}, serve,
                               [](const Status& status) { telemetry::LogWarn("local_accept_failed", status); });
}

}  // namespace lockstep::serve
