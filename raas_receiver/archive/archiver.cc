#include "raas_receiver/archive/archiver.h"

#include <algorithm>

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "common/versionlog/log_reader.h"
#include "raas_receiver/archive/log_writer.h"
#include "raas_receiver/archive/spool.h"

namespace lockstep::archive {
namespace {

constexpr size_t kTransfers = 8;
constexpr size_t kChunksAtOnce = 4;  // and their copies in memory
constexpr uint64_t kPieceBytes = 64 << 20;
constexpr uint64_t kLeastSpool = 64 << 20;
constexpr uint64_t kChunksOfSmall = 16;
constexpr uint64_t kMostHistory = objects::kMaxTaggedBytes / 2;  // of the head; another is begun beside it
constexpr std::chrono::minutes kLook{1};                         // for what time alone makes due

// Small models have several chunks, too, or each renewal would be all of it.
uint64_t ChunkBytesOf(const model::ModelLayout& layout) {
  const uint64_t block = layout.block_bytes();
  const uint64_t wanted = std::min(kPieceBytes, layout.data_bytes() / kChunksOfSmall);
  return std::max<uint64_t>(1, (wanted + block - 1) / block) * block;
}

v1::LogVersion DescribeVersion(Version version, const ManifestDigest& digest, int64_t committed,
                               const std::string& label) {
  v1::LogVersion described;
  described.set_version(version);
  described.set_manifest_digest(ToBytes(digest));
  described.set_committed_unix_ns(committed);
  described.set_label(label);
  return described;
}

ByteView AsManifest(const std::vector<uint64_t>& hashes) {
  return std::as_bytes(std::span(hashes));
}

}  // namespace

// Deltas come last: where they come faster than they are written, the log is kept in order all the same.
const Archiver::Task Archiver::kTasks[] = {&Archiver::Begin,         &Archiver::PutInPlace, &Archiver::Shorten,
                                           &Archiver::RemoveUnnamed, &Archiver::WriteDelta, &Archiver::WriteChunks,
                                           &Archiver::SignAgain};

Result<std::unique_ptr<Archiver>> Archiver::Create(ArchiverOptions options, replica::ReplicaPair& replicas) {
  LS_ASSIGN_OR_RETURN(auto spool, Spool::Open(replicas.directory().SpoolPath()));
  return std::unique_ptr<Archiver>(new Archiver(std::move(options), replicas, std::move(spool)));
}

Archiver::Archiver(ArchiverOptions options, replica::ReplicaPair& replicas, std::unique_ptr<Spool> spool)
    : options_(std::move(options)),
      replicas_(replicas),
      transfers_(kTransfers),
      spool_(std::move(spool)),
      writer_(std::make_unique<LogWriter>(LogWriterOptions{.store = options_.store,
                                                           .model = options_.model,
                                                           .writer = options_.receiver,
                                                           .key = options_.key,
                                                           .remembered_path = options_.remembered_path,
                                                           .bytes_per_s = options_.bytes_per_s,
                                                           .grace = options_.grace},
                                          transfers_)) {
  shown_.set_url(options_.store->url());
  shown_.set_state(v1::ARCHIVE_STATE_WAITING);
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

Archiver::~Archiver() = default;

// --- The session's thread ---

void Archiver::Keep(const payload::DeltaChain& steps, const std::string& label) {
  {
    MutexLock lock(mutex_);
    if (shown_.state() == v1::ARCHIVE_STATE_TAKEN_OVER) return;  // they would not be written
  }
  for (const auto& step : steps) {
    const uint64_t most = std::max(replicas_.current().layout->data_bytes() / 2, kLeastSpool);
    const Status added = spool_->Add(*step, step == steps.back() ? label : "", most);
    if (!added.ok())
      telemetry::LogWarn("archive_gap", added, {{"model", options_.model}, {"version", step->target().version}});
  }
}

void Archiver::InStep() {
  {
    MutexLock lock(mutex_);
    in_step_ = true;
    notified_ = true;
  }
  changed_.notify_all();
}

v1::Archive Archiver::Describe() const {
  MutexLock lock(mutex_);
  v1::Archive archive = shown_;
  archive.set_waiting_deltas(spool_->deltas().size());
  archive.set_waiting_bytes(spool_->bytes());
  archive.set_written_bytes(writer_->bytes_written());
  return archive;
}

// --- The thread ---

void Archiver::Loop(const std::stop_token& stop) {
  Backoff backoff(std::chrono::seconds(30), std::chrono::milliseconds(200));
  std::chrono::milliseconds wait = kLook;
  while (true) {
    {
      MutexLock lock(mutex_);
      // After an error the wait is waited for, whatever comes.
      const bool failing = !shown_.last_error().empty();
      changed_.wait_for(lock, stop, wait, [&]() LS_REQUIRES(mutex_) { return notified_ && !failing; });
      notified_ = false;
      if (stop.stop_requested()) return;
      if (!in_step_) continue;
    }
    Result<bool> did = true;
    while (did.ok() && *did && !stop.stop_requested()) {
      did = DoNext(stop);
      if (did.ok()) Show(OkStatus(), false);
    }
    if (stop.stop_requested()) return;
    if (did.ok()) {
      backoff.Reset();
      wait = kLook;
      continue;
    }
    const bool taken_over = owns_ && writer_->taken_over();
    // A head that is gone was removed, with all of the log: it starts again.
    if (did.status().code() == ErrorCode::kNotFound) owns_ = false;
    Show(did.status(), taken_over);
    if (taken_over) {
      spool_->Clear();
      return;
    }
    wait = backoff.Next();
  }
}

Result<bool> Archiver::DoNext(const std::stop_token& stop) {
  current_ = replicas_.current();
  if (current_.held.nothing()) return false;
  if (!owns_) {
    LS_RETURN_IF_ERROR(writer_->TakeOver(stop));
    owns_ = true;
    ready_.clear();
    return true;
  }
  const bool rolled_back = !replicas_.rollback().version.nothing();
  LS_ASSIGN_OR_RETURN(const bool offered, Offer(rolled_back, stop));
  if (offered) return true;
  if (rolled_back) return SignAgain(stop);  // readers keep what they have
  const v1::LogHead& head = writer_->head();
  history_ = nullptr;
  if (head.has_next() && GoesOn(head.next())) history_ = &head.next();
  if (history_ == nullptr && head.has_history() && GoesOn(head.history())) history_ = &head.history();
  for (const Task task : kTasks) {
    LS_ASSIGN_OR_RETURN(const bool did, (this->*task)(stop));
    if (did) return true;
  }
  return false;
}

// Readers that begin get what is current here, where the log has it.
Result<bool> Archiver::Offer(bool rolled_back, const std::stop_token& stop) {
  v1::LogHead head = writer_->head();
  v1::LogHistory& history = *head.mutable_history();
  const Version held = current_.held.version;
  const bool is_newest = history.newest().version() == held;
  if (history.run() != ToBytes(current_.held.run) || held < history.oldest()) return false;
  if (versionlog::FindDigest(history, held) != current_.digest) return false;
  if (rolled_back && !is_newest && history.current().version() != held) {
    *history.mutable_current() = DescribeVersion(held, current_.digest, current_.committed_unix_ns, current_.label);
  } else if (is_newest && history.has_current()) {
    history.clear_current();
  } else {
    return false;
  }
  LS_RETURN_IF_ERROR(writer_->SetHead(std::move(head), /*new_epoch=*/false, stop));
  return true;
}

// Whether it is of what is held and has all of its objects, and deltas lead there.
bool Archiver::GoesOn(const v1::LogHistory& history) const {
  const VersionRef& held = current_.held;
  if (history.run() != ToBytes(held.run) || history.layout_digest() != ToBytes(current_.layout->digest())) return false;
  const bool whole = &history == &writer_->head().history();
  if (!versionlog::CheckLayout(history, *current_.layout, whole).ok()) return false;  // no writer of ours made it
  if (writer_->HasLost(history)) return false;
  const Version newest = history.newest().version();
  if (newest == held.version) return history.newest().manifest_digest() == ToBytes(current_.digest);
  return newest > held.version || spool_->Next({held.run, newest}, held.version).has_value();
}

bool Archiver::IsNext() const {
  return history_ == &writer_->head().next();
}

uint64_t Archiver::ChunkCount() const {
  return versionlog::ChunkCount(*history_, current_.layout->data_bytes());
}

// A history beside the one that readers read.
Result<bool> Archiver::Begin(const std::stop_token& stop) {
  if (history_ != nullptr) return false;
  const model::Manifest manifest = replicas_.manifest();
  if (manifest.held != current_.held) return true;  // it has moved on: from the start
  writer_->ForgetPut();
  ready_.clear();
  for (const Spool::Delta& delta : spool_->deltas()) {
    if (delta.run != current_.held.run || delta.base < current_.held.version) spool_->Remove(delta);
  }
  v1::LogHistory next;
  next.set_run(ToBytes(current_.held.run));
  next.set_layout_digest(ToBytes(current_.layout->digest()));
  next.set_chunk_bytes(ChunkBytesOf(*current_.layout));
  *next.mutable_newest() =
      DescribeVersion(current_.held.version, current_.digest, current_.committed_unix_ns, current_.label);
  LS_ASSIGN_OR_RETURN(*next.mutable_layout(),
                      writer_->Put(versionlog::kLayout, current_.layout->encoded(), kPieceBytes, stop));
  LS_ASSIGN_OR_RETURN(*next.mutable_manifest(),
                      writer_->Put(versionlog::kManifest, AsManifest(manifest.block_hashes), kPieceBytes, stop));
  telemetry::Log(telemetry::LogLevel::kInfo, "archive_begun",
                 {{"model", options_.model},
                  {"run", ToHex(current_.held.run)},
                  {"version", current_.held.version},
                  {"bytes", current_.layout->data_bytes()}});
  v1::LogHead head = writer_->head();
  *head.mutable_next() = std::move(next);
  LS_RETURN_IF_ERROR(writer_->SetHead(std::move(head), /*new_epoch=*/false, stop));
  return true;
}

Result<bool> Archiver::WriteDelta(const std::stop_token& stop) {
  if (std::exchange(chunks_first_, false) && !WantedChunks().empty()) return false;
  const Version newest = history_->newest().version();
  for (const Spool::Delta& waiting : spool_->deltas()) {
    if (waiting.run == current_.held.run && waiting.target <= newest) spool_->Remove(waiting);
  }
  const auto delta = spool_->Next({current_.held.run, newest}, current_.held.version);
  if (!delta) return false;
  const Result<Spool::SpooledDelta> read = spool_->Get(*delta, *current_.layout);
  const ErrorCode code = read.status().code();
  if (code == ErrorCode::kIo || code == ErrorCode::kResourceExhausted) return read.status();  // it may be whole
  const Status loaded = LoadHashes(stop);
  if (loaded.code() == ErrorCode::kCorrupt) {  // the log's own: nothing leads on from it
    telemetry::LogWarn("archive_gap", loaded, {{"model", options_.model}, {"version", delta->target}});
    spool_->Clear();
    return true;
  }
  LS_RETURN_IF_ERROR(loaded);
  std::vector<uint64_t> hashes = hashes_;
  Status follows = read.status();
  if (read.ok()) {
    const payload::PayloadHeader& header = read->payload->header();
    for (const payload::PayloadEntry& entry : read->payload->entries()) hashes[entry.block] = entry.target_hash;
    const bool leads = ToBytes(header.base_digest) == history_->newest().manifest_digest() &&
                       model::ComputeManifestDigest(*current_.layout, hashes) == header.target_digest;
    if (!leads) follows = {ErrorCode::kCorrupt, "it does not lead from the log's newest version to its own"};
  }
  if (!follows.ok()) {
    telemetry::LogWarn("archive_gap", follows, {{"model", options_.model}, {"version", delta->target}});
    spool_->Remove(*delta);
    return true;
  }
  const payload::PayloadHeader& header = read->payload->header();
  v1::LogHistory history = *history_;
  v1::LogStep& step = *history.add_steps();
  step.set_base(header.base);
  step.set_base_digest(ToBytes(header.base_digest));
  *step.mutable_target() = DescribeVersion(header.target, header.target_digest, header.committed_unix_ns, read->label);
  step.set_entries(header.entries);
  step.set_data_bytes(header.data_bytes);
  step.set_changed_elements(header.changed_elements);
  LS_ASSIGN_OR_RETURN(*step.mutable_payload(),
                      writer_->Put(versionlog::kDelta, read->payload->bytes(), kPieceBytes, stop));
  LS_ASSIGN_OR_RETURN(*history.mutable_manifest(),
                      writer_->Put(versionlog::kManifest, AsManifest(hashes), kPieceBytes, stop));
  *history.mutable_newest() = step.target();
  if (header.target >= current_.held.version) history.clear_current();  // a rollback has ended
  AddReady(history);
  LS_RETURN_IF_ERROR(SetHistory(std::move(history), stop));
  hashed_ = {current_.held.run, delta->target};
  hashes_ = std::move(hashes);
  spool_->Remove(*delta);
  chunks_first_ = true;
  return true;
}

// The manifest of the newest version of the history.
Status Archiver::LoadHashes(const std::stop_token& stop) {
  const VersionRef newest{current_.held.run, history_->newest().version()};
  if (hashed_ == newest) return OkStatus();
  model::Manifest held = replicas_.manifest();
  if (held.held == newest) {
    hashes_ = std::move(held.block_hashes);
  } else {
    const auto own = options_.key ? options_.key->Verifier() : versionlog::TrustedKeys();
    versionlog::LogReader reader(options_.store, options_.model, own, transfers_, transfers_);
    LS_ASSIGN_OR_RETURN(hashes_, reader.ReadManifest(*history_, stop));
  }
  hashed_ = newest;
  return OkStatus();
}

std::vector<uint32_t> Archiver::WantedChunks() const {
  std::vector<uint32_t> wanted;
  if (IsNext()) {
    for (uint32_t index = 0; index < ChunkCount(); ++index) {
      if (versionlog::FindChunk(*history_, index, kMaxVersion) == nullptr) wanted.push_back(index);
    }
  } else {
    wanted = versionlog::DueChunks(*history_, current_.layout->data_bytes());
  }
  std::erase_if(wanted, [&](uint32_t index) {
    return std::ranges::any_of(ready_, [&](const v1::LogChunk& chunk) { return chunk.index() == index; });
  });
  return wanted;
}

// Some, copied out of the replica before it moves on. Of an older version, as after a rollback, they are of no use.
Result<bool> Archiver::WriteChunks(const std::stop_token& stop) {
  if (current_.held.version < history_->newest().version()) return false;
  std::vector<uint32_t> indices = WantedChunks();
  if (indices.empty()) return false;
  indices.resize(std::min(indices.size(), kChunksAtOnce));
  std::ranges::sort(indices);  // the last one, which may be short, is the last
  const auto range_of = [&](uint32_t index) {
    return versionlog::ChunkRange(*history_, index, current_.layout->data_bytes());
  };
  Bytes copies((indices.size() - 1) * history_->chunk_bytes() + range_of(indices.back()).bytes);
  std::vector<v1::LogChunk> chunks(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const ByteRange range = range_of(indices[i]);
    const auto copy = std::span(copies).subspan(i * history_->chunk_bytes(), range.bytes);
    const Result<VersionRef> held = replicas_.CopyCurrent(range.offset, copy);
    if (held.status().code() == ErrorCode::kState || (held.ok() && held->run != current_.held.run)) return true;
    LS_RETURN_IF_ERROR(held);
    chunks[i].set_index(indices[i]);
    chunks[i].set_version(held->version);
  }
  LS_ASSIGN_OR_RETURN(const v1::LogBytes put, writer_->Put(versionlog::kChunk, copies, history_->chunk_bytes(), stop));
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].set_sha256(put.pieces(static_cast<int>(i)));
    ready_.push_back(chunks[i]);
  }
  v1::LogHistory history = *history_;
  AddReady(history);
  LS_RETURN_IF_ERROR(SetHistory(std::move(history), stop));
  return true;
}

