#include "export_plugin/exporter/exporter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/text.h"
#include "common/base/worker_pool.h"
#include "export_plugin/exporter/bucket_intake.h"
#include "export_plugin/exporter/bucket_sender.h"
#include "export_plugin/exporter/frozen_bytes.h"
#include "export_plugin/exporter/lowering.h"
#include "export_plugin/exporter/section_filler.h"
#include "export_plugin/plan/sheet.h"
#include "trainer_agent/buffer/rank_client.h"

namespace lockstep::exporter {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMaxThreads = 256;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Status CheckOptions(const ExporterOptions& options) {
  if (options.rank >= options.sheets.size()) {
    return {ErrorCode::kBadData,
            Cat("rank ", options.rank, " of ", options.sheets.size(), " sheets: ranks count from 0")};
  }
  if (options.bucket_bytes < kMinBucketBytes) {
    return {ErrorCode::kBadData, Cat("bucket_bytes is ", options.bucket_bytes, "; it must be at least ",
                                     kMinBucketBytes, ", the same on every rank")};
  }
  if (options.threads == 0 || options.threads > kMaxThreads) {
    return {ErrorCode::kBadData, Cat("threads is ", options.threads, "; it must be from 1 to ", kMaxThreads)};
  }
  return OkStatus();
}

}  // namespace

struct Exporter::Impl {
  std::string model_name;
  uint32_t rank = 0;
  uint64_t bucket_bytes = 0;
  std::vector<LocalTensor> locals;
  std::shared_ptr<const model::ModelLayout> layout;
  layout::CopyPlan plan;
  OwnCopies own;
  std::unique_ptr<WorkerPool> pool;
  std::unique_ptr<CopyEngine> engine;
  std::unique_ptr<Link> link;  // where this rank exchanges buckets
  std::unique_ptr<BucketSender> sender;
  std::unique_ptr<BucketIntake> intake;
  std::unique_ptr<buffer::RankClient> client;  // where this rank writes
  std::array<std::unique_ptr<PinnedMemory>, 2> pinned_halves;
  std::array<bool, 2> pin_tried{};
  std::string own_sheet;
  std::unique_ptr<SectionFiller> filler;  // once it was asked for
  FrozenBytes frozen;
  std::vector<PlacedCopy> placed;
  PublishStats stats;

  Status Compile(const ExporterOptions& options);
  Status SetUpRoles(const ExporterOptions& options, const layout::TrainingModel& model,
                    const std::vector<bool>& beside);
  Status Connect(const ExporterOptions& options, uint32_t writer, uint32_t writers);
  Status SetAddresses(std::span<const void* const> addresses);
  Status TakePart(Version version, Status ready);
  Status Write(Version version, Status ready);
  Status WriteOwn(std::byte* data);
  void PinHalf(size_t half, std::byte* data);
  Status RunCopies(const CopyList& list, std::byte* data);
  Status ReportFrozen(std::byte* data);
  Status ReportUnchanged(std::span<const StridedRange> ranges);
  Status End(Version version, Status status);
};

Status Exporter::Impl::Compile(const ExporterOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::vector<plan::RankSheet> sheets, ParseSheets(options.sheets));
  LS_RETURN_IF_ERROR(CheckLocals(options.locals, sheets[rank]));
  LS_ASSIGN_OR_RETURN(const layout::TrainingModel model, plan::BuildTrainingModel(sheets));
  const std::vector<bool> beside = plan::BesideAgent(sheets);
  LS_ASSIGN_OR_RETURN(plan, layout::CompileExport(model, beside));
  LS_ASSIGN_OR_RETURN(layout,
                      model::ModelLayout::Create(model.tensors, model::kDefaultBlockBytes, options.attachments));
  return SetUpRoles(options, model, beside);
}

