#include "trainer_agent/serve/version_stream.h"

#include "common/peer/peer.h"
#include "common/rpc/status_mapping.h"
#include "common/telemetry/log.h"
#include "trainer_agent/serve/agent_protos.h"

namespace lockstep::serve {
namespace {

Result<std::unique_ptr<ReceiverReports::Connection>> Meet(ReceiverReports& reports,
                                                          const v1::WatchVersionsRequest& request,
                                                          const std::string& owner,
                                                          const Result<access::Quota::Lease>& admitted) {
  if (!admitted.ok()) return admitted.status();
  LS_RETURN_IF_ERROR(peer::CheckPeer("trainer_agent", request.peer()));
  if (request.receiver().empty()) return std::unique_ptr<ReceiverReports::Connection>();
  return reports.Connect({request.model(), request.receiver(), owner, request.instance()});
}

}  // namespace

VersionStream::VersionStream(const run::VersionCatalog* catalog, ReceiverReports* reports,
                             const v1::WatchVersionsRequest& request, const std::string& owner,
                             Result<access::Quota::Lease> admitted, std::function<Status()> still)
    : catalog_(catalog),
      model_(request.model()),
      admitted_(std::move(admitted)),
      still_(std::move(still)),
      met_(Meet(*reports, request, owner, admitted_)) {}

VersionStream* VersionStream::Start(const run::VersionCatalog* catalog, ReceiverReports* reports,
                                    const v1::WatchVersionsRequest& request, const std::string& owner,
                                    Result<access::Quota::Lease> admitted, std::function<Status()> still) {
  const std::shared_ptr<VersionStream> stream(
      new VersionStream(catalog, reports, request, owner, std::move(admitted), std::move(still)));
  stream->self_ = stream;
  telemetry::Log(telemetry::LogLevel::kDebug, "version_stream_opened", {{"model", stream->model_}});
  stream->Send();
  return stream.get();
}

void VersionStream::Send() {
  MutexLock lock(mutex_);
  if (writing_ || ended_) return;
  if (!met_.ok()) return End(rpc::ToGrpc(met_.status()));
  const auto wake = [weak = weak_from_this()] {
    if (const auto stream = weak.lock()) stream->Send();
  };
  std::optional<run::VersionCatalog::Update> update;
  while (!update) {
    if (catalog_->closed()) return End(rpc::ToGrpc({ErrorCode::kUnavailable, "the agent is draining"}));
    update = catalog_->UpdateSince(model_, sent_);
    if (!update && catalog_->WakeOnUpdate(model_, sent_, weak_from_this(), wake)) return;
  }
  if (const Status now = still_ ? still_() : OkStatus(); !now.ok()) return End(rpc::ToGrpc(now));
  sent_ = update->newest;
  event_.Clear();
  event_.set_model(model_);
  event_.set_peer(peer::SelfLine("trainer_agent"));
  ToProto(sent_, event_.mutable_newest());
  event_.set_layout_digest(ToBytes(update->run->layout().digest()));
  if (update->version) {
    event_.set_manifest_digest(ToBytes(update->version->manifest->digest));
    event_.set_committed_unix_ns(update->version->committed_unix_ns);
  } else if (const Status none = ToStatus(update->run->RequireNewest()); none.code() == ErrorCode::kCorrupt) {
    event_.set_withdrawn(none.message());
  }
  writing_ = true;
  StartWrite(&event_);
}

void VersionStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) return End(grpc::Status::CANCELLED);
  }
  Send();
}

void VersionStream::OnCancel() {
  MutexLock lock(mutex_);
  End(grpc::Status::CANCELLED);
}

// A wake may hold the stream for longer than the reports live.
void VersionStream::OnDone() {
  {
    MutexLock lock(mutex_);
    met_ = Status(ErrorCode::kCancelled, "the stream has ended");
  }
  self_.reset();
}

void VersionStream::End(const grpc::Status& why) {
  if (ended_) return;
  ended_ = true;
  telemetry::Log(telemetry::LogLevel::kDebug, "version_stream_ended", {{"model", model_}});
  Finish(why);
}

}  // namespace lockstep::serve
