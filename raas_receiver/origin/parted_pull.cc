#include "raas_receiver/origin/parted_pull.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <thread>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "kernels/hash.h"

namespace lockstep::origin {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kTouch{10};  // an agent forgets a pull after two minutes

std::string Versions(const std::vector<Plan>& plans) {
  std::string text;
  for (const Plan& plan : plans) text += Cat(text.empty() ? "" : ", ", plan.target.version);
  return text;
}

class PartedPull final : public Pull {
 public:
  PartedPull(WholePtr whole, std::vector<std::unique_ptr<Pull>> pulls, JoinedPlan joined, const HeldWhole& held,
             std::stop_source cancel, const std::stop_token& stop)
      : whole_(std::move(whole)),
        pulls_(std::move(pulls)),
        joined_(std::move(joined)),
        opened_(joined_.plan),
        held_(held),
        cancel_(std::move(cancel)),
        stop_(stop),
        on_stop_(stop, [this] { cancel_.request_stop(); }) {}

  const Plan& plan() const override { return opened_; }

  Status FetchBlocks(pull::FullRequest request, FullStaging& staging) override {
    staging.Expect(request.blocks);
    return ForEachPart([&](size_t part) -> Status {
      const BlockIndex first = whole_->first_block(part);
      const bool leads_on = opened_.full && !pulls_[part]->plan().full && !request.exact;
      pull::FullRequest own{.blocks = {}, .version = request.version, .exact = request.exact};
      for (const BlockIndex block : request.blocks) {
        if (block < first || block >= whole_->end_block(part)) continue;
        if (!leads_on || !TakeHeld(block, staging)) own.blocks.push_back(block - first);
      }
      if (own.blocks.empty()) return OkStatus();
      FullStaging of_part(*whole_->parts[part], [&](BlockIndex block) { return staging.Place(first + block); });
      const Status status = pulls_[part]->FetchBlocks(std::move(own), of_part);
      staging.Take(first, of_part);
      return status;
    });
  }

  Status FetchDeltas(DeltaStaging& staging) override {
    const pull::DeltaRequest request = staging.TakeMissing();
    fetched_.resize(pulls_.size());
    return ForEachPart([&](size_t part) -> Status {
      const std::vector<pull::DeltaStep>& steps = joined_.steps[part];
      if (steps.empty()) return OkStatus();
      DeltaStaging of_part(*whole_->parts[part], request.run, steps);
      LS_RETURN_IF_ERROR(pulls_[part]->FetchDeltas(of_part));
      LS_ASSIGN_OR_RETURN(fetched_[part], of_part.Assemble({}, joined_.plan.committed_unix_ns));
      for (const auto& payload : fetched_[part]) {
        const auto step = std::ranges::find(request.steps, payload->target().version, &pull::DeltaStep::target);
        if (step == request.steps.end()) continue;  // it is here already
        LS_RETURN_IF_ERROR(Put(*payload, whole_->first_block(part), step->payload_id, staging));
      }
      return OkStatus();
    });
  }

  Result<Plan> CatchUp(std::span<const Version> by_block) override {
    const auto until = std::chrono::steady_clock::now() + kPartsPatience;
    Backoff pause(kLongestPartsPause, kFirstPartsPause);
    while (true) {
      std::vector<Plan> plans(pulls_.size());
      LS_RETURN_IF_ERROR(ForEachPart([&](size_t part) -> Status {
        const BlockIndex first = whole_->first_block(part);
        LS_ASSIGN_OR_RETURN(plans[part],
                            pulls_[part]->CatchUp(by_block.subspan(first, whole_->end_block(part) - first)));
        return OkStatus();
      }));
      auto joined = JoinPlans(*whole_->layout, plans, std::vector<ManifestDigest>(plans.size()), {});
      const Version newest = *std::max_element(by_block.begin(), by_block.end());
      if (joined && joined->plan.target.version >= newest) {
        joined_ = *std::move(joined);
        return joined_.plan;
      }
      if (std::chrono::steady_clock::now() > until) return Apart(plans);
      if (WaitForStop(pause.Next(), stop_)) return Status(ErrorCode::kCancelled, "the pull was cancelled");
    }
  }

  void Close(const VersionRef& held, const Status& outcome) override { CloseAll(pulls_, held, outcome); }

