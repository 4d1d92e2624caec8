// Exporter: one rank's part in publishing a model, by the plan of all ranks.
//
//   on its host:       Begin ─ copy own shards into the slot ─ take remote ranks' buckets in ─ Commit ─ answer them
//   on another host:   pack bucket 1 ─ send ‖ pack bucket 2 ─ send ‖ ... ─ wait for the answer
//   nothing to write (its shards are written by other replicas): returns at once
//
// Remote ranks' copies go, in the plan's order, into buckets; two of them, half of `bucket_bytes` each, are all the
// memory that either end has for it. Each bucket starts with a BucketHeader (FORMAT.md) that names version, plan and
// place, so a rank that is a step behind is an error and never another version's bytes.
//
// An error on one rank never leaves another waiting. A sender that cannot continue still sends its buckets, marked as
// failed. A proxy that cannot commit still takes all buckets in and answers with the reason. A writer still begins the
// version, to abort it: the other writers learn of the error at once, also of a broken exchange. A rank that fails
// before Publish() calls Abort() instead. A rank that calls neither keeps the ranks that exchange buckets with it
// waiting until its next version, which fails too; then all are in step again (bucket_intake.h).
//
// Tensors that the descriptions call frozen are copied into each of the two slots once, and from then on reported as
// unchanged without being read; ranks on other hosts send them only while a slot lacks them. Before the first time,
// what both slots got is compared, once: a tensor that changed between its two copies is an error. Later changes are
// neither seen nor published. After a failed version they are copied, and compared, again.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/copy_plan.h"
#include "common/model/layout.h"
#include "common/os/own_process.h"
#include "common/os/unix_socket.h"
#include "export_plugin/client/rank_client.h"
#include "export_plugin/exporter/exchange.h"
#include "export_plugin/exporter/frozen_bytes.h"
#include "export_plugin/exporter/lowering.h"

namespace lockstep::exporter {

class BucketIntake;
class BucketSender;
class TrackedExchange;
class SectionFiller;

inline constexpr uint64_t kDefaultBucketBytes = uint64_t{512} << 20;
inline constexpr uint64_t kUnifiedMemoryBucketBytes = uint64_t{64} << 20;  // at most, where CPU and GPU share memory
inline constexpr uint64_t kMinBucketBytes = uint64_t{1} << 20;

struct ExporterOptions {
  client::RankOptions agent;              // the exporter gives layout, rank, ranks and share
  std::vector<std::string> descriptions;  // of all ranks
  model::Attachments attachments;         // that belong to the model
  // Of each rank, counted from 0, for a model in parts: the exporter publishes the part of host `part`, to the agent
  // there. Empty: the whole model, by the descriptions' on_agent_host.
  std::vector<uint32_t> hosts;
  uint32_t part = 0;
  uint32_t rank = 0;  // of descriptions
  std::vector<LocalTensor> locals;
  uint64_t bucket_bytes = kDefaultBucketBytes;  // the same on every rank
  uint32_t threads = 1;  // that may copy, the caller's among them; 0: UsualCopyThreads of the ranks on this host
  Exchange* exchange = nullptr;  // needed when some rank is not on the agent's host; REQUIRES to outlive the exporter
};

// Of the last publish, of this rank.
struct PublishStats {
  uint64_t bytes_copied = 0;  // from own tensors into the slot
  uint64_t bytes_frozen = 0;  // of own frozen tensors that were neither copied nor sent, being there already
  uint64_t bytes_sent = 0;    // to another rank, without headers
  uint64_t bytes_received = 0;
  uint64_t buckets_sent = 0;
  uint64_t buckets_received = 0;
  uint64_t exchange_memory_bytes = 0;  // buckets alive at most
  double begin_seconds = 0;            // waited for the slot
  double total_seconds = 0;
};

// Not thread-safe. Destruction aborts a version being written. A process that is forked off has no part in it: calls
// that do something are kState there, and destruction does not concern the parent's.
class Exporter {
 public:
  // Compiles and checks everything, connects. kBadData names the tensor, ranks and rule.
  static Result<std::unique_ptr<Exporter>> Open(ExporterOptions options);
  ~Exporter();

