#include "export_plugin/exporter/exporter.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/text.h"
#include "common/layout/host_parts.h"
#include "common/model/parts.h"
#include "export_plugin/exporter/bucket_intake.h"
#include "export_plugin/exporter/bucket_sender.h"
#include "export_plugin/exporter/pinned_pages.h"
#include "export_plugin/exporter/section_filler.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::exporter {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Receivers will join the parts.
Status CheckJoins(const layout::TrainingModel& model, const std::vector<uint32_t>& host_of_tensor) {
  std::vector<std::shared_ptr<const model::ModelLayout>> parts;
  for (uint32_t host = 0; host <= *std::max_element(host_of_tensor.begin(), host_of_tensor.end()); ++host) {
    LS_ASSIGN_OR_RETURN(const layout::TrainingModel part, layout::PartOf(model, host_of_tensor, host));
    LS_ASSIGN_OR_RETURN(parts.emplace_back(), model::ModelLayout::Create(layout::HuggingFaceTensors(part)));
  }
  return model::ModelLayout::Join(parts).status().WithContext("the parts of all hosts do not make one model");
}

Status CheckOptions(const ExporterOptions& options) {
  if (options.rank >= options.descriptions.size()) {
    return {ErrorCode::kBadData,
            Cat("rank ", options.rank, " of ", options.descriptions.size(), " descriptions: ranks count from 0")};
  }
  const auto& hosts = options.hosts;
  const bool counted = hosts.size() == options.descriptions.size() &&
                       std::all_of(hosts.begin(), hosts.end(), [](uint32_t host) { return host < model::kMaxParts; }) &&
                       std::count(hosts.begin(), hosts.end(), options.part) > 0;
  if (!hosts.empty() && !counted) {
    return {ErrorCode::kBadData,
            Cat("hosts: give that of each rank, below ", model::kMaxParts, ", and a part that is one of them")};
  }
  if (options.bucket_bytes < kMinBucketBytes) {
    return {ErrorCode::kBadData, Cat("bucket_bytes is ", options.bucket_bytes, "; it must be at least ",
                                     kMinBucketBytes, ", the same on every rank")};
  }
  return OkStatus();
}

}  // namespace

Status Exporter::Compile(const ExporterOptions& options, const std::vector<plan::ShardDescription>& descriptions) {
  LS_RETURN_IF_ERROR(CheckLocals(options.locals, descriptions[rank_]));
  LS_ASSIGN_OR_RETURN(layout::TrainingModel model, plan::BuildTrainingModel(descriptions));
  std::vector<bool> beside = plan::OnAgentHost(descriptions);
  model::Attachments attachments = options.attachments;
  if (!options.hosts.empty()) {
    LS_ASSIGN_OR_RETURN(const std::vector<uint32_t> host_of_tensor, layout::HostOfTensors(model, options.hosts));
    if (options.part == 0) LS_RETURN_IF_ERROR(CheckJoins(model, host_of_tensor));
    LS_ASSIGN_OR_RETURN(model, layout::PartOf(model, host_of_tensor, options.part));
    for (size_t rank = 0; rank < beside.size(); ++rank) beside[rank] = options.hosts[rank] == options.part;
    const uint32_t parts = *std::max_element(options.hosts.begin(), options.hosts.end()) + 1;
    attachments[std::string(model::kPartAttachment)] = model::PartText({options.part, parts});
  }
  LS_ASSIGN_OR_RETURN(plan_, layout::CompileExport(model, beside));
  LS_ASSIGN_OR_RETURN(layout_, model::ModelLayout::Create(layout::HuggingFaceTensors(model), model::kDefaultBlockBytes,
                                                          std::move(attachments)));
  return SetUpRoles(options, model, beside);
}