  pull::SourceCounters counters() const override {
    pull::SourceCounters sum;
    for (const auto& pull : pulls_) sum += pull->counters();
    return sum;
  }

 private:
  Status ForEachPart(const std::function<Status(size_t)>& what) {
    Mutex mutex;
    std::condition_variable_any changed;
    size_t busy = pulls_.size();
    const std::stop_token ended = cancel_.get_token();
    // A part that is done waits for the others, and keeps its pull open meanwhile.
    const auto wait = [&](size_t part) {
      LS_RETURN_IF_ERROR(what(part));
      MutexLock lock(mutex);
      if (--busy == 0) changed.notify_all();
      const auto none_busy = [&]() LS_REQUIRES(mutex) { return busy == 0; };
      while (!changed.wait_for(lock, ended, kTouch, none_busy) && !ended.stop_requested()) {
        lock.unlock();
        pulls_[part]->Touch();
        lock.lock();
      }
      return OkStatus();
    };
    const Status status = ForEach(pulls_.size(), wait, [this] { cancel_.request_stop(); });
    return stop_.stop_requested() ? Status(ErrorCode::kCancelled, "the pull was cancelled") : status;
  }

  // `block` of what is held, of a part whose deltas lead on from there. False: it is not what its hash says.
  bool TakeHeld(BlockIndex block, FullStaging& staging) const {
    const std::span<std::byte> place = staging.Place(block);
    std::ranges::copy(held_.data.subspan(whole_->layout->block_range(block).offset, place.size()), place.begin());
    if (Hash64(place) != held_.hashes[block]) return false;
    staging.Note(block, held_.held.version, held_.hashes[block]);
    return true;
  }

  // `payload`, of a part that begins at block `first`, as entries of a step of the whole.
  static Status Put(const payload::Payload& payload, BlockIndex first, uint64_t step, DeltaStaging& staging) {
    for (const payload::PayloadEntry& entry : payload.entries()) {
      LS_RETURN_IF_ERROR(staging.PutEntry(step, {.block = first + entry.block,
                                                 .codec = static_cast<payload::Codec>(entry.codec),
                                                 .changes = entry.changes,
                                                 .target_hash = entry.target_hash,
                                                 .data_hash = entry.data_hash,
                                                 .data = {},
                                                 .lent = payload.data(entry)}));
    }
    return OkStatus();
  }

  const WholePtr whole_;
  const std::vector<std::unique_ptr<Pull>> pulls_;
  JoinedPlan joined_;
  const Plan opened_;
  const HeldWhole held_;
  std::stop_source cancel_;  // of the parts' pulls
  const std::stop_token stop_;
  std::vector<payload::DeltaChain> fetched_;  // of each part; staging has lent their bytes
  const std::stop_callback<std::function<void()>> on_stop_;
};

}  // namespace

Status ForEach(size_t parts, const std::function<Status(size_t)>& what, const std::function<void()>& failed) {
  Mutex mutex;
  Status first;
  const auto run = [&](size_t part) {
    const Status status = what(part);
    if (status.ok()) return;
    MutexLock lock(mutex);
    if (!first.ok()) return;
    first = status;
    failed();
  };
  {
    std::vector<std::jthread> threads;
    for (size_t part = 1; part < parts; ++part) threads.emplace_back([&run, part] { run(part); });
    run(0);
  }
  return first;
}

void CloseAll(const std::vector<std::unique_ptr<Pull>>& pulls, const VersionRef& held, const Status& outcome) {
  const auto close = [&](size_t part) {
    if (pulls[part] != nullptr) pulls[part]->Close(held, outcome);
    return OkStatus();
  };
  (void)ForEach(pulls.size(), close, [] {});
}

Status Apart(const std::vector<Plan>& plans) {
  return {ErrorCode::kUnavailable,
          Cat("the parts, in order, are at versions ", Versions(plans), " and reach none in common")};
}

std::unique_ptr<Pull> NewPartedPull(WholePtr whole, std::vector<std::unique_ptr<Pull>> pulls, JoinedPlan joined,
                                    const HeldWhole& held, std::stop_source cancel, const std::stop_token& stop) {
  return std::make_unique<PartedPull>(std::move(whole), std::move(pulls), std::move(joined), held, std::move(cancel),
                                      stop);
}

}  // namespace lockstep::origin