  // Publishes this rank's part of `version`. `addresses`, when not empty, replaces those of the local tensors, in
  // order; shapes, strides and dtypes are as opened. After an error the version is gone on every rank and the next
  // publish works, unless the exchange itself is broken (kUnavailable): then every later publish says so.
  Status Publish(Version version, std::span<const void* const> addresses = {});

  // Sets the label of the version of the next Publish() (common/model/label.h); empty: none. kBadData: it is no label.
  Status SetLabel(std::string_view label);

  // Takes this rank's part in `version` when it cannot give its bytes because of `reason`, as Publish() does after an
  // error. The version is aborted on every rank that writes or exchanges buckets with this one; the next publish works.
  // kUnavailable as Publish(). REQUIRES !reason.ok().
  Status Abort(Version version, const Status& reason);

  // Writes `range` of the data section, made of the tensors as they are now, to `target`: see SectionFiller. The agent
  // learns nothing of it. `addresses` as for Publish(). kBadData also when this rank does not hold the whole model.
  Status Fill(ByteRange range, std::byte* target, std::span<const void* const> addresses = {});

  const model::ModelLayout& layout() const { return *layout_; }
  const layout::CopyPlan& plan() const { return plan_; }
  uint64_t bucket_bytes() const { return bucket_bytes_; }  // as used: both ends of an exchange must have the same
  const PublishStats& stats() const { return stats_; }
  // Whether the memory that GPU tensors are copied to is pinned: this rank's pages of both slots, or its buckets. True
  // from Open() on, or from the first publish that has addresses on a GPU. Copies are slower when it is false.
  bool pinned() const;
  // Why that memory could not be pinned, and what to do; OK: it could, or was not to be.
  const Status& pin_trouble() const { return pin_trouble_; }
  bool writes() const { return client_ != nullptr; }  // whether this rank talks to the agent
  RunId run() const;                                  // zero on a rank that does not
  // The newest version that this rank knows to be committed by all, as of its last publish; 0 on a rank that does not
  // talk to the agent. Of several writers, the last to commit knows a version at once, the others with the next one.
  Version committed_version() const;

 private:
  explicit Exporter(const ExporterOptions& options);
  Status CheckProcess() const { return process_.Check("model " + model_name_); }
  Status Compile(const ExporterOptions& options, const std::vector<plan::ShardDescription>& descriptions);
  Status SetUpRoles(const ExporterOptions& options, const layout::TrainingModel& model,
                    const std::vector<bool>& beside);
  Status Connect(const ExporterOptions& options, uint32_t writer, uint32_t writers);
  Status SetAddresses(std::span<const void* const> addresses);
  Status TakePart(Version version, Status ready);
  Status Write(Version version, const Status& ready);
  Status WriteOwn(std::byte* data);
  void PinForGpu();
  Status PinSlots();
  // `first_batch`: the number, in this rank's share, of the first batch of `list`.
  Status RunCopies(const CopyList& list, uint32_t first_batch, std::byte* data);
  Status ReportFrozen(std::byte* data);
  Status End(Version version, Status status);

  const os::OwnProcess process_;
  const std::string model_name_;
  const uint32_t rank_;
  const std::string own_description_;
  std::vector<LocalTensor> locals_;
  uint64_t bucket_bytes_ = 0;
  std::shared_ptr<const model::ModelLayout> layout_;
  layout::CopyPlan plan_;
  OwnCopies own_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<CopyEngine> engine_;
  std::unique_ptr<TrackedExchange> exchange_;  // where this rank exchanges buckets
  std::unique_ptr<BucketSender> sender_;
  std::unique_ptr<BucketIntake> intake_;
  std::unique_ptr<client::RankClient> client_;  // where this rank writes
  std::array<PinnedMemory, 2> pinned_slots_;
  bool pin_tried_ = false;
  Status pin_trouble_;
  std::unique_ptr<SectionFiller> filler_;  // once it was asked for
  FrozenBytes frozen_;
  PublishStats stats_;
  std::string label_;  // of the next version
};

}  // namespace lockstep::exporter