// Which ranks write, and which rank sends to which: the same on every rank.
Status Exporter::SetUpRoles(const ExporterOptions& options, const layout::TrainingModel& model,
                            const std::vector<bool>& beside) {
  const LocalsBySource by_source = LocalsOfRank(model, rank_);
  const auto proxies = ProxiesOf(plan_, beside);
  const uint64_t payload_bytes = SlotPayloadBytes(options.bucket_bytes);
  std::vector<bool> writes(plan_.ranks.size());
  std::vector<RemoteRank> remote;
  for (uint32_t other = 0; other < plan_.ranks.size(); ++other) {
    if (beside[other] && plan_.ranks[other].bytes > 0) writes[other] = true;
    if (!proxies[other]) continue;
    writes[*proxies[other]] = true;
    if (*proxies[other] != rank_) continue;
    LS_ASSIGN_OR_RETURN(RankBuckets incoming, IncomingBuckets(model, plan_.ranks[other], payload_bytes));
    remote.push_back({other, std::move(incoming)});
  }
  if ((proxies[rank_] || !remote.empty()) && options.exchange == nullptr) {
    return {ErrorCode::kBadData, "some ranks are on another host than the agent; give an exchange to reach them by"};
  }
  exchange_ = std::make_unique<TrackedExchange>(options.exchange);
  if (!remote.empty()) {
    LS_ASSIGN_OR_RETURN(auto memory, NewBuckets(options.exchange->device(), LargestPayload(remote)));
    if (memory->on_device()) LS_RETURN_IF_ERROR(engine_->PrepareGpuOf(memory->answer()));
    intake_ = std::make_unique<BucketIntake>(plan_.digest, std::move(remote), std::move(memory), exchange_.get(),
                                             engine_.get());
  }
  if (proxies[rank_]) {
    LS_ASSIGN_OR_RETURN(RankBuckets outgoing,
                        OutgoingBuckets(model, plan_.ranks[rank_], payload_bytes, locals_, by_source));
    LS_ASSIGN_OR_RETURN(auto memory, NewBuckets(options.exchange->device(), outgoing.largest_payload()));
    if (memory->on_device()) LS_RETURN_IF_ERROR(engine_->PrepareGpuOf(memory->answer()));
    sender_ = std::make_unique<BucketSender>(*proxies[rank_], plan_.digest, std::move(outgoing), std::move(memory),
                                             exchange_.get(), engine_.get());
  }
  if (!writes[rank_]) return OkStatus();
  const std::vector<Chunk> chunks = ChunksOf(model, plan_.ranks[rank_]);
  LS_ASSIGN_OR_RETURN(own_, LowerCopies(model, chunks, locals_, by_source));
  frozen_.Add(own_.frozen.ranges);
  if (intake_ != nullptr) frozen_.Add(intake_->Ranges(/*frozen_only=*/true));
  uint32_t writer = 0;
  uint32_t writers = 0;
  for (uint32_t other = 0; other < writes.size(); ++other) {
    if (other == rank_) writer = writers;
    writers += writes[other];
  }
  return Connect(options, writer, writers);
}

// The share has the batches of own_.changing, then those of own_.frozen, then the buckets that the rank takes in.
Status Exporter::Connect(const ExporterOptions& options, uint32_t writer, uint32_t writers) {
  client::RankOptions agent = options.agent;
  for (const CopyList* list : {&own_.changing, &own_.frozen}) {
    for (size_t batch = 0; batch < list->batches.size(); ++batch) agent.share.Add(list->RangesOf(batch));
  }
  if (intake_ != nullptr) intake_->AddTo(agent.share);
  agent.layout = layout_;
  agent.rank = writer;
  agent.ranks = writers;
  LS_ASSIGN_OR_RETURN(client_, client::RankClient::Open(std::move(agent)));
  return OkStatus();
}

Status Exporter::SetAddresses(std::span<const void* const> addresses) {
  if (addresses.empty()) return OkStatus();
  if (addresses.size() != locals_.size()) {
    return {ErrorCode::kBadData, Cat(addresses.size(), " addresses were given for ", locals_.size(), " local tensors")};
  }
  for (size_t i = 0; i < locals_.size(); ++i) locals_[i].address = addresses[i];
  return OkStatus();
}

