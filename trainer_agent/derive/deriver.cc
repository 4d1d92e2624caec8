#include "trainer_agent/derive/deriver.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/telemetry/log.h"

namespace lockstep::derive {
namespace {

using run::ModelPublisher;

// Behind the threads that compare versions: a trainer may wait for those.
constexpr int kNice = 19;
// Between looks, where the process has no descriptor for an event.
constexpr std::chrono::milliseconds kWithoutEvents{1000};
// Of all threads together, for each version: a trainer that writes for long, as over a network, leaves cores idle.
constexpr int kPatienceMs = 2000;

run::Wake Sets(const std::shared_ptr<os::Event>& event) {
  return [weak = std::weak_ptr(event)] {
    if (const auto alive = weak.lock()) alive->Set();
  };
}

// Reads `range` of the version in `slot`, and compares each block with its hash. No trainer waits for it. kState: the
// trainer has begun to write over the version. kCorrupt: it is not what was committed.
Status ReadProved(const run::ServedRun& run, const run::ServedRun::Slot& slot, const ByteRange& range, std::byte* to) {
  const model::ModelLayout& layout = run.layout();
  thread_local Bytes copy;
  for (uint64_t at = range.offset; at < range.end();) {
    const auto block = static_cast<BlockIndex>(at / layout.block_bytes());
    const ByteRange bytes = layout.block_range(block);
    const uint64_t end = std::min(bytes.end(), range.end());
    const bool whole = at == bytes.offset && end == bytes.end();
    if (!whole) copy.resize(layout.block_bytes());
    const std::span<std::byte> target(whole ? to : copy.data(), bytes.bytes);
    LS_RETURN_IF_ERROR(os::ReadAt(slot.memory.file.get(), slot.memory.data_offset + bytes.offset, target, run.model()));
    if (model::BlockHash(target) != slot.manifest->block_hashes[block]) {
      const auto still = run.OpenSlot(slot.manifest->held.version);
      if (!still.ok()) return still.status();
      return {ErrorCode::kCorrupt, Cat("block ", block, " of model ", run.model(), " is not what was committed")};
    }
    if (!whole) std::memcpy(to, copy.data() + (at - bytes.offset), end - at);
    to += end - at;
    at = end;
  }
  return OkStatus();
}

bool SameBlocks(const model::ModelLayout& layout, const model::Manifest& a, const model::Manifest& b,
                const std::vector<ByteRange>& ranges) {
  return std::all_of(ranges.begin(), ranges.end(), [&](const ByteRange& range) {
    if (range.bytes == 0) return true;
    const auto first = static_cast<ptrdiff_t>(range.offset / layout.block_bytes());
    const auto end = static_cast<ptrdiff_t>((range.end() - 1) / layout.block_bytes() + 1);
    return std::equal(a.block_hashes.begin() + first, a.block_hashes.begin() + end, b.block_hashes.begin() + first);
  });
}

// Takes what is derived again, and compares it with the bytes of `slot`.
class Comparer {
 public:
  Comparer(const run::ServedRun& run, const run::ServedRun::Slot& slot) : run_(run), slot_(slot) {}

  Derivation::Room Take(const ByteRange& values, const ByteRange& scales) {
    Compare();
    values_.range = values;
    scales_.range = scales;
    for (Made* made : {&values_, &scales_}) made->bytes.resize(made->range.bytes);
    return {values_.bytes.data(), scales_.bytes.data()};
  }
  // The blocks that differ. The first error of reading `slot`.
  Result<std::vector<BlockIndex>> Finish() {
    Compare();
    LS_RETURN_IF_ERROR(status_);
    return std::move(wrong_);
  }

 private:
  struct Made {
    ByteRange range;
    Bytes bytes;
  };

  void Compare() {
    for (const Made* made : {&values_, &scales_}) {
      held_.resize(made->range.bytes);
      if (status_.ok()) status_ = ReadProved(run_, slot_, made->range, held_.data());
      if (!status_.ok() || held_ == made->bytes) continue;
      const auto at = std::mismatch(held_.begin(), held_.end(), made->bytes.begin()).first - held_.begin();
      wrong_.push_back(static_cast<BlockIndex>((made->range.offset + at) / run_.layout().block_bytes()));
    }
    values_ = scales_ = {};
  }