// Those of versions that it has.
void Archiver::AddReady(v1::LogHistory& history) {
  std::vector<v1::LogChunk> later;
  for (const v1::LogChunk& chunk : ready_) {
    if (chunk.version() > history.newest().version()) {
      later.push_back(chunk);
    } else if (versionlog::FindDigest(history, chunk.version()).has_value()) {
      const v1::LogChunk* before = versionlog::FindChunk(history, chunk.index(), chunk.version());
      if (before == nullptr || before->version() != chunk.version()) *history.add_chunks() = chunk;
    }
  }
  std::ranges::sort(*history.mutable_chunks(), {},
                    [](const v1::LogChunk& chunk) { return std::pair(chunk.index(), Version{chunk.version()}); });
  ready_ = std::move(later);
}

Status Archiver::SetHistory(v1::LogHistory history, const std::stop_token& stop) {
  v1::LogHead head = writer_->head();
  if (IsNext()) {
    *head.mutable_next() = std::move(history);
  } else {
    *head.mutable_history() = std::move(history);
    head.clear_next();
  }
  return writer_->SetHead(std::move(head), /*new_epoch=*/false, stop);
}

// What was begun beside is whole: readers read it from now on.
Result<bool> Archiver::PutInPlace(const std::stop_token& stop) {
  if (!IsNext()) return false;
  Version oldest = 0;
  for (uint32_t index = 0; index < ChunkCount(); ++index) {
    const v1::LogChunk* chunk = versionlog::FindChunk(*history_, index, kMaxVersion);
    if (chunk == nullptr) return false;
    oldest = std::max<Version>(oldest, chunk->version());
  }
  v1::LogHead head = writer_->head();
  v1::LogHistory history = *history_;
  const bool back =
      head.history().run() == history.run() && history.newest().version() < head.history().newest().version();
  if (back) return false;  // readers would not take it: it waits for what comes
  history.set_oldest(oldest);
  const bool other_run = head.has_history() && head.history().run() != history.run();
  *head.mutable_history() = std::move(history);
  head.clear_next();
  LS_RETURN_IF_ERROR(writer_->SetHead(std::move(head), other_run, stop));
  telemetry::Log(telemetry::LogLevel::kInfo, "archive_readable",
                 {{"model", options_.model}, {"run", ToHex(current_.held.run)}, {"oldest", oldest}});
  return true;
}

