#include "trainer_agent/run/scrubber.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::run {
namespace {

using std::chrono::milliseconds;

// The trainer may wait for so much to be hashed.
constexpr uint64_t kPiece = 1 << 20;
// After which runs that came are seen.
constexpr milliseconds kLongest{1'000};

Status Differs(const ServedRun& run, Version version, const std::vector<BlockIndex>& bad) {
  const std::vector<std::string> tensors = model::TensorsInBlocks(run.layout(), bad);
  return {ErrorCode::kCorrupt,
          Cat("version ", version, " of model ", run.model(), " was withdrawn: block ", bad[0], " (tensor \"",
              tensors.empty() ? "" : tensors[0],
              "\") does not hold what was committed: it was written afterwards, reported as unchanged and was not, or "
              "the memory is bad. Publish a newer version; it goes to every receiver in full")};
}

}  // namespace

Scrubber::Scrubber(VersionCatalog* catalog, milliseconds round)
    : catalog_(catalog), round_(round), thread_([this] { Run(); }) {}

Scrubber::~Scrubber() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Scrubber::Suspect(const std::string& model, const std::string& who) {
  {
    MutexLock lock(mutex_);
    suspected_.insert({model, who});
  }
  changed_.notify_all();
}

void Scrubber::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    FindRuns();
    const milliseconds idle = LookAtAll();
    lock.lock();
    changed_.wait_for(lock, idle, [this]() LS_REQUIRES(mutex_) { return stopping_ || !suspected_.empty(); });
  }
}

void Scrubber::FindRuns() {
  const auto runs = catalog_->Runs();
  std::erase_if(looks_, [&](const auto& entry) {
    return std::none_of(runs.begin(), runs.end(), [&](const auto& run) { return run == entry.second.run; });
  });
  for (const auto& run : runs) looks_.try_emplace(run->model(), Look{.run = run, .pace = ScrubPace(round_)});
  MutexLock lock(mutex_);
  for (const auto& [model, who] : suspected_) {
    const auto at = looks_.find(model);
    if (at != looks_.end()) Heed(at->second, who);
  }
  suspected_.clear();
}

void Scrubber::Heed(Look& look, const std::string& who) {
  const auto newest = look.run->Newest();
  if (!newest) return;
  const Version version = newest->manifest->held.version;
  if (std::exchange(look.suspected_version, version) != version) look.suspected_by.clear();
  if (who.empty() || look.suspected_by.insert(who).second) look.suspected = look.run->layout().block_count();
}

// A piece of each run that is due. Until when nothing is.
milliseconds Scrubber::LookAtAll() {
  milliseconds idle = kLongest;
  for (auto& [model, look] : looks_) {
    if (look.suspected > 0 || look.pace.due()) LookAt(look);
    idle = std::min(idle, look.suspected > 0 ? milliseconds(0) : look.pace.UntilDue());
  }
  return idle;
}

void Scrubber::LookAt(Look& look) {
  ServedRun& run = *look.run;
  const auto newest = run.Newest();
  const model::ModelLayout& layout = run.layout();
  if (look.next >= layout.block_count()) look.next = 0;
  const auto most = static_cast<uint32_t>(std::max<uint64_t>(1, kPiece / layout.block_bytes()));
  const uint32_t count = std::min(most, layout.block_count() - look.next);
  std::vector<BlockIndex> bad;
  uint64_t hashed = 0;
  const auto compare = [&](const model::Manifest& manifest, ByteView bytes) {
    for (BlockIndex block = look.next; block < look.next + count; ++block) {
      const uint64_t size = layout.block_range(block).bytes;
      if (model::BlockHash(bytes.subspan(hashed, size)) != manifest.block_hashes[block]) bad.push_back(block);
      hashed += size;
    }
  };
  const Version version = newest ? newest->manifest->held.version : 0;
  // When it is overtaken meanwhile, the next version is looked at from here on.
  if (newest) (void)run.UseBlocks(version, /*exact=*/true, look.next, count, compare);
  look.pace.Hashed(hashed, layout.data_bytes());
  look.suspected = newest ? look.suspected - std::min(look.suspected, count) : 0;
  look.next += count;
  if (bad.empty()) return;
  const Status why = Differs(run, version, bad);
  telemetry::LogError("version_withdrawn", why, {{"model", run.model()}, {"version", version}});
  catalog_->Retract(look.run, version, why);
}

}  // namespace lockstep::run