// Who writes, who sends to whom: the same on every rank.
Status Exporter::Impl::SetUpRoles(const ExporterOptions& options, const layout::TrainingModel& model,
                                  const std::vector<bool>& beside) {
  const LocalsBySource by_source(plan::SourcesOfRank(model, rank), model.sources.size());
  const auto proxies = ProxiesOf(plan, beside);
  const uint64_t payload_bytes = SlotPayloadBytes(options.bucket_bytes);
  std::vector<bool> writes(plan.ranks.size());
  std::vector<RemoteRank> remote;
  for (uint32_t other = 0; other < plan.ranks.size(); ++other) {
    if (beside[other] && plan.ranks[other].bytes > 0) writes[other] = true;
    if (!proxies[other]) continue;
    writes[*proxies[other]] = true;
    if (*proxies[other] != rank) continue;
    remote.push_back({other, LowerIncoming(model, PackBuckets(model, plan.ranks[other], payload_bytes))});
  }
  if ((proxies[rank] || !remote.empty()) && options.exchange == nullptr) {
    return {ErrorCode::kBadData, "some ranks are on another host than the agent; give an exchange to reach them by"};
  }
  link = std::make_unique<Link>(options.exchange);
  if (!remote.empty()) {
    intake = std::make_unique<BucketIntake>(plan.digest, std::move(remote), link.get(), engine.get());
  }
  if (proxies[rank]) {
    const RankBuckets<PackedBucket> packed = PackBuckets(model, plan.ranks[rank], payload_bytes);
    LS_ASSIGN_OR_RETURN(auto outgoing, LowerOutgoing(model, packed, locals, by_source));
    sender = std::make_unique<BucketSender>(*proxies[rank], plan.digest, std::move(outgoing), link.get(), engine.get());
  }
  if (!writes[rank]) return OkStatus();
  const std::vector<Chunk> chunks = ChunksOf(model, plan.ranks[rank]);
  LS_ASSIGN_OR_RETURN(own, LowerCopies(model, chunks, locals, by_source));
  frozen.Add(own.frozen.ranges);
  if (intake != nullptr) frozen.Add(intake->FrozenRanges());
  uint32_t writer = 0;
  uint32_t writers = 0;
  for (uint32_t other = 0; other < writes.size(); ++other) {
    if (other == rank) writer = writers;
    writers += writes[other];
  }
  return Connect(options, writer, writers);
}

Status Exporter::Impl::Connect(const ExporterOptions& options, uint32_t writer, uint32_t writers) {
  LS_ASSIGN_OR_RETURN(client, buffer::RankClient::Open({.socket_path = options.socket_path,
                                                        .model = options.model,
                                                        .layout = layout,
                                                        .rank = writer,
                                                        .ranks = writers,
                                                        .run = options.run,
                                                        .connect_timeout = options.connect_timeout,
                                                        .reconnect_timeout = options.reconnect_timeout,
                                                        .call_timeout = options.call_timeout}));
  return OkStatus();
}

Status Exporter::Impl::SetAddresses(std::span<const void* const> addresses) {
  if (addresses.empty()) return OkStatus();
  if (addresses.size() != locals.size()) {
    return {ErrorCode::kBadData, Cat(addresses.size(), " addresses were given for ", locals.size(), " local tensors")};
  }
  for (size_t i = 0; i < locals.size(); ++i) locals[i].address = addresses[i];
  return OkStatus();
}

// `ready`: why this rank cannot give its bytes, if so. Answers the cause of what failed.
Status Exporter::Impl::TakePart(Version version, Status ready) {
  const auto start = Clock::now();
  stats = {};
  Status status;
  if (sender != nullptr) {
    status = sender->Send(version, std::move(ready), locals, stats);
  } else if (client != nullptr) {
    status = Write(version, std::move(ready));
  }
  stats.total_seconds = SecondsSince(start);
  return status;
}

// Everything that must happen on a rank that writes, whatever fails: others wait for it.
Status Exporter::Impl::Write(Version version, Status ready) {
  // Once the link is broken the remote ranks send nothing more; the other writers are still to be notified.
  const bool takes_buckets = intake != nullptr && link->status().ok();
  if (takes_buckets) intake->Start(version);
  const auto start = Clock::now();
  const Result<std::byte*> begun = client->Begin(version);
  stats.begin_seconds = SecondsSince(start);
  Status status = ready.ok() ? begun.status() : std::move(ready);
  if (status.ok()) status = WriteOwn(*begun);
  if (takes_buckets) {
    const Status taken =
        intake->TakeAll({.version = version,
                         .data = status.ok() ? *begun : nullptr,
                         .holds_frozen = frozen.in_both(),
                         .done = [this](std::span<const StridedRange> ranges) { return client->RangesDone(ranges); },
                         .unchanged = [this](std::span<const StridedRange> ranges) { return ReportUnchanged(ranges); }},
                        stats);
    if (status.ok()) status = taken;
  }
  status = End(version, std::move(status));
  if (!takes_buckets) return status;
  intake->Answer(version, status.code(), !frozen.in_both());
  return status.ok() ? link->status() : status;
}

Status Exporter::Impl::WriteOwn(std::byte* data) {
  PinHalf(client->half(), data);
  LS_RETURN_IF_ERROR(RunCopies(own.changing, data));
  return ReportFrozen(data);
}

// Once for each half, when it is first written from a GPU.
void Exporter::Impl::PinHalf(size_t half, std::byte* data) {
  if (pin_tried[half] || !AnyOnDevice(*engine, locals)) return;
  pinned_halves[half] = engine->Pin({data, layout->data_bytes()});
  pin_tried[half] = true;
}