// `ready`: why this rank cannot give its bytes, if so. Answers the cause of what failed.
Status Exporter::TakePart(Version version, Status ready) {
  const auto start = Clock::now();
  stats_ = {};
  Status status;
  if (sender_ != nullptr) {
    status = sender_->Send(version, std::move(ready), locals_, stats_);
  } else if (client_ != nullptr) {
    status = Write(version, ready);
  }
  stats_.total_seconds = SecondsSince(start);
  return status;
}

// Everything that must happen on a rank that writes, whatever fails: others wait for it.
Status Exporter::Write(Version version, const Status& ready) {
  // Once the link is broken the remote ranks send nothing more; the other writers are still to be notified.
  const bool takes_buckets = intake_ != nullptr && exchange_->status().ok();
  if (takes_buckets) intake_->Start(version);
  const auto start = Clock::now();
  const Result<std::byte*> begun = client_->Begin(version);
  stats_.begin_seconds = SecondsSince(start);
  Status status = ready.ok() ? begun.status() : ready;
  if (status.ok()) status = WriteOwn(*begun);
  if (takes_buckets) {
    const Status taken = intake_->TakeAll(
        {.version = version,
         .data = status.ok() ? *begun : nullptr,
         .holds_frozen = frozen_.in_both(),
         .done = [this](std::span<const uint32_t> batches) { return client_->BatchesDone(batches); },
         .unchanged = [this](std::span<const uint32_t> batches) { return client_->Unchanged(batches); }},
        stats_);
    if (status.ok()) status = taken;
  }
  status = End(version, std::move(status));
  if (!takes_buckets) return status;
  intake_->Answer(version, status.code(), !frozen_.in_both());
  return status.ok() ? exchange_->status() : status;
}

Status Exporter::WriteOwn(std::byte* data) {
  LS_RETURN_IF_ERROR(RunCopies(own_.changing, 0, data));
  return ReportFrozen(data);
}

// Once, as soon as there are tensors on a GPU: what they are copied to.
void Exporter::PinForGpu() {
  const bool takes_from_gpu = intake_ != nullptr && intake_->on_device();
  if (pin_tried_ || !(takes_from_gpu || AnyOnDevice(*engine_, locals_))) return;
  pin_tried_ = true;
  pin_trouble_ = sender_ != nullptr ? sender_->Pin() : PinSlots();
  if (!pin_trouble_.ok()) pinned_slots_ = {};
}

// Pins this rank's own pages of the slots, and those of remote ranks if their buckets arrive in a GPU's memory.
Status Exporter::PinSlots() {
  if (client_ == nullptr) return OkStatus();
  std::vector<StridedRange> ranges = own_.changing.ranges;
  ranges.insert(ranges.end(), own_.frozen.ranges.begin(), own_.frozen.ranges.end());
  if (intake_ != nullptr && intake_->on_device()) {
    const std::vector<StridedRange> taken = intake_->Ranges(/*frozen_only=*/false);
    ranges.insert(ranges.end(), taken.begin(), taken.end());
  }
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (size_t slot = 0; slot < pinned_slots_.size(); ++slot) {
    const auto pages = PagesOf(client_->data(slot), ranges, page_bytes);
    LS_ASSIGN_OR_RETURN(pinned_slots_[slot], engine_->Pin(pages));
  }
  return OkStatus();
}

Status Exporter::RunCopies(const CopyList& list, uint32_t first_batch, std::byte* data) {
  return RunBatches(*engine_, list, locals_, data, [&](size_t batch) {
    stats_.bytes_copied += list.batches[batch].bytes;
    const auto number = static_cast<uint32_t>(first_batch + batch);
    return client_->BatchesDone({&number, 1});
  });
}

// Copied into each slot once; from then on they are there, and equal in both.
Status Exporter::ReportFrozen(std::byte* data) {
  const auto first_batch = static_cast<uint32_t>(own_.changing.batches.size());
  if (!frozen_.in_both()) return RunCopies(own_.frozen, first_batch, data);
  LS_RETURN_IF_ERROR(frozen_.CheckEqual(data, client_->other_data(), *layout_, pool_.get()));
  stats_.bytes_frozen = own_.frozen.bytes;
  std::vector<uint32_t> batches(own_.frozen.batches.size());
  std::iota(batches.begin(), batches.end(), first_batch);
  return client_->Unchanged(batches);
}