  const run::ServedRun& run_;
  const run::ServedRun::Slot& slot_;
  Made values_, scales_;
  Bytes held_;
  std::vector<BlockIndex> wrong_;
  Status status_;
};

// Lets a trainer that copies a version have the memory and the cores for itself, as long as `most_ms` lasts.
void GiveWayTo(const run::ServedRun& source, std::atomic<int>& most_ms) {
  while (source.IsWritten() && most_ms-- > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

Deriver::Deriver(const run::ModelRegistry* registry, run::VersionCatalog* catalog, run::Scrubber* scrubber,
                 size_t threads)
    : registry_(registry), catalog_(catalog), scrubber_(scrubber), threads_(threads), thread_([this] { Run(); }) {}

Deriver::~Deriver() {
  stopping_ = true;
  news_->Set();
  turn_->Set();
  thread_.join();
}

void Deriver::Run() {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);  // it takes parts, as the pool does
  while (!stopping_) {
    news_->Reset();
    // WakeOnUpdate() is first, so that nothing comes between. No model has this name: every event wakes.
    (void)catalog_->WakeOnUpdate("", {}, news_, Sets(news_));
    FindDerived();
    if (!DeriveOne() && !stopping_) (void)news_->Wait(news_->fd() < 0 ? kWithoutEvents : os::kForever);
  }
}

void Deriver::FindDerived() {
  const auto models = registry_->Snapshot();
  std::erase_if(derived_, [&](const Derived& derived) {
    const auto is_it = [&](const run::ModelSnapshot& model) { return model.publisher == derived.publisher; };
    if (std::any_of(models.begin(), models.end(), is_it)) return false;
    MutexLock lock(mutex_);
    origins_.erase(derived.derivation->model());
    return true;
  });
  for (const run::ModelSnapshot& model : models) {
    if (model.derivation == nullptr) continue;
    const auto is_it = [&](const Derived& derived) { return derived.publisher == model.publisher; };
    if (std::any_of(derived_.begin(), derived_.end(), is_it)) continue;
    derived_.push_back({.derivation = model.derivation, .source = model.source, .publisher = model.publisher});
    if (pool_ == nullptr) pool_ = std::make_unique<WorkerPool>(threads_, kNice);
  }
}

bool Deriver::DeriveOne() {
  Derived* oldest = nullptr;
  for (Derived& derived : derived_) {
    const auto newest = derived.source->Newest();
    if (!newest || newest->manifest->held.version <= derived.tried) continue;
    if (oldest == nullptr || derived.publisher->newest_version() < oldest->publisher->newest_version()) {
      oldest = &derived;
    }
  }
  if (oldest == nullptr) return false;
  if (const auto newest = oldest->source->Newest()) {
    oldest->tried = newest->manifest->held.version;
    Derive(*oldest, *newest);
  }
  return true;
}

void Deriver::Derive(Derived& derived, const run::ServedVersion& version) {
  const Version number = version.manifest->held.version;
  // Made before an agent's restart.
  if (derived.publisher->newest_version() == number) return NoteOrigin(derived, *version.manifest);
  if (derived.publisher->newest_version() > number) return;
  const Status status = MakeVersion(derived, version);
  if (status.ok() || status.code() == ErrorCode::kCancelled) return;
  const std::string& model = derived.derivation->model();
  const std::string& source = derived.source->model();
  if (status.code() == ErrorCode::kState) {
    return telemetry::Log(telemetry::LogLevel::kInfo, "derive_overtaken",
                          {{"model", model}, {"source", source}, {"version", number}});
  }
  // The version that it was compared with was withdrawn: it goes out in full then.
  if (status.code() == ErrorCode::kAborted && std::exchange(derived.failed, number) != number)
    derived.tried = number - 1;
  telemetry::LogError("derive_failed", status, {{"model", model}, {"source", source}, {"version", number}});
  if (status.code() == ErrorCode::kCorrupt) scrubber_->Suspect(source, "");
}

void Deriver::NoteOrigin(const Derived& derived, const model::Manifest& manifest) {
  MutexLock lock(mutex_);
  origins_[derived.derivation->model()] = {.version = manifest.held, .digest = manifest.digest};
}

Deriver::Work Deriver::WorkOf(const Derived& derived, const model::Manifest& manifest, size_t slot) {
  const run::ServedRun& source = *derived.source;
  const Derivation& derivation = *derived.derivation;
  const model::ModelLayout& layout = *derived.publisher->buffer().layout();
  // The version before, which the new one is compared with, as long as it is served: its hashes stand for the bytes of
  // blocks that are not read.
  const auto served = derived.publisher->served()->Newest();
  const model::Manifest* before = derived.made_of[1 - slot].get();
  if (!served || before == nullptr || before->held.version != served->manifest->held.version) before = nullptr;
  const model::Manifest* const here = derived.made_of[slot].get();
  Work work;
  work.unchanged.resize(derivation.part_count());
  std::vector<bool> is_read(layout.block_count());  // blocks that are compared
  std::vector<bool> is_here(derivation.part_count());
  for (size_t part = 0; part < derivation.part_count(); ++part) {
    const std::vector<ByteRange> sources = derivation.SourcesOf(part);
    work.unchanged[part] = before != nullptr && SameBlocks(source.layout(), *before, manifest, sources);
    is_here[part] = work.unchanged[part] && here != nullptr && SameBlocks(source.layout(), *here, manifest, sources);
    if (work.unchanged[part]) continue;
    for (const ByteRange& range : derivation.TargetsOf(part)) {
      if (range.bytes == 0) continue;
      std::fill(is_read.begin() + static_cast<ptrdiff_t>(range.offset / layout.block_bytes()),
                is_read.begin() + static_cast<ptrdiff_t>((range.end() - 1) / layout.block_bytes() + 1), true);
    }
  }
  // A block that is read is made whole, so that no bytes that lay in the slot for a while get into its hash.
  const auto touches_read = [&](const ByteRange& range) {
    if (range.bytes == 0) return false;
    return is_read[range.offset / layout.block_bytes()] || is_read[(range.end() - 1) / layout.block_bytes()];
  };
  for (uint32_t part = 0; part < derivation.part_count(); ++part) {
    const std::vector<ByteRange> targets = derivation.TargetsOf(part);
    if (!work.unchanged[part] || std::any_of(targets.begin(), targets.end(), touches_read)) {
      work.make.push_back(part);
    } else {
      (is_here[part] ? work.keep : work.copy).push_back(part);
    }
  }
  return work;
}

Status Deriver::MakeVersion(Derived& derived, const run::ServedVersion& version) {
  const run::ServedRun& source = *derived.source;
  const auto began = std::chrono::steady_clock::now();
  const model::Manifest& manifest = *version.manifest;
  const Version number = manifest.held.version;
  LS_ASSIGN_OR_RETURN(const run::ServedRun::Slot memory, source.OpenSlot(number));
  ModelPublisher& publisher = *derived.publisher;
  ModelPublisher::Turn turn;
  while (!turn.slot) {
    turn_->Reset();
    LS_ASSIGN_OR_RETURN(turn, publisher.Begin(0, number, "", turn_, Sets(turn_)));
    if (stopping_) return {ErrorCode::kCancelled, "the agent is shutting down"};
    if (!turn.slot) (void)turn_->Wait(os::kForever);
  }
  const size_t slot = *turn.slot;
  const Work work = WorkOf(derived, manifest, slot);
  derived.made_of[slot] = nullptr;
  publisher.BatchesDone(0, number, work.keep, run::Content::kUnchanged);
  std::byte* const data = publisher.buffer().data(slot);
  const auto in_place = [data](const ByteRange& values, const ByteRange& scales) {
    return Derivation::Room{data + values.offset, data + scales.offset};
  };
  for (const uint32_t part : work.copy) {
    const std::byte* const before = publisher.buffer().data(1 - slot);
    for (const ByteRange& range : derived.derivation->TargetsOf(part)) {
      std::memcpy(data + range.offset, before + range.offset, range.bytes);
    }
    publisher.BatchesDone(0, number, {&part, 1}, run::Content::kUnchanged);
  }
  const Derivation::Read read = [&](const ByteRange& range, std::byte* to) {
    if (stopping_) return Status(ErrorCode::kCancelled, "the agent is shutting down");
    return ReadProved(source, memory, range, to);
  };
  std::atomic<int> patience_ms = kPatienceMs;
  Status status = pool_->ParallelTry(work.make.size(), [&](size_t i) {
    const uint32_t part = work.make[i];
    GiveWayTo(source, patience_ms);
    LS_RETURN_IF_ERROR(derived.derivation->Make(part, read, in_place));
    publisher.BatchesDone(0, number, {&part, 1}, work.unchanged[part] ? run::Content::kUnchanged : run::Content::kNew);
    return OkStatus();
  });
  if (!status.ok()) {
    if (status.code() == ErrorCode::kState) {
      publisher.Skip(number, "its source was overwritten meanwhile");
    } else {
      (void)publisher.Abort(0, number, status.message());
    }
    return status;
  }
  LS_RETURN_IF_ERROR(publisher.Commit(0, number, version.label));
  derived.made_of[slot] = version.manifest;
  NoteOrigin(derived, manifest);
  telemetry::Log(telemetry::LogLevel::kInfo, "version_derived",
                 {{"model", derived.derivation->model()},
                  {"source", source.model()},
                  {"version", number},
                  {"format", derived.derivation->format()},
                  {"source_digest", ToHex(manifest.digest)},
                  {"parts_made", work.make.size()},
                  {"parts_kept", work.keep.size() + work.copy.size()},
                  {"derive_s", std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()}});
  return OkStatus();
}

std::optional<Deriver::Origin> Deriver::OriginOf(const std::string& model) const {
  MutexLock lock(mutex_);
  const auto at = origins_.find(model);
  return at == origins_.end() ? std::nullopt : std::optional(at->second);
}

Result<Deriver::Comparison> Deriver::DeriveAgain(const std::string& model, Version version) const {
  const auto models = registry_->Snapshot();
  const auto open = std::find_if(models.begin(), models.end(), [&](const run::ModelSnapshot& each) {
    return each.derivation != nullptr && each.derivation->model() == model;
  });
  if (open == models.end()) return Status(ErrorCode::kNotFound, Cat("model ", model, " is not derived"));
  const auto derived = open->publisher->served();
  LS_ASSIGN_OR_RETURN(const run::ServedRun::Slot held, derived->OpenSlot(version));
  LS_ASSIGN_OR_RETURN(const run::ServedRun::Slot from, open->source->OpenSlot(version));
  const Derivation::Read read = [&](const ByteRange& range, std::byte* to) {
    if (stopping_) return Status(ErrorCode::kCancelled, "the agent is shutting down");
    return ReadProved(*open->source, from, range, to);
  };
  Mutex mutex;
  std::set<BlockIndex> wrong;
  WorkerPool pool(threads_, kNice);
  const Status status = pool.ParallelTry(open->derivation->part_count(), [&](size_t part) {
    Comparer comparer(*derived, held);
    const auto place = [&](const ByteRange& values, const ByteRange& scales) { return comparer.Take(values, scales); };
    LS_RETURN_IF_ERROR(open->derivation->Make(part, read, place));
    LS_ASSIGN_OR_RETURN(const std::vector<BlockIndex> blocks, comparer.Finish());
    MutexLock lock(mutex);
    wrong.insert(blocks.begin(), blocks.end());
    return OkStatus();
  });
  if (status.code() == ErrorCode::kCorrupt) scrubber_->Suspect(open->source->model(), "");
  LS_RETURN_IF_ERROR(status);
  return Comparison{open->source->model(), model::TensorsInBlocks(derived->layout(), {wrong.begin(), wrong.end()})};
}

}  // namespace lockstep::derive