Result<bool> Archiver::Shorten(const std::stop_token& stop) {
  if (IsNext()) return false;
  const uint64_t model_bytes = current_.layout->data_bytes();
  const uint64_t most = options_.keep_bytes == 0 ? 2 * model_bytes : options_.keep_bytes;
  v1::LogHistory history = *history_;
  const auto too_much = [&] {
    if (versionlog::StoredBytes(history, model_bytes) > most || history.ByteSizeLong() > kMostHistory) return true;
    const auto next =
        std::ranges::find_if(history.steps(), [&](const v1::LogStep& step) { return step.base() == history.oldest(); });
    if (options_.keep_age.count() == 0 || next == history.steps().end()) return false;
    const auto age = std::chrono::nanoseconds(telemetry::UnixNanos() - next->target().committed_unix_ns());
    return age > options_.keep_age;
  };
  bool shorter = false;
  while (too_much() && versionlog::DropOldest(history)) shorter = true;
  if (shorter) LS_RETURN_IF_ERROR(SetHistory(std::move(history), stop));
  return shorter;
}

Result<bool> Archiver::RemoveUnnamed(const std::stop_token& stop) {
  return writer_->RemoveUnnamed(stop);
}

// Readers see by it that the log does not stand still.
Result<bool> Archiver::SignAgain(const std::stop_token& stop) {
  const auto age = std::chrono::nanoseconds(telemetry::UnixNanos() - writer_->head().written_unix_ns());
  if (age.count() >= 0 && age < options_.sign_every) return false;
  LS_RETURN_IF_ERROR(writer_->SetHead(writer_->head(), /*new_epoch=*/false, stop));
  return true;
}