// Commits, or aborts the version for all.
Status Exporter::End(Version version, Status status) {
  const bool begun = client_->writing();
  const size_t slot = begun ? client_->slot() : 0;
  const std::string label = std::exchange(label_, {});
  if (status.ok()) status = client_->SetLabel(label);
  if (status.ok()) {
    status = client_->Commit();
  } else if (begun) {
    (void)client_->Abort(status.message());  // what went wrong before is the cause
  }
  if (begun) frozen_.Settle(slot, status.ok());
  return status.WithContext(Cat("model ", model_name_, " version ", version, ", rank ", rank_));
}

Exporter::Exporter(const ExporterOptions& options)
    : model_name_(options.agent.model),
      rank_(options.rank),
      own_description_(options.descriptions[options.rank]),
      locals_(options.locals) {}

Exporter::~Exporter() = default;

Result<std::unique_ptr<Exporter>> Exporter::Open(ExporterOptions options) {
  LS_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Exporter> exporter(new Exporter(options));
  const std::string who = Cat("model ", options.agent.model, ", rank ", options.rank);
  const Result<std::vector<plan::ShardDescription>> descriptions = ParseDescriptions(options.descriptions);
  LS_RETURN_IF_ERROR(descriptions.status().WithContext(who));
  if (options.threads == 0) {
    // Of ranks that are not beside the agent it is not known on how many hosts they are.
    const bool beside = (*descriptions)[options.rank].on_agent_host;
    options.threads = UsualCopyThreads(
        static_cast<size_t>(std::ranges::count_if(*descriptions, [&](const plan::ShardDescription& description) {
          return description.on_agent_host == beside;
        })));
  }
  LS_ASSIGN_OR_RETURN(exporter->pool_, NewCopyPool(options.threads));
  LS_ASSIGN_OR_RETURN(exporter->engine_, NewCopyEngine(exporter->pool_.get()));
  if (AnyOnUnifiedMemory(*exporter->engine_, options.locals)) {
    options.bucket_bytes = std::min(options.bucket_bytes, kUnifiedMemoryBucketBytes);
  }
  exporter->bucket_bytes_ = options.bucket_bytes;
  LS_RETURN_IF_ERROR(exporter->Compile(options, *descriptions).WithContext(who));
  exporter->PinForGpu();
  return exporter;
}

Status Exporter::SetLabel(std::string_view label) {
  LS_RETURN_IF_ERROR(model::CheckLabel(label));
  label_ = label;
  return OkStatus();
}

Status Exporter::Publish(Version version, std::span<const void* const> addresses) {
  LS_RETURN_IF_ERROR(CheckProcess());
  Status ready = exchange_->status();
  if (ready.ok()) ready = SetAddresses(addresses);
  if (ready.ok()) PinForGpu();
  return TakePart(version, std::move(ready));
}

Status Exporter::Abort(Version version, const Status& reason) {
  LS_RETURN_IF_ERROR(CheckProcess());
  (void)TakePart(version, reason);
  return exchange_->status();
}

Status Exporter::Fill(ByteRange range, std::byte* target, std::span<const void* const> addresses) {
  LS_RETURN_IF_ERROR(CheckProcess());
  LS_RETURN_IF_ERROR(SetAddresses(addresses));
  if (filler_ == nullptr) {
    LS_ASSIGN_OR_RETURN(filler_, SectionFiller::Create(own_description_, locals_, layout_));
  }
  return filler_->Fill(range, target, locals_, *engine_);
}

bool Exporter::pinned() const {
  if (sender_ != nullptr) return sender_->pinned();
  return pinned_slots_[0] != nullptr && pinned_slots_[1] != nullptr;
}

RunId Exporter::run() const {
  return client_ == nullptr ? RunId{} : client_->run();
}

Version Exporter::committed_version() const {
  return client_ == nullptr ? 0 : client_->committed_version();
}

}  // namespace lockstep::exporter