Status Exporter::Impl::RunCopies(const CopyList& list, std::byte* data) {
  size_t copies = 0;
  size_t ranges = 0;
  for (const CopyBatch& batch : list.batches) {
    LS_RETURN_IF_ERROR(Place(std::span(list.copies).subspan(copies, batch.copies_end - copies), locals, data, placed));
    LS_RETURN_IF_ERROR(engine->Start(placed));
    LS_RETURN_IF_ERROR(engine->Finish());
    LS_RETURN_IF_ERROR(client->RangesDone(std::span(list.ranges).subspan(ranges, batch.ranges_end - ranges)));
    copies = batch.copies_end;
    ranges = batch.ranges_end;
    stats.bytes_copied += batch.bytes;
  }
  return OkStatus();
}

// Copied into each half once; from then on they are there, and equal in both.
Status Exporter::Impl::ReportFrozen(std::byte* data) {
  if (!frozen.in_both()) return RunCopies(own.frozen, data);
  LS_RETURN_IF_ERROR(frozen.CheckEqual(data, client->other_data(), *layout, pool.get()));
  stats.bytes_frozen = own.frozen.bytes;
  return ReportUnchanged(own.frozen.ranges);
}

Status Exporter::Impl::ReportUnchanged(std::span<const StridedRange> ranges) {
  return ranges.empty() ? OkStatus() : client->Unchanged(ranges);
}

// Commits, or aborts the version for all.
Status Exporter::Impl::End(Version version, Status status) {
  const bool begun = client->writing();
  const size_t half = begun ? client->half() : 0;
  if (status.ok()) {
    status = client->Commit();
  } else if (begun) {
    (void)client->Abort(status.message());  // what went wrong before is the cause
  }
  if (begun) frozen.Settle(half, status.ok());
  return status.WithContext(Cat("model ", model_name, " version ", version, ", rank ", rank));
}

Exporter::Exporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Exporter::~Exporter() = default;

Result<std::unique_ptr<Exporter>> Exporter::Open(ExporterOptions options) {
  LS_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->model_name = options.model;
  impl->rank = options.rank;
  impl->locals = options.locals;
  impl->own_sheet = options.sheets[options.rank];
  if (options.threads > 1) impl->pool = std::make_unique<WorkerPool>(options.threads - 1);
  LS_ASSIGN_OR_RETURN(impl->engine, NewCopyEngine(impl->pool.get()));
  if (impl->engine->unified_memory()) options.bucket_bytes = std::min(options.bucket_bytes, kUnifiedMemoryBucketBytes);
  impl->bucket_bytes = options.bucket_bytes;
  LS_RETURN_IF_ERROR(impl->Compile(options).WithContext(Cat("model ", options.model, ", rank ", options.rank)));
  return std::unique_ptr<Exporter>(new Exporter(std::move(impl)));
}

Status Exporter::Publish(Version version, std::span<const void* const> addresses) {
  Status ready = impl_->link->status();
  if (ready.ok()) ready = impl_->SetAddresses(addresses);
  return impl_->TakePart(version, std::move(ready));
}

Status Exporter::Abort(Version version, const Status& reason) {
  (void)impl_->TakePart(version, reason);
  return impl_->link->status();
}

Status Exporter::Fill(ByteRange range, std::byte* target, std::span<const void* const> addresses) {
  LS_RETURN_IF_ERROR(impl_->SetAddresses(addresses));
  if (impl_->filler == nullptr) {
    LS_ASSIGN_OR_RETURN(impl_->filler, SectionFiller::Create(impl_->own_sheet, impl_->locals, impl_->layout));
  }
  return impl_->filler->Fill(range, target, impl_->locals, *impl_->engine);
}

const model::ModelLayout& Exporter::layout() const {
  return *impl_->layout;
}

const layout::CopyPlan& Exporter::plan() const {
  return impl_->plan;
}

uint64_t Exporter::bucket_bytes() const {
  return impl_->bucket_bytes;
}

const PublishStats& Exporter::stats() const {
  return impl_->stats;
}

bool Exporter::pinned() const {
  if (impl_->sender != nullptr) return impl_->sender->pinned();
  return impl_->pinned_halves[0] != nullptr && impl_->pinned_halves[1] != nullptr;
}

bool Exporter::writes() const {
  return impl_->client != nullptr;
}

RunId Exporter::run() const {
  return impl_->client == nullptr ? RunId{} : impl_->client->run();
}

Version Exporter::committed_version() const {
  return impl_->client == nullptr ? 0 : impl_->client->committed_version();
}

}  // namespace lockstep::exporter