void Archiver::Show(const Status& outcome, bool taken_over) {
  const v1::LogHead& head = writer_->head();
  MutexLock lock(mutex_);
  const bool beginning = head.has_next();
  shown_.set_state(taken_over      ? v1::ARCHIVE_STATE_TAKEN_OVER
                   : !outcome.ok() ? v1::ARCHIVE_STATE_FAILING
                   : beginning     ? v1::ARCHIVE_STATE_BEGINNING
                                   : v1::ARCHIVE_STATE_FOLLOWING);
  shown_.set_epoch(owns_ ? head.epoch() : 0);
  if (head.has_history()) {
    shown_.mutable_newest()->set_run(head.history().run());
    shown_.mutable_newest()->set_version(head.history().newest().version());
    shown_.set_oldest_version(head.history().oldest());
    shown_.set_newest_committed_unix_ns(head.history().newest().committed_unix_ns());
  }
  shown_.set_chunks(beginning ? static_cast<uint32_t>(head.next().chunks_size()) : 0);
  const uint64_t bytes = current_.layout == nullptr ? 0 : current_.layout->data_bytes();
  shown_.set_chunks_wanted(beginning ? static_cast<uint32_t>(versionlog::ChunkCount(head.next(), bytes)) : 0);
  if (outcome.ok()) {
    shown_.clear_last_error();
    return;
  }
  if (taken_over) {
    telemetry::LogError("archive_taken_over", outcome, {{"model", options_.model}});
  } else if (shown_.last_error().empty()) {
    telemetry::LogWarn("archive_failed", outcome, {{"model", options_.model}});
  }
  shown_.set_failures(shown_.failures() + 1);
  shown_.set_last_error(outcome.ToString());
  shown_.set_last_error_unix_ns(telemetry::UnixNanos());
}

}  // namespace lockstep::archive
